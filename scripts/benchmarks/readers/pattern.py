"""Bytes that are computed from (file number, offset): a wrong byte tells where it came from.

For reader programs and for what makes their data; knows nothing of hfs.
"""

import numpy as np
import numpy.typing as npt

_WORD = 8
_FILE = 0x9E3779B97F4A7C15
_PLACE = np.uint64(0xBF58476D1CE4E5B9)
_VERSIONS = 1_000_000

LEAST_BYTES = 100_000
"""Of a file that has versions."""


def block(number: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
    """The bytes [offset, offset + size) of file `number`: uint8, shape (size,)."""
    first, last = offset // _WORD, -(-(offset + size) // _WORD)
    words = np.arange(first, last, dtype=np.uint64)
    words = (words + np.uint64(1)) * _PLACE ^ np.uint64((number + 1) * _FILE % (1 << 64))
    return words.view(np.uint8)[offset - first * _WORD : offset - first * _WORD + size]


def wrong_bytes(number: int, offset: int, data: bytes | memoryview) -> int:
    """How many of `data`, read from file `number` at `offset`, are not what they should be."""
    found = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero(found != block(number, offset, len(found))))


def version_block(number: int, version: int) -> npt.NDArray[np.uint8]:
    """All bytes of a version of file `number`, which is below a million."""
    return block(version * _VERSIONS + number, 0, _size_of(number, version))


def version_of(number: int, data: bytes, most: int) -> int | None:
    """Which version of file `number` this is, at most `most`; None: it is none of them, cut off, or a mixture."""
    for version in range(most, -1, -1):
        if len(data) == _size_of(number, version) and not wrong_bytes(version * _VERSIONS + number, 0, data):
            return version
    return None


def _size_of(number: int, version: int) -> int:
    """Each of the first thousands of versions has another one."""
    return LEAST_BYTES + (number * 7919 + version * 1543) % 4096
