"""Bytes that are in memory and not readable from the cache disk yet: answered from here, so that none is fetched twice.

    landed    queued for the disk; held until they can be read from there
    unstaged  the cache did not take them: for a moment, since the next read of a sequential reader wants the other half
    soon      a hint says that they are read soon, and they are not worth a place on the disk
    blocks    what bypass reads brought around tiny reads (`blocks`)

All but `landed` are given up when a reader needs the memory. Never fetches, never writes.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict

import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.buffers import Buffers, ByteLRU
from hfs.mountd.core.errors import SourceTimeout
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES

ChunkKey = tuple[Version, int]

UNSTAGED_SHARE = 4
"""A quarter of the buffers keeps chunks that staging did not take: with the default two streams, each with the chunk it
reads and the next. They go at once when a reader needs the memory."""

_BLOCKS_SHARE = 16
"""128 blocks of the default 128 MiB: the branch pages of a database of several hundred gigabytes."""


_MAX_REMEMBERED = 4096
"""Blocks of which it is remembered that they were read once: 256 MB of them, 200 bytes each."""

Key = tuple[Version, int]


class Blocks:
    """What bypass reads brought around tiny reads, so that the next page of one costs no source read.

    A page fault of a mapped database asks for 4 KiB, the source is asked for the 64 KiB around it. Its neighbours are
    often next, and the pages on top (branch pages) are wanted again whenever the kernel has let them go. Two parts of
    half of `limit_bytes` each: `recent`, where the oldest goes first, and `hot`, for blocks that were read a second
    time, where the one not asked for the longest goes first: one pass through a large file does not push the hot ones
    out. Numbered by offset // BLOCK_BYTES; the last one of a file may be shorter.
    """

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


class ChunkMemory:
    """Event loop only. `time_limit_s`: how long a reader may wait for memory (infinite: for ever)."""

    def __init__(self, buffers: Buffers, *, time_limit_s: float) -> None:
        self._buffers = buffers
        self._time_limit_s = time_limit_s
        self._landed: dict[ChunkKey, memoryview] = {}
        self._unstaged: ByteLRU[ChunkKey] = ByteLRU(buffers.total_bytes // UNSTAGED_SHARE)
        self._soon: ByteLRU[ChunkKey] = ByteLRU(buffers.total_bytes // UNSTAGED_SHARE)
        self.blocks = Blocks(buffers.total_bytes // _BLOCKS_SHARE)

    def chunk(self, version: Version, index: int) -> memoryview | None:
        """The bytes of a chunk that has arrived and is not readable from staging yet."""
        key = (version, index)
        held = self._landed.get(key)
        if held is None:
            held = self._unstaged.get(key)
        return held if held is not None else self._soon.get(key)

    def has_landed(self, key: ChunkKey) -> bool:
        """Whether a chunk waits for the disk."""
        return key in self._landed

    def land(self, key: ChunkKey, data: memoryview) -> None:
        """A chunk is queued for the disk; `written` ends it."""
        self._landed[key] = data

    def written(self, key: ChunkKey) -> None:
        """A chunk can be read from the disk, or never will be."""
        self._landed.pop(key, None)

    def keep(self, key: ChunkKey, data: memoryview, *, soon: bool) -> None:
        """Keep a chunk that is not staged. `soon`: a hint says that it is read soon."""
        (self._soon if soon else self._unstaged).keep(key, data)

    def let_go(self, version: Version, index: int) -> None:
        """The reader for whom a chunk was held has had it."""
        self._soon.drop((version, index))

    async def take_urgent(self, size: int) -> memoryview:
        """A buffer of `size` bytes for a reader. What is kept only in case somebody wants it goes first.

        Raises SourceTimeout when the memory is held by reads that hang.
        """
        for give_up in (self._unstaged.clear, self.blocks.clear, self._soon.clear):
            if self._buffers.fits_nowait(whole_pages(size)):
                break
            give_up()
        with trio.move_on_after(self._time_limit_s):
            return await self._buffers.take(whole_pages(size), urgent=True)
        raise SourceTimeout("no memory: too many reads hang in the source")

    async def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes for what nobody waits for; waits until prefetch may have it."""
        return await self._buffers.take(whole_pages(size), urgent=False)


def whole_pages(size: int) -> int:
    """`size` bytes, rounded up."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
