"""The codecs by name, and the choice of one for an array."""

from __future__ import annotations

import importlib
from functools import cache

from hfs.codecs.codec import Array, Codec, CodecError

_MODULES = ("cosmoflow", "deepcam", "plain")


@cache
def codecs() -> dict[str, Codec]:
    """All codecs by name."""
    found = [importlib.import_module(f"hfs.codecs.{name}").CODEC for name in _MODULES]
    return {one.name: one for one in found}


def find(name: str, version: int = 0) -> Codec:
    """The codec of this name, which can read this version. Raises CodecError."""
    known = codecs()
    if name not in known:
        raise CodecError(f"codec {name!r} is not known; this version of hfs has {', '.join(known)}")
    if version > known[name].version:
        raise CodecError(
            f"written by version {version} of the codec {name}, and this version of hfs reads up to "
            f"{known[name].version}: install a newer hfs"
        )
    return known[name]


def choose(name: str, array: Array) -> Codec:
    """The codec of this name; "auto": cosmoflow for integers, deepcam for floats. Raises CodecError."""
    if name != "auto":
        return find(name)
    if array.dtype.kind in "iu":
        return find("cosmoflow")
    if array.dtype.kind == "f":
        return find("deepcam")
    raise CodecError(f"there is no codec for values of {array.dtype}: integers or floats can be encoded")
