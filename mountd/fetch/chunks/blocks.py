"""Blocks: what bypass reads brought around tiny reads, in memory, so that the next page of one costs no source read.

A page fault of a mapped database asks for 4 KiB, the source is asked for the 64 KiB block around it
(policies/prefetch/miss_policy.py). Its neighbours are often next (a slot of a B+ tree, then the record it points to),
and the pages on top (the first ones, branch pages) are wanted again whenever the kernel has let them go. Two bounded
parts: `recent`, where the oldest goes first, and `hot`, for blocks that were read from the source a second time, where
the one that was not asked for the longest goes first. So a job that goes through a large file once does not push the
hot ones out.

Blocks are numbered by offset // BLOCK_BYTES; the last one of a file may be shorter. Event loop
only; knows nothing of who reads.
"""

from __future__ import annotations

from collections import OrderedDict

from hfs.mountd.core.version import Version
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES

_MAX_REMEMBERED = 4096
"""Blocks of which it is remembered that they were read once: 256 MB of them, 200 bytes each."""

Key = tuple[Version, int]


class Blocks:
    """At most `limit_bytes`, half of it for each part."""

    def __init__(self, limit_bytes: int) -> None:
        self._each = limit_bytes // 2 // BLOCK_BYTES
        self._recent: OrderedDict[Key, memoryview] = OrderedDict()
        self._hot: OrderedDict[Key, memoryview] = OrderedDict()
        self._read_once: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent) + len(self._hot)

    def keep(self, version: Version, extent: Extent, data: memoryview) -> None:
        """Keep the blocks of `extent`, which begins at one and ends at one or at the end of the file."""
        for start in range(extent.start, extent.end, BLOCK_BYTES):
            key = version, start // BLOCK_BYTES
            block = data[start - extent.start : min(start + BLOCK_BYTES, extent.end) - extent.start]
            part = self._recent
            if key in self._read_once or key in self._hot:
                part = self._hot
                self._recent.pop(key, None)
            part[key] = block
            part.move_to_end(key)
            while len(part) > self._each:
                part.popitem(last=False)
            self._read_once[key] = None
            if len(self._read_once) > _MAX_REMEMBERED:
                self._read_once.popitem(last=False)

    def keep_if_whole(self, version: Version, extent: Extent, data: memoryview) -> memoryview:
        """`data`, the bytes of `extent`; kept if that is one or two blocks and no more."""
        whole = extent.end % BLOCK_BYTES == 0 or extent.end == version.size
        if extent.start % BLOCK_BYTES == 0 and whole and extent.size <= 2 * BLOCK_BYTES:
            self.keep(version, extent, data)
        return data

    def get(self, version: Version, extent: Extent) -> memoryview | None:
        """The bytes of an extent that lies in one block, if that is kept."""
        if not self._recent and not self._hot:
            return None
        number = extent.start // BLOCK_BYTES
        key = version, number
        block = self._hot.get(key)
        if block is None:
            block = self._recent.get(key)
            if block is None:
                return None
        else:
            self._hot.move_to_end(key)
        begin = number * BLOCK_BYTES
        if extent.end - begin > len(block):
            return None
        return block[extent.start - begin : extent.end - begin]

    def clear(self) -> None:
        """The memory is needed."""
        self._recent.clear()
        self._hot.clear()
