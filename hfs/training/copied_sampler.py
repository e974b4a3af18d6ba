"""A copy of a job's sampler, drawn from in its place, so that it is known what the sampler will give out.

Only where the sampler may be copied: it has `state_dict` and `load_state_dict`, or the job has said so. The copy shares
nothing that drawing may change: containers, arrays and generators are its own. It is drawn where nobody notices
(`drawing_alone.py`). Data sets are not copied: a sampler that only has `state_dict` sees of them the length and data,
what the job has vouched for sees them whole. Models are neither copied nor run.

Everything here runs code of the job: it may raise anything.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from hfs.mountd.base.errors import HfsError
from hfs.training.drawing_alone import Disturbs, DrawingAlone
from hfs.training.sampler_order import IndexOf, Indices, as_array, indices_of

_STEP_S = 0.004
_STEP_INDICES = 1 << 16
_LOOKED_AT = 1000
"""Objects of a sampler that are looked at for data sets and generators; more of them is no sampler."""
_DATA_SETS = {"data_source", "dataset"}
"""What samplers call their data set."""
_CONTAINERS = (
    list,
    tuple,
    range,
    dict,
    set,
    frozenset,
    MutableMapping,
    MutableSequence,
    MutableSet,
    str,
    bytes,
    np.ndarray,
)


class NotCopied(HfsError):
    """The sampler has something that is not to be copied."""


def may_be_copied(sampler: object) -> bool:
    """Whether its state can be taken and given back, so that a copy is what the sampler is."""
    return all(callable(getattr(sampler, name, None)) for name in ("state_dict", "load_state_dict"))


class CopiedSampler:
    """A copy of a sampler, or of an iterator of it, and what it gives out."""

    def __init__(self, sampler: Any, index_of: IndexOf | None, *, ahead: bool) -> None:  # noqa: ANN401 - any sampler
        """`ahead`: the job vouches for it. Raises whatever copying raises."""
        self._index_of = index_of
        self._alone = DrawingAlone()
        with self._alone:
            self._copy = copy.deepcopy(sampler, _shared(sampler, ahead=ahead))
            self._iterator: Iterator[Any] = iter(self._copy)

    def load(self, state: object) -> None:
        """Begin where a state says. Raises whatever loading raises."""
        with self._alone:
            self._copy.load_state_dict(copy.deepcopy(state))
            self._iterator = iter(self._copy)

    def pieces(self) -> Iterator[Indices]:
        """What it gives out from now on, by steps of some milliseconds. Ends where the copy ends or fails."""
        self._alone.begin_anew()  # now: the sampler's own iterator is about to be asked
        return self._drawn()

    def _drawn(self) -> Iterator[Indices]:
        ended = False
        while not ended:
            numbers: list[int] = []
            until = time.monotonic() + _STEP_S
            with self._alone:
                while len(numbers) < _STEP_INDICES and time.monotonic() < until:
                    try:
                        item = next(self._iterator)
                    except (Exception, SystemExit, GeneratorExit, Disturbs):  # noqa: BLE001 - the job's will raise
                        ended = True
                        break
                    numbers.extend(indices_of(item, self._index_of))
            if numbers:
                yield as_array(numbers)


def copied_at_begin(sampler: Any, index_of: IndexOf | None, *, ahead: bool) -> CopiedSampler | None:  # noqa: ANN401
    """A copy of a sampler that is about to be begun; None: it may not be copied. Raises whatever copying raises."""
    return CopiedSampler(sampler, index_of, ahead=ahead) if ahead or may_be_copied(sampler) else None


def copied_at_work(
    sampler: Any,  # noqa: ANN401 - any sampler
    iterator: Any,  # noqa: ANN401 - and what it has given as its iterator
    index_of: IndexOf | None,
    *,
    ahead: bool,
) -> CopiedSampler | None:
    """A copy that goes on where `iterator` is; None: there can be none. Raises whatever copying raises."""
    if not isinstance(iterator, GeneratorType) and (ahead or may_be_copied(iterator)):
        return CopiedSampler(iterator, index_of, ahead=ahead)
    if may_be_copied(sampler):
        state = sampler.state_dict()
        copied = CopiedSampler(sampler, index_of, ahead=ahead)
        copied.load(state)
        return copied
    return None


def _shared(sampler: object, *, ahead: bool) -> dict[int, Any]:
    """What `copy.deepcopy` is to put in the place of objects of the sampler, by their ids. Raises NotCopied."""
    memo: dict[int, Any] = {}
    waiting: list[tuple[str, object]] = [("", sampler)]
    torch = sys.modules.get("torch")
    seen = 0
    while waiting:
        name, thing = waiting.pop()
        if id(thing) in memo or isinstance(thing, str | bytes | int | float | None):
            continue
        seen += 1
        if seen > _LOOKED_AT:
            raise NotCopied("it holds very many objects")
        if any(base.__module__.startswith("torch.nn.") for base in type(thing).__mro__):
            raise NotCopied("it holds a model")
        if torch is not None and isinstance(thing, torch.Generator):
            memo[id(thing)] = torch.Generator(device=thing.device).set_state(thing.get_state())
        elif thing is not sampler and (name in _DATA_SETS or _is_data_set(thing)):
            memo[id(thing)] = _data_set(thing, ahead=ahead)
        elif isinstance(thing, dict):
            waiting += [("", value) for value in _first(thing.values())]
        elif isinstance(thing, list) and len(thing) > _LOOKED_AT and set(map(type, thing)) <= {int, str, float}:
            memo[id(thing)] = list(thing)  # much faster than what deepcopy does
        elif isinstance(thing, list | tuple):
            waiting += [("", value) for value in _first(thing)]
        elif isinstance(thing, FunctionType):
            waiting += [("", _in_cell(cell)) for cell in thing.__closure__ or ()]
        elif isinstance(attributes := getattr(thing, "__dict__", None), dict) and not isinstance(thing, type):
            waiting += list(attributes.items())
    return memo


def _in_cell(cell: CellType) -> object:
    """What a function has taken from around it, and a copy would have too. Raises NotCopied where that may change."""
    found = cell.cell_contents
    if not isinstance(found, str | bytes | int | float | None | type | FunctionType | BuiltinFunctionType | ModuleType):
        raise NotCopied(f"a function of it holds {type(found).__name__}")
    return found


def _first(values: Any) -> list[object]:  # noqa: ANN401 - a container of anything
    """Those that may be more than numbers and text, unless there are very many."""
    return [] if len(values) > _LOOKED_AT else list(values)


def _is_data_set(thing: object) -> bool:
    kind = type(thing)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not isinstance(thing, _CONTAINERS)
        and (kind.__module__ != "torch")
    )


def _data_set(thing: Any, *, ahead: bool) -> Any:  # noqa: ANN401 - any data set
    if isinstance(thing, list):
        return list(thing)
    if isinstance(thing, _CONTAINERS) and not isinstance(thing, str | bytes):
        return copy.deepcopy(thing)
    return thing if ahead else _Seen(thing)


class _Seen:
    """What the copy of a sampler that nobody has vouched for sees of a data set: nothing that does something."""

    def __init__(self, data_set: Any) -> None:  # noqa: ANN401 - any data set
        self._data_set = data_set

    def __len__(self) -> int:
        return len(self._data_set)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the data set's attributes are
        if name.startswith("__") or name == "_data_set":
            raise AttributeError(name)
        found = getattr(self._data_set, name)
        if not callable(found):
            return found
        raise AttributeError(name)
