"""The iterator that a hinted sampler gives out: the sampler's own, step by step, and the daemon is told beside it.

The sampler's own iterator is never asked for more than the job asks for. All its attributes are there (`state_dict`,
`load_state_dict`, ...), items are handed on as they are, and what it raises is raised where it raises it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar, cast

from hfs.training.copied_sampler import CopiedSampler, Disturbs, copied_at_begin, copied_at_work
from hfs.training.hint_session import Hints
from hfs.training.known_orders import Begin, Pieces, epoch_of, known
from hfs.training.told_order import ToldOrder

log = logging.getLogger("hfs.hint")

_Made = TypeVar("_Made")

_OWN = {
    *("__dict__", "__doc__", "__getattribute__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__init__"),
    *("__init_subclass__", "__module__", "__reduce__", "__setstate__", "__slots__", "__weakref__"),
    *("__class_getitem__", "__del__", "__instancecheck__", "__new__", "__sizeof__", "__subclasscheck__"),
}
"""What a stand-in never takes from the other: what makes and ends objects is for each to have."""

_Kind = TypeVar("_Kind", bound="StandIn")


class StandIn:
    """An object that stands in for another: all but what a subclass defines is that of `_hfs_bare`.

    What Python looks up in a class and not in an object (`len`, `[]`, `in`, `==`, ...) is found as well: each stand-in
    has a class (`class_for`) with just those special methods that the class of the other has, so that what the other
    cannot do is refused in the same words, and nothing is called to find out.
    """

    __slots__ = ("__weakref__", "_hfs_bare")

    _hfs_bare: Any

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the other's attributes are
        return getattr(object.__getattribute__(self, "_hfs_bare"), name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - whatever the other's attributes are
        setattr(self._hfs_bare, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._hfs_bare, name)

    def __dir__(self) -> Iterable[str]:
        return dir(self._hfs_bare)

    @property  # type: ignore[misc] # what unittest.mock does too: isinstance asks it when the type does not fit
    def __class__(self) -> type:
        """The other's class to isinstance, so that frameworks treat it as what it is; not of plain containers."""
        kind = type(self._hfs_bare)
        return type(self) if kind.__module__ in {"builtins", "numpy", "torch"} else kind


def keep(stand_in: StandIn, name: str, value: object) -> None:
    """Set what is the stand-in's own."""
    object.__setattr__(stand_in, name, value)


def class_for(base: type[_Kind], kind: type) -> type[_Kind]:
    """A subclass of `base` for what stands in for objects of `kind`."""
    return cast(type[_Kind], _class_for(cast(Any, base), kind))


@functools.lru_cache(maxsize=64)
def _class_for(base: Hashable, kind: Any) -> type:  # noqa: ANN401 - two classes
    assert isinstance(base, type)
    body: dict[str, Any] = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    own = _OWN.union(*(vars(each) for each in base.__mro__ if each is not object))
    for name in dir(kind):
        if not (name.startswith("__") and name.endswith("__")) or name in own:
            continue
        found = inspect.getattr_static(kind, name)
        if found is None:
            body[name] = None  # __hash__ of what has none
        elif (
            callable(found) and found is not inspect.getattr_static(object, name, None) and not isinstance(found, type)
        ):
            body[name] = _passed_on(name)
    return type(str(kind.__name__), (base,), body)


def _passed_on(name: str) -> Any:  # noqa: ANN401 - a method
    def method(self: StandIn, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the other's
        bare = self._hfs_bare
        return getattr(type(bare), name)(bare, *arguments, **named)

    method.__name__ = name
    return method


class _Beginning:
    """An epoch that the job has begun and not asked the first item of."""

    def __init__(self, sampler: Any, hints: Hints) -> None:  # noqa: ANN401 - any sampler
        """Reads of the sampler what its own `iter` will read."""
        self._sampler = sampler
        self._hints = hints
        self._epoch = epoch_of(sampler)
        self._known: Begin | None = None
        self._copy: CopiedSampler | None = None
        self._known = _tried(lambda: known(sampler, hints.index_of))
        if self._known is None:
            self._copy = _tried(lambda: copied_at_begin(sampler, hints.index_of, ahead=hints.ahead))

    def begin(self, iterator: Any) -> ToldOrder:  # noqa: ANN401 - any sampler's
        """The first item is about to be asked for."""
        sampler, hints, epoch = self._sampler, self._hints, self._epoch

        def anew() -> Pieces | None:
            return _pieces(_tried(lambda: copied_at_work(sampler, iterator, hints.index_of, ahead=hints.ahead)))

        if self._known is not None:
            pieces = _tried(self._known)
        else:  # the iterator may have been loaded with a state since it was made
            at_work = _tried(lambda: copied_at_work(None, iterator, hints.index_of, ahead=hints.ahead))
            pieces = _pieces(at_work or self._copy)
        return ToldOrder(hints.taking(sampler, epoch), hints.trouble, sampler, pieces, anew, hints.index_of)


def _tried(make: Callable[[], _Made]) -> _Made | None:
    """What `make` gives; None where the job's own code raises something, or cannot be copied."""
    try:
        return make()
    except (Exception, Disturbs) as error:  # noqa: BLE001 - whatever it is, the training goes on
        log.debug("nothing is told ahead: %s: %s", type(error).__name__, error)
        return None


def _pieces(copied: CopiedSampler | None) -> Pieces | None:
    return None if copied is None else copied.pieces()


class HintedIterator(StandIn):
    """Stands in for a sampler's iterator."""

    __slots__ = ("_hfs_beginning", "_hfs_told")

    _hfs_beginning: _Beginning | None
    _hfs_told: ToldOrder | None

    def __iter__(self) -> Iterator[Any]:
        bare = iter(self._hfs_bare)  # which may begin it anew
        return self if bare is self._hfs_bare else bare

    def __next__(self) -> Any:  # noqa: ANN401 - whatever samplers give out
        told = self._hfs_told
        if told is None:
            if self._hfs_beginning is None:
                return next(self._hfs_bare)
            told = self._hfs_beginning.begin(self._hfs_bare)
            keep(self, "_hfs_beginning", None)
            keep(self, "_hfs_told", told)
        try:
            item = next(self._hfs_bare)
        except BaseException as error:
            told.end(at_its_end=isinstance(error, StopIteration))
            raise
        if type(item) in told.plain:  # in a few steps: this is done for each index
            given = told.given
            given.append(item)
            if len(given) < told.many and monotonic() < told.due:
                return item
            told.look()
        else:
            told.take_in(item)
        if told.is_over:
            keep(self, "_hfs_told", None)
        return item

    def __copy__(self) -> Any:  # noqa: ANN401 - a copy has no hints, as two would tell of one epoch
        return copy.copy(self._hfs_bare)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:  # noqa: ANN401 - as above
        return copy.deepcopy(self._hfs_bare, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as above
        return _same, (self._hfs_bare,)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # never begun
            if self._hfs_told is not None:
                self._hfs_told.end()


def _same(bare: Any) -> Any:  # noqa: ANN401 - what was pickled
    return bare


def hinted_iterator(sampler: Any, hints: Hints) -> HintedIterator:  # noqa: ANN401 - any sampler
    """Begin the sampler's iteration. Raises what the sampler's own `iter` raises."""
    beginning = _Beginning(sampler, hints)
    bare = iter(sampler)
    found = class_for(HintedIterator, type(bare))()
    keep(found, "_hfs_bare", bare)
    keep(found, "_hfs_beginning", beginning)
    keep(found, "_hfs_told", None)
    return found
