"""The codec: what stands on the cache disk for a chunk that shrinks, and how its bytes come back.

This is the only file of the cache that knows how. The others know that some chunks are stored in fewer bytes than they
have (`stored_bytes`): the writer gives a chunk to a `Shrinker`, whoever reads an object gives what it found to
`expand`, and the index keeps the number.

A general lossless codec: Blosc (bits shuffled by the size of an element, then LZ4), from numcodecs, which lets other
threads run while it works. It needs no knowledge of formats: raw arrays of whatever file shrink by what their elements
have in common, and what does not shrink stays as it is. What stands on the disk:

    magic, bytes of the chunk, xxh3_64 of the rest (16 bytes)     what Blosc made of it, with its own header

The checksum is looked at before the decoder sees a byte, so the decoder, which is C, is only ever given what the
encoder wrote. The checksum of the chunk itself, which the index holds, is verified by whoever asked.

Works in threads and does no I/O. numcodecs is imported when the first chunk is encoded or decoded, and not at all where
nothing is encoded.
"""

from __future__ import annotations

import errno
import mmap
import struct
from dataclasses import dataclass
from types import ModuleType

import xxhash

from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.core.errors import ConfigError
from hfs.policies.cache.admission import blocks_bytes
from hfs.policies.cache.encoding import EncodingChoice, pays

UNDECIDED = 0
RAW = -1
"""In place of the bytes of an element: nothing of the file was tried yet; it does not shrink, and is not tried."""

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"hfe1"

_ELEMENTS = (2, 4, 8, 1)
"""Bytes of an element that are tried, the most frequent in training data first (int16, float32, ...)."""

_SAMPLE_BYTES = 64 << 10
"""What is tried of a file, once for each size of an element: 0.2 ms in all, a tenth of what a large chunk takes."""

_ALIGNED_BYTES = 64
"""Arrays begin at multiples of this in .npy files, and at multiples of every element in HDF5."""

_LEVEL = 5
"""CosmoFlow-like counts shrink 5.4, 5.6 and 5.8 times at levels 1, 5 and 9; the last takes a sixth longer."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What is to be written for a chunk."""

    data: memoryview
    """Whole blocks, aligned for O_DIRECT: the stored bytes, then zeros."""
    stored_bytes: int
    element_bytes: int
    """By which its bits were shuffled."""


class Shrinker:
    """Encodes chunks. May be used by several threads at a time."""

    def __init__(self) -> None:
        """Raises ConfigError without numcodecs, or with one that is too old or does not work here."""
        try:
            self._blosc = _library()
            self._pack(memoryview(bytes(_SAMPLE_BYTES)), _ELEMENTS[0])
        except Exception as error:  # noqa: BLE001 - whatever a broken installation may raise, and better now
            raise ConfigError(
                f"stage-encoding: auto needs numcodecs >= 0.16 ({error}); pip install 'numcodecs>=0.16.1', "
                "or leave --stage-encoding at none"
            ) from None

    def shrink(self, data: memoryview, element_bytes: int) -> Shrunk | None:
        """The chunk `data` as it is to be stored; None: as it is. `element_bytes`: what its file was found to be
        made of, or UNDECIDED."""
        if element_bytes == RAW or not pays(len(data), _HEAD.size):
            return None
        try:
            if element_bytes == UNDECIDED:
                element_bytes = self._element_bytes(data)
            if element_bytes == RAW:
                return None
            packed = self._pack(data, element_bytes)
            stored_bytes = _HEAD.size + len(packed)
            if not pays(len(data), stored_bytes):
                return None
            room = memoryview(mmap.mmap(-1, blocks_bytes(stored_bytes)))
        except (RuntimeError, ValueError, OSError, MemoryError):
            return None  # staged as it is, which is always right
        _HEAD.pack_into(room, 0, _MAGIC, len(data), xxhash.xxh3_64_intdigest(packed))
        room[_HEAD.size : stored_bytes] = packed
        return Shrunk(room, stored_bytes, element_bytes)

    def _element_bytes(self, data: memoryview) -> int:
        """What the chunk seems to be made of, by what shrinks a piece from its middle most; RAW if nothing does."""
        start = max(0, len(data) - _SAMPLE_BYTES) // 2 // _ALIGNED_BYTES * _ALIGNED_BYTES
        sample = data[start : start + _SAMPLE_BYTES]
        packed = {element_bytes: len(self._pack(sample, element_bytes)) for element_bytes in _ELEMENTS}
        best = min(packed, key=lambda element_bytes: packed[element_bytes])
        return best if pays(len(sample), packed[best]) else RAW

    def _pack(self, data: memoryview, element_bytes: int) -> bytes:
        packed: bytes = self._blosc.compress(
            data, b"lz4", _LEVEL, shuffle=self._blosc.BITSHUFFLE, typesize=element_bytes
        )
        return packed


class Shrinking:
    """Whether what is staged from now on is encoded. What is encoded already can be read in any case."""

    def __init__(self) -> None:
        self.choice = EncodingChoice(False, "not asked for")
        self.shrinker: Shrinker | None = None
        """None: everything is written as it is."""

    def choose(self, choice: EncodingChoice, shrinker: Shrinker | None) -> None:
        """Encode what is staged from now on, if `choice` says so."""
        self.choice = choice
        self.shrinker = shrinker if choice.on else None


def expand(stored: bytearray, size: int) -> bytearray:
    """The `size` bytes that `stored` stands for; it is as long as what was stored.

    Raises Damaged if it is not what was encoded, and OSError (ENOSYS) without numcodecs. The caller compares the
    checksum of what comes back.
    """
    try:
        magic, found, checksum = _HEAD.unpack_from(stored)
    except struct.error as error:
        raise Damaged(errno.EIO, f"not an encoded chunk: {error}") from None
    packed = memoryview(stored)[_HEAD.size :]
    if magic != _MAGIC or found != size or xxhash.xxh3_64_intdigest(packed) != checksum:
        raise Damaged(errno.EIO, "wrong checksum of an encoded chunk")
    try:
        blosc = _library()
    except Exception as error:  # noqa: BLE001 - one built for another NumPy raises ValueError, and no read may end the mount
        raise OSError(
            errno.ENOSYS, f"it is encoded and needs numcodecs: pip install 'numcodecs>=0.16.1' ({error})"
        ) from None
    data = bytearray(size)
    try:
        blosc.decompress(packed, data)
    except (RuntimeError, ValueError) as error:
        raise Damaged(errno.EIO, f"the decoder refuses an encoded chunk: {error}") from None
    return data


def _library() -> ModuleType:
    """numcodecs' Blosc. Raises ImportError, and whatever else a broken installation does."""
    from numcodecs import blosc  # type: ignore[import-untyped]  # it has no types

    # Each call with a context of its own, in the thread that calls: the daemon has threads enough.
    blosc.use_threads = False
    module: ModuleType = blosc
    return module
