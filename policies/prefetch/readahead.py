"""Readahead: what one open file's readers will want next, guessed from the reads so far.

`read_path` calls `advise(pattern, read, file_size, limits)` once for each READ; `prefetch` fetches the windows it
returns. One handle may serve several readers at once (threads that share a descriptor, a shared mapping), so their
streams are told apart: a read that begins where a recent one ended continues a *chain*; a chain that has proved itself
becomes a *stream*, of which a handle has up to four.

- First read: unknown, wherever it lies (a header, or anything).
- Second contiguous read: sequential. The window doubles from one chunk to the limit while reads go on.
- Kernel readahead sends the requests of one stream a little out of order, and programs skip a little: near misses in
  front of and behind a stream's front belong to it. Reads that only go backwards do not.
- Equal distances between the starts of lone reads: strided, the next few records are the windows.
- Anything else: random, no window. `density` decides what such reads deserve.

A window is advised once. Windows of one handle's live streams never overlap, end at a chunk boundary or at the end of
the file, and never reach more than `max_window_bytes` past the reader. Whether the bytes are staged already is not
known here. Pure; never divides a read into chunks, never fetches.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hfs.policies.geometry import Extent

_MAX_STREAMS = 4
"""Streams of one handle. Each costs every read a comparison; more readers than this on one descriptor are random."""

_MAX_CHAINS = 16
"""Ends of lone reads that are remembered: four streams that begin at once, each four requests out of order."""

_NEAR_BYTES = 4 << 20
"""How far from a stream's front a read still belongs to it: kernel readahead has up to two windows of 1 MiB requests
under way (read_ahead_kb 1024), and as much again is allowed for small skips of the program."""

_MAX_STRAYS = 16
"""Reads behind the front without one at the front: a whole readahead window of 1 MiB in 64 KiB requests may arrive in
reverse. More means that the reader goes backwards."""

_STALE_READS = 64
"""A stream that none of the handle's last 64 reads continued gives way: near misses no longer count, it may be
replaced. Random reads would otherwise meet old streams by chance, and wake them."""

_STRIDE_REPEATS = 3
"""Equal distances in a row that make a stride; two happen by chance in any file with records of one size."""

_PAGE_BYTES = 4096
"""The kernel reads whole pages, so the starts of records that are no multiple of a page jitter by up to one."""

_NEVER = 1 << 63


class Kind(enum.Enum):
    """What a read was part of."""

    UNKNOWN = "unknown"
    SEQUENTIAL = "sequential"
    STRIDED = "strided"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Limits:
    """`chunk_bytes`: the unit of fetching. `max_window_bytes`: how far ahead of a reader, at least one chunk.

    Raises ValueError if the window is smaller than a chunk.
    """

    chunk_bytes: int = 8 << 20
    max_window_bytes: int = 64 << 20  # eight chunks: 500 MB/s at three streams of 200 MB/s, and as much in reserve
    unseen_bytes: int = 0
    """In a window that was advised, so many bytes in a row may have been read without our seeing it: they lay in the
    page cache already."""

    def __post_init__(self) -> None:
        if not 0 < self.chunk_bytes <= self.max_window_bytes:
            raise ValueError(f"a window of {self.max_window_bytes} bytes holds no chunk of {self.chunk_bytes}")


@dataclass(frozen=True, slots=True)
class Advice:
    """What the read was part of, and the extents to have fetched next: one if sequential, several if strided."""

    kind: Kind
    windows: tuple[Extent, ...] = ()


# The common answers, made once: most reads of a stream change nothing.
_UNKNOWN = Advice(Kind.UNKNOWN)
_SEQUENTIAL = Advice(Kind.SEQUENTIAL)
_STRIDED = Advice(Kind.STRIDED)
_RANDOM = Advice(Kind.RANDOM)


class _Stream:
    """One reader of the handle that goes forward.

    `base`: where its chain began. `front`: exclusive end of the furthest read. `tail`: exclusive end of the last read.
    `[asked_from, asked_to)`: what was advised. `trigger`: the front at which there is something to decide again.
    `gap_bytes`: recently skipped bytes that no late read has filled.
    """

    __slots__ = (
        *("asked_from", "asked_to", "base", "front", "gap_bytes", "grow_at", "last_read", "strays", "tail", "trigger"),
        "window_bytes",
    )

    def __init__(self, base: int, front: int, chunk_bytes: int, last_read: int) -> None:
        self.base = base
        self.front = front
        self.tail = front
        self.asked_from = front
        self.asked_to = front
        self.window_bytes = chunk_bytes
        self.grow_at = front + chunk_bytes // 4
        self.trigger = front
        self.gap_bytes = 0
        self.strays = 0
        self.last_read = last_read


class Pattern:
    """What the readers of one handle have been doing. Only `advise` changes it; about 2 KiB when full."""

    __slots__ = ("chains", "head", "origin", "proof_bytes", "reads", "record_bytes", "repeats", "streams", "stride")

    def __init__(self) -> None:
        self.reads = 0
        self.streams: list[_Stream] = []
        self.chains: dict[int, int] = {}
        """End of a lone read -> where its chain began."""
        self.proof_bytes = 0
        """Contiguous bytes that make a chain a stream; grows when streams turn out to be records of random reads."""
        self.head = 0
        self.origin = 0
        self.stride = 0
        self.repeats = 0
        self.record_bytes = 0


def advise(pattern: Pattern, read: Extent, file_size: int, limits: Limits) -> Advice:
    """Note `read` of a file of `file_size` bytes and say what will be wanted next.

    The windows are new: nothing that was advised for a live stream of this handle is advised again. A window that is
    not fetched is lost, the demand read finds its bytes missing. A read past the end of the file is unknown.
    """
    start = read.start
    end = min(read.end, file_size)
    if start >= end:
        return _UNKNOWN
    pattern.reads = now = pattern.reads + 1
    for stream in pattern.streams:
        if start == stream.tail or start == stream.front:
            return _follow(pattern, stream, start, end, file_size, limits)
    for stream in pattern.streams:
        if (
            -_NEAR_BYTES <= start - stream.front <= _NEAR_BYTES
            and start >= stream.base
            and now - stream.last_read <= _STALE_READS
            and start not in pattern.chains
        ):
            return _follow(pattern, stream, start, end, file_size, limits)
    return _alone(pattern, start, end, file_size, limits)


def _follow(pattern: Pattern, stream: _Stream, start: int, end: int, file_size: int, limits: Limits) -> Advice:
    """A read of `[start, end)` that belongs to `stream`, unless it shows that the stream is none."""
    jump = start - stream.front
    stream.last_read = pattern.reads
    if end > stream.front:
        # Skips so small that every chunk is still touched 32 times or more are free: alone, so many reads cost more
        # than the chunk. Larger ones may be half of what the stream covers.
        if jump > limits.chunk_bytes >> 5 and not (jump <= limits.unseen_bytes and start <= stream.asked_to):
            stream.gap_bytes += jump
            if stream.gap_bytes > max(stream.window_bytes >> 1, _NEAR_BYTES):
                _end(pattern, stream, limits)
                return _alone(pattern, start, end, file_size, limits)
        stream.front = stream.tail = end
        stream.strays = 0
        return _SEQUENTIAL if end < stream.trigger else _extend(pattern, stream, file_size, limits)
    if start != stream.tail:
        stream.gap_bytes = max(0, stream.gap_bytes - (end - start))
        stream.strays += 1
        if stream.strays > _MAX_STRAYS:
            _end(pattern, stream, limits)
            return _alone(pattern, start, end, file_size, limits)
    stream.tail = end
    return _SEQUENTIAL


def _extend(pattern: Pattern, stream: _Stream, file_size: int, limits: Limits) -> Advice:
    """Grow the window if its reader has earned it, and advise the whole chunks that it covers now."""
    chunk_bytes, front = limits.chunk_bytes, stream.front
    if front >= stream.grow_at and stream.window_bytes < limits.max_window_bytes:
        # A quarter of the window read: by then the reader has waited for one chunk only, so a full window stands
        # after 14 MiB, and a reader that stops after 1 MiB has cost no more than the chunk it was in.
        stream.window_bytes = min(2 * stream.window_bytes, limits.max_window_bytes)
        stream.grow_at = front + stream.window_bytes // 4
    window_bytes = stream.window_bytes
    stream.gap_bytes >>= 1
    target = front + window_bytes
    end = file_size if target >= file_size else target - target % chunk_bytes
    if front > stream.asked_to:
        stream.asked_from = stream.asked_to = front
    begin, end = _unasked(pattern, stream, stream.asked_to, end)
    advice = _SEQUENTIAL
    if begin < end:
        advice = Advice(Kind.SEQUENTIAL, (Extent(begin, end),))
        stream.asked_to = end
    else:
        stream.asked_to = begin
    if stream.asked_to >= file_size:
        stream.trigger = _NEVER
    else:
        stream.trigger = min(stream.asked_to + chunk_bytes - window_bytes, file_size - window_bytes)
        if window_bytes < limits.max_window_bytes:
            stream.trigger = min(stream.trigger, stream.grow_at)
    return advice


def _unasked(pattern: Pattern, stream: _Stream, begin: int, end: int) -> tuple[int, int]:
    """`[begin, end)` without what the other streams have asked for: its first free part."""
    others = sorted((o.asked_from, o.asked_to) for o in pattern.streams if o is not stream)
    for asked_from, asked_to in others:
        if asked_from <= begin < asked_to:
            begin = asked_to
        elif begin < asked_from < end:
            end = asked_from
    return begin, end


def _alone(pattern: Pattern, start: int, end: int, file_size: int, limits: Limits) -> Advice:
    """A read that belongs to no stream: it continues a chain, or begins one."""
    chains = pattern.chains
    strided = pattern.repeats >= _STRIDE_REPEATS
    base = chains.pop(start, None)
    if base is not None:
        length = end - base
        # Inside a stride, contiguous reads are the parts of one record, until they cover half of the distance.
        if length >= pattern.proof_bytes and not (strided and 2 * length < pattern.stride):
            advice = _begin(pattern, base, end, file_size, limits)
            if advice is not None:
                return advice
        elif length > pattern.record_bytes:
            pattern.record_bytes = length
        chains[end] = base
        return _STRIDED if strided else _RANDOM
    chains[end] = start
    if len(chains) > _MAX_CHAINS:
        del chains[next(iter(chains))]
    stride = start - pattern.head
    pattern.head = start
    if pattern.reads == 1:
        return _UNKNOWN
    if stride <= 0 or not -_PAGE_BYTES <= stride - pattern.stride <= _PAGE_BYTES:
        pattern.origin = start - stride
        pattern.stride = stride
        pattern.repeats = 1
        pattern.record_bytes = end - start
        return _RANDOM
    pattern.repeats += 1
    if pattern.repeats < _STRIDE_REPEATS:
        return _RANDOM
    if stride <= max(2 * (end - start), limits.chunk_bytes >> 5):
        chains.pop(end)
        return _begin(pattern, start, end, file_size, limits) or _RANDOM
    return _stride_ahead(pattern, start, end - start, file_size, limits)


def _stride_ahead(pattern: Pattern, start: int, size: int, file_size: int, limits: Limits) -> Advice:
    """The next records of a strided reader; as many as could each need a chunk of the window."""
    record_bytes = max(pattern.record_bytes, size)
    ahead = min(limits.max_window_bytes // limits.chunk_bytes, limits.max_window_bytes // record_bytes)
    # Once the first records are advised, each read adds the one that has come into reach.
    first = 1 if pattern.repeats == _STRIDE_REPEATS else ahead
    windows = []
    for step in range(first, ahead + 1):
        # The mean distance: one taken from the last two starts would be off by up to a page a step.
        begin = start + (start - pattern.origin) * step // pattern.repeats
        if begin >= file_size:
            break
        windows.append(Extent(begin, min(begin + record_bytes, file_size)))
    return Advice(Kind.STRIDED, tuple(windows)) if windows else _STRIDED


def _begin(pattern: Pattern, base: int, end: int, file_size: int, limits: Limits) -> Advice | None:
    """A chain from `base` has become a stream; None if the handle's streams are all in use."""
    streams = pattern.streams
    if len(streams) >= _MAX_STREAMS:
        oldest = min(streams, key=_last_read)
        if pattern.reads - oldest.last_read <= _STALE_READS:
            return None
        _end(pattern, oldest, limits)
    stream = _Stream(base, end, limits.chunk_bytes, pattern.reads)
    for other in streams:
        if other.asked_from <= end < other.asked_to:
            # A seek inside a window: this reader is worth what that one had earned.
            stream.window_bytes = other.window_bytes
    streams.append(stream)
    return _extend(pattern, stream, file_size, limits)


def _end(pattern: Pattern, stream: _Stream, limits: Limits) -> None:
    """Take a stream out, and learn from its length what the next one has to prove.

    Random samples of several requests each look like streams that soon end. Two such cost two chunks, then a chain must
    be twice as long as they were. A stream that was worth its chunk restores the quick start.
    """
    pattern.streams.remove(stream)
    length = stream.front - stream.base
    if length >= limits.chunk_bytes >> 1:
        pattern.proof_bytes = 0
    else:
        pattern.proof_bytes = min(max(pattern.proof_bytes, 2 * length), limits.chunk_bytes >> 1)


def _last_read(stream: _Stream) -> int:
    return stream.last_read
