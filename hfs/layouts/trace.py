"""A trace: what `hfs-hint record` has kept of the reads of a mount, as a layout whose samples are the reads.

Besides what any layout has, its file says when which thread read, and how readers have waited for the source meanwhile:

    read_times    int64    microseconds of each read since the first, never less than that of the read before
    read_threads  int64    a number of the thread that read; 0: not known
    source_waits  int64    how often readers have waited for the source, and how many microseconds together

Reads of one thread that continue one another are one read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hfs.layouts.files import versions
from hfs.layouts.layout import Layout, packed, spread
from hfs.mountd.wire.layout import Integers, LayoutError

_Ints = npt.NDArray[np.int64]


class Read(NamedTuple):
    """One read, or the open of a small file: then all of it."""

    path: bytes
    """Relative to the mount."""
    offset: int
    size: int
    at_us: int = 0
    thread: int = 0


class SourceWaits(NamedTuple):
    """How readers have waited for the source."""

    waits: int = 0
    waited_us: int = 0

    def __sub__(self, before: SourceWaits) -> SourceWaits:
        """Since then."""
        return SourceWaits(self.waits - before.waits, self.waited_us - before.waited_us)


def waits_of(status: Mapping[str, Any]) -> SourceWaits:
    """Since the daemon of this status began; nothing, if it does not tell."""
    counters = status.get("counters") or {}

    def counted(name: str) -> int:
        return int((counters.get(name) or {}).get("value", 0))

    return SourceWaits(counted("source_waits"), counted("source_wait_ns") // 1000)


class Trace(Layout):
    """Made by `traced` and `load`; nothing of it changes then."""

    times_us: _Ints
    """Of each read."""
    threads: _Ints
    source_waits: SourceWaits

    def with_reads(self, times_us: _Ints, threads: _Ints, source_waits: SourceWaits) -> Self:
        """The same, which knows when which thread read. Raises LayoutError."""
        if len(times_us) != self.samples or len(threads) != self.samples:
            raise LayoutError("it has not one time and one thread for each read")
        if len(times_us) and (np.diff(times_us) < 0).any():
            raise LayoutError("its times go back")
        self.times_us, self.threads, self.source_waits = times_us, threads, source_waits
        return self

    def _arrays(self) -> dict[str, Integers]:
        return super()._arrays() | {
            "read_times": packed(self.times_us),
            "read_threads": packed(self.threads),
            "source_waits": np.array(self.source_waits),
        }

    @classmethod
    def _of(cls, read: dict[str, Integers]) -> Self:
        trace = super()._of(read)
        waits = read["source_waits"]
        if len(waits) != len(SourceWaits._fields) or min(waits) < 0:
            raise LayoutError("it has not two figures of waits")
        times_us, threads = (
            spread(read[name], trace.samples, trace.samples).astype(np.int64) for name in ("read_times", "read_threads")
        )
        return trace.with_reads(times_us, threads, SourceWaits(*map(int, waits)))


def traced(reads: Sequence[Read], root: str, waits: SourceWaits) -> Trace:
    """The trace of these reads of files below `root`, of which there is one at least."""
    numbers: dict[bytes, int] = {}
    threads: dict[int, int] = {0: 0}
    rows: list[list[int]] = []
    last: dict[int, list[int]] = {}
    for path, offset, size, at_us, thread in reads:
        file = numbers.setdefault(path, len(numbers))
        number = threads.setdefault(thread, len(threads))
        row = last.get(number)
        if row is not None and row[0] == file and row[1] + row[2] == offset and (number or row is rows[-1]):
            row[2] += size
        else:
            last[number] = row = [file, offset, size, at_us, number]
            rows.append(row)
    names = b"\0".join(numbers)
    sizes, mtimes = (np.array(values, np.int64) for values in versions(names, root))
    files, offsets, lengths, times_us, thread_numbers = np.array(rows, np.int64).T
    # A file that has gone or was cut since is taken as it was when it was read.
    np.maximum.at(sizes, files, np.where(sizes[files] < 0, offsets + lengths, 0))
    lengths = np.minimum(lengths, sizes[files] - offsets)
    kept = lengths > 0
    trace = Trace(
        names=names,
        file_sizes=sizes,
        file_mtimes_ns=mtimes,
        extents=files[kept],
        offsets=offsets[kept],
        sizes=lengths[kept],
        made_from="a recording",
    )
    times_us = np.maximum.accumulate(times_us[kept] - times_us[0])
    return trace.with_reads(times_us, thread_numbers[kept], waits)
