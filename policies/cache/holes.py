"""Where a file has no data: whether it is worth looking, and what of a chunk is to be written. Pure functions.

A block of zeros that is not written reads as zeros, and takes no room. Only files that have holes at the source are
looked at: to look costs time, and others seldom have such blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.geometry import Extent

_SECTOR_BYTES = 512
"""Unit of st_blocks, whatever the file system."""

_BETWEEN_BLOCKS = 16
"""Zeros are written where fewer blocks than these lie between two pieces of data: a write more costs as much."""


def is_sparse(size_bytes: int, sectors: int, chunk_bytes: int) -> bool:
    """Whether a file of several chunks lacks more than one of them at the source, which says it has so many sectors."""
    return size_bytes - sectors * _SECTOR_BYTES > chunk_bytes


def may_have_holes(size_bytes: int, sectors: int) -> bool:
    """Whether such a file lacks a block at least."""
    return size_bytes - sectors * _SECTOR_BYTES >= BLOCK_BYTES


def seek(data: Sequence[Extent], size_bytes: int, offset: int, *, hole: bool) -> int | None:
    """What SEEK_HOLE, or else SEEK_DATA, gives in a file that has data only there (ascending, none touch); None:
    ENXIO."""
    if not 0 <= offset < size_bytes:
        return None
    index = bisect_right(data, offset, key=lambda extent: extent.end)
    extent = data[index] if index < len(data) else Extent(size_bytes, size_bytes)
    if hole:
        return extent.end if extent.start <= offset else offset
    return max(extent.start, offset) if extent.start < size_bytes else None


def pieces_of(data: Sequence[Extent]) -> list[Extent]:
    """What may be written at most, in whole blocks, of a file that has data only there: ascending, none touch."""
    found: list[Extent] = []
    for extent in data:
        start, end = extent.start // BLOCK_BYTES * BLOCK_BYTES, blocks_bytes(extent.end)
        if found and start - found[-1].end < _BETWEEN_BLOCKS * BLOCK_BYTES:
            found[-1] = Extent(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Extent(start, end))
    return found


def data_of(data: memoryview) -> list[Extent] | None:
    """The pieces of it that are not blocks of zeros, whole blocks but for its end; None: it has no such block."""
    blocks = len(data) // BLOCK_BYTES
    if not blocks:
        return None
    words = np.frombuffer(data[: blocks * BLOCK_BYTES], np.uint64).reshape(blocks, BLOCK_BYTES // 8)
    may_be = np.flatnonzero(words[:, 0] == 0)
    zeros = may_be[~words[may_be].any(axis=1)] if len(may_be) else may_be
    if not len(zeros):
        return None
    is_data = np.ones(blocks + (blocks * BLOCK_BYTES < len(data)), bool)
    is_data[zeros] = False
    found: list[Extent] = []
    for block in np.flatnonzero(is_data).tolist():
        start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, len(data))
        if found and start - found[-1].end < _BETWEEN_BLOCKS * BLOCK_BYTES:
            found[-1] = Extent(found[-1].start, end)
        else:
            found.append(Extent(start, end))
    return found


def hole_blocks(size_bytes: int, pieces: Sequence[Extent]) -> int:
    """How many blocks fewer a chunk takes of which only these are written."""
    return (blocks_bytes(size_bytes) - sum(blocks_bytes(piece.size) for piece in pieces)) // BLOCK_BYTES
