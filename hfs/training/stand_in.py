"""An object that stands in for another: all that it does not do itself is the other's.

What Python looks up in a class and not in an object (`len`, `[]`, `in`, `==`, ...) is found as well: each stand-in has
a class with just those special methods that the class of the other has, so that what the other cannot do is refused in
the same words, and nothing is called to find out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar, cast

_OWN = {
    *("__dict__", "__doc__", "__getattribute__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__init__"),
    *("__init_subclass__", "__module__", "__reduce__", "__setstate__", "__slots__", "__weakref__"),
    *("__class_getitem__", "__del__", "__instancecheck__", "__new__", "__sizeof__", "__subclasscheck__"),
}
"""What a stand-in never takes from the other: what makes and ends objects is for each to have."""

_Kind = TypeVar("_Kind", bound="StandIn")


class StandIn:
    """All but what a subclass defines is that of `_hfs_bare`."""

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
