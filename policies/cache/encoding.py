"""Encoding of what is staged: whether it is worth it, of a mount and of a chunk. Arithmetic only.

An encoded chunk takes less of the cache disk and costs a decode at each read, and its file cannot be handed to the
kernel. So it pays only where the cache is too small for the data: what it keeps then need not come from the source
again, which is slower than any decoder.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hfs.policies.cache.admission import blocks_bytes

EncodingWanted = Literal["none", "auto"]

_RAW, _ENCODED = 3, 2
"""Three blocks must become two, or fewer: below that a file loses passthrough for too little."""


class EncodingChoice(NamedTuple):
    """Whether a mount encodes what it stages, and why, for `hfs status`."""

    on: bool
    reason: str


def choose(wanted: EncodingWanted, *, data_bytes: int | None, capacity_bytes: int) -> EncodingChoice:
    """`data_bytes`: what this node would have to keep; None: more than that, or too much to tell. `capacity_bytes`:
    what its cache holds."""
    if wanted == "none":
        return EncodingChoice(False, "--stage-encoding none")
    if data_bytes is None:
        return EncodingChoice(True, "the data does not fit the cache, or there is too much of it to tell")
    if data_bytes > capacity_bytes:
        return EncodingChoice(True, "the data does not fit the cache")
    return EncodingChoice(False, "the data fits the cache, so its files can be handed to the kernel")


def pays(size_bytes: int, stored_bytes: int) -> bool:
    """Whether so many bytes are to be kept as so many: the disk gives whole blocks, so those count."""
    return _RAW * blocks_bytes(stored_bytes) <= _ENCODED * blocks_bytes(size_bytes)
