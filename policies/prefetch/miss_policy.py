"""Density: what a read that misses deserves, an extent of its own or a whole chunk, and when the file should be filled.

A small read alone costs about 1 ms, a chunk of 8 MiB 42 ms at 200 MB/s: a job that looks at 100 samples of a huge
file must not pay for chunks, one that reads all samples of a file must not pay for each alone. Nobody says in advance
which it is, so this is ski rental, by file: reads alone are the rent, and what they have cost so far decides.

`read_path` keeps one `MissPolicy` for each large file (all its handles together) and asks `missed(...)` at every READ
whose bytes are not here, also if their chunk is on the way: CHUNK then means to wait for it, BYPASS not to. It does at
once what `fetch` says, and hands `follow` to `prefetch`, which ignores a request that it already has. The stages, each
entered once and never left as long as nothing is evicted:

1. The first touches are fetched alone. 4 touches of one chunk are a cluster (a tree node, a metadata block): the next
   reader finds the chunk, which follows in the background.
2. One touch for 2 missing chunks: the rest of the file is filled in the background, in file order. Misses are still
   fetched alone, also from chunks on the way: the fill costs its reader nothing, so a job that stops here has lost no
   time.
3. Two touches for each missing chunk, or alone as many bytes as 0.67 % of the missing ones: now a miss is worth its
   chunk. It waits for the fill if that gets there soon, so that the source is read in file order: many readers that
   fetch each their own chunk turn a sweep into random reads, and no reader is faster for it, since all of the file is
   needed. One chunk in 16 is fetched out of order all the same, for readers that stay in one place for a while, and any
   that the fill will not reach soon. This bounds what is read twice, and the number of requests.

A file that is read in groups of neighbours when it begins to be filled is read so to the end: a miss brings its chunk
and those around it. A sequential stream gets chunks from its second read on, and is no touch. Where nothing can be
staged, whole chunks are for sequential streams alone. Where a hint schedules every chunk nothing follows: reads are
fetched alone as long as that costs a few per cent of what has come, and then wait for their chunk. Pure; never knows
which chunks are present: the caller says how many are missing.

The figures (20 GB file, 100 reads; 1.5 GB file, 80 000 reads; 64 files; 10 000 files; skewed and clustered reads) are
simulated in tests/policies/prefetch/test_density.py.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from hfs.policies.geometry import Extent

_PAGE_BYTES = 4096
BLOCK_BYTES = 64 << 10
"""Reads below 16 KiB are metadata or tiny records, which lie in clusters: their 64 KiB block costs 1.3 ms instead of
1.0, so it pays when one block in three is used again. Samples of 16 KiB and more are rarely neighbours in time."""
TINY_BYTES = 16 << 10

_SMALL_CHUNK_BYTES = 256 << 10
"""Chunks so small that their transfer costs no more than the round trip: alone would save nothing."""

_CLUSTER_TOUCHES = 4
"""Uniform random touches up to the fill (half a touch a chunk) hit one chunk 4 times in 1 of 570 cases (3 times in 1 of
70, 2 times in 1 of 11: over a set of large files that is more bytes than all touches together). A cluster gets there
for a tenth of the chunk's price; waiting for 8 made the skewed simulations slower by a tenth and read as much."""

_GROUP_TOUCHES = 4
"""Touches for each touched chunk of a file that is read in groups of neighbours, when it begins to be filled. Uniform
random ones are 2.3 at most by the time when they wait for the fill. A group lies in two or three chunks, of which each
was waited for with nothing else under way: an epoch of groups took 9.8 s, with those around it 8.7."""

_CHUNKS_PER_TOUCH_FILL = 2
"""When to read a whole file in the background. Between 1 and 4 the time of no simulated job changed by more than 4 %: a
job that reads everything gets here in 1 % of its time, since its touches are fetched alone. 4 read 3 times the bytes of
2 for 600 reads of 20 GB, to no use; 1 lets clusters of 4 appear by chance."""

_TOUCHES_PER_CHUNK_NOW = 2
"""A miss that waits for its chunk costs 40 times one fetched alone, so this is what a job of middling length feels: at
1/4, 1000 to 2000 reads of 20 GB took 20 times direct; at 2 up to 4000 reads take 1.2 times, the worst (6000) 6 times.
More is not affordable: 80 000 reads of a 1.5 GB file must be 40 times fewer requests of 1 MiB, so at most 550 alone."""

_BYTES_SHARE_NOW = 150
"""0.67 %: a third of what may be read twice at most (the whole file with 1.02 of its bytes), the rest is for first
reads. With the 64 KiB blocks of page faults 0.85 of them for each chunk of 8 MiB, so a mean request above 4 MiB."""

_OUT_OF_ORDER_SHARE = 16
"""One chunk in 16: with one in 8 the source saw fewer than 9 of 10 requests behind the one before."""

PATIENCE_S = 30.0
"""How far off the fill may be to be waited for: a file of 1.5 GB at 50 MB/s, the worst source that is measured here.
Uniform random readers wait for all of a file in any case. Others must not wait for long where it is huge."""

_PLANNED_FIRST_BYTES = 4 << 20
"""200 samples of 20 KB: what a reader can take one after the other until the first chunks are here (0.15 s)."""

_PLANNED_PERCENT = 5
"""Of what has come. A random reader of a file that comes at the source's bandwidth is held by that anyway; this lets it
go on meanwhile, for a twentieth of the bandwidth."""

_PLANNED_SOON_PARTS = 16
"""A sixteenth of 8 MiB are 27 samples of 19 KB: one after the other they take as long as the chunk."""

_SWEPT_TOUCHES = 16
"""Records below 16 KiB in a sweep: of 400 000 at random no reader gets further than some hundred before nearly all is
here, however many it reads alone, and each of those is a seek for the source. This opens a database (its first pages,
the way from the root to a leaf) for each of some readers."""

_MAX_COUNTED_CHUNKS = 4096
"""Chunks whose touches are counted. Past it (a file of more than 128 GiB at 8 MiB) the counts start again."""


class Fetch(enum.Enum):
    """What to fetch now, for the reader that waits."""

    BYPASS = "bypass"
    CHUNK = "chunk"
    WAIT_FOR_SWEEP = "swept"
    """Nothing: a plan fetches the chunk soon, with all others in the order of the file."""
    WAIT_FOR_FILL = "filled"
    """Nothing: the fill brings the chunk soon."""


class Follow(enum.Enum):
    """What to fetch behind it, in the background. FILL: every missing chunk of the file, in file order."""

    NOTHING = "nothing"
    CHUNK = "chunk"
    FILL = "fill"
    FILL_AROUND = "around"
    """The same, and before it the chunks on both sides."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """What a hint says of the chunk of a missed read."""

    soon_bytes: int
    """How much of the chunk is read about now."""
    sample_bytes: int
    swept: bool
    """It comes in the order of the file with many others, which all are needed as soon as this one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one missed read deserves."""

    fetch: Fetch
    follow: Follow


_BYPASS = Decision(Fetch.BYPASS, Follow.NOTHING)
_BYPASS_THEN_CHUNK = Decision(Fetch.BYPASS, Follow.CHUNK)
_BYPASS_THEN_FILL = Decision(Fetch.BYPASS, Follow.FILL)
_CHUNK = Decision(Fetch.CHUNK, Follow.NOTHING)
_SWEPT = Decision(Fetch.WAIT_FOR_SWEEP, Follow.NOTHING)
_CHUNK_THEN_FILL = Decision(Fetch.CHUNK, Follow.FILL)
_FILLED = Decision(Fetch.WAIT_FOR_FILL, Follow.FILL)
_CHUNK_OF_GROUP = Decision(Fetch.CHUNK, Follow.FILL_AROUND)


class MissPolicy:
    """How densely one file has been touched. Bounded memory: two sums and a count for each touched chunk."""

    def __init__(self, file_size: int, chunk_bytes: int) -> None:
        self._file_size = file_size
        self._chunk_bytes = chunk_bytes
        self._whole = file_size <= chunk_bytes or chunk_bytes <= _SMALL_CHUNK_BYTES
        self._by_chunk: dict[int, int] = {}
        self._touched = 0
        self._in_groups = False
        self._out_of_order = 0
        self.touches = 0
        self.bypass_bytes = 0

    def missed(
        self,
        read: Extent,
        *,
        sequential: bool,
        missing_chunks: int,
        can_stage: bool,
        scheduled: ScheduledChunk | None = None,
        coming: bool = False,
        filled_in_s: float = math.inf,
    ) -> Decision:
        """What to do for `read`, whose bytes are neither here nor on the way; counts it as a touch.

        `sequential`: readahead says so. `missing_chunks`: chunks of the file that are not present. `can_stage`: one
        chunk more would be admitted. `scheduled`: what a hint says of the chunk. A read that starts in one chunk and
        ends in the next is a touch of the first.
        """
        size = read.end - read.start
        if self._whole or sequential or 2 * size >= self._chunk_bytes:
            return _CHUNK
        if scheduled is not None:
            return self._missed_scheduled(size, missing_chunks, scheduled)
        if not can_stage:
            return _BYPASS
        self.touches = touches = self.touches + 1
        missing_bytes = missing_chunks * self._chunk_bytes
        # bypass_bytes is what the reads before this one have cost, so the first touch of any file is fetched alone.
        dear = self.bypass_bytes * _BYTES_SHARE_NOW >= missing_bytes
        few = touches <= _TOUCHES_PER_CHUNK_NOW * missing_chunks
        dear = dear or not few
        is_filled = dear or (touches * _CHUNKS_PER_TOUCH_FILL >= missing_chunks and touches > 1)
        index = read.start // self._chunk_bytes
        if few:
            count = self._by_chunk[index] = self._by_chunk.get(index, 0) + 1
            self._touched += count == 1
            self._in_groups |= is_filled and touches >= _GROUP_TOUCHES * self._touched
        if is_filled and self._in_groups:
            return _CHUNK_OF_GROUP
        if dear:
            return _CHUNK_THEN_FILL if coming else self._chunk_now(missing_chunks, filled_in_s)
        self.bypass_bytes += _bypass_bytes(size)
        if is_filled:
            return _BYPASS_THEN_FILL
        if self._by_chunk[index] >= _CLUSTER_TOUCHES:
            return _BYPASS_THEN_CHUNK
        if len(self._by_chunk) > _MAX_COUNTED_CHUNKS:
            self._by_chunk.clear()
        return _BYPASS

    def _chunk_now(self, missing_chunks: int, filled_in_s: float) -> Decision:
        """A chunk that is wanted now: by the fill, or before it."""
        if filled_in_s <= PATIENCE_S:
            had_chunks = -(-self._file_size // self._chunk_bytes) - missing_chunks
            if (self._out_of_order + 1) * _OUT_OF_ORDER_SHARE > had_chunks:
                return _FILLED
            self._out_of_order += 1
        return _CHUNK_THEN_FILL

    def _missed_scheduled(self, size: int, missing_chunks: int, scheduled: ScheduledChunk) -> Decision:
        """All of the file is coming, so what is read alone is read twice: a few per cent of what has come already.

        Where much of the chunk is read now, as in groups of neighbouring samples, waiting for it is the shortest way.
        """
        if scheduled.swept and scheduled.sample_bytes < TINY_BYTES:
            dear = self.bypass_bytes >= _SWEPT_TOUCHES * BLOCK_BYTES
        else:
            had_bytes = max(0, self._file_size - missing_chunks * self._chunk_bytes)
            dear = self.bypass_bytes * 100 > _PLANNED_FIRST_BYTES * 100 + had_bytes * _PLANNED_PERCENT
        if dear or scheduled.soon_bytes * _PLANNED_SOON_PARTS >= self._chunk_bytes:
            return _SWEPT if scheduled.swept else _CHUNK
        self.bypass_bytes += _bypass_bytes(size)
        return _BYPASS


def bypass_extent(read: Extent, file_size: int) -> Extent:
    """What to read from the source for a read that is fetched alone: whole pages, or whole blocks around tiny reads.

    Holds `read` as far as the file goes, starts at a page boundary, ends at one or at the end of the file. At most
    128 KiB for reads below 16 KiB, else at most two pages more than the read.
    """
    unit = BLOCK_BYTES if read.end - read.start < TINY_BYTES else _PAGE_BYTES
    start = read.start - read.start % unit
    end = -(-read.end // unit) * unit
    return Extent(start, end if end < file_size else max(start, file_size))


def _bypass_bytes(size: int) -> int:
    return BLOCK_BYTES if size < TINY_BYTES else size + _PAGE_BYTES
