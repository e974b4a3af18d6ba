"""What a trace says of a job: its pieces, its epochs, how many read at a time, and what their reads have cost.

Opens no file but the trace. The k-th read of the same bytes belongs to epoch k; what the kernel has answered by itself
is not in a trace, so an epoch that has much less than the first is left out, and said so. What a trace does not tell is
None.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from hfs.layouts.trace import Trace
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError, ranges
from hfs.policies.cluster.placement import keys
from hfs.policies.simulation.pieces import Epoch, Pieces

_Ints = npt.NDArray[np.int64]

_WHOLE = 0.9
"""An epoch of the trace has at least this part of the reads of the first."""
_BETWEEN = 0.25
"""Where so many of the second reads come before the last first one, an epoch reads things several times."""
_IN_ORDER_PART = 16
"""Reads are in order where they step by less than a 16th of the files on average; random ones step by a third."""
_FEW_WAITS = 20
"""Of which no latency is taken."""
LARGE_BYTES = 1 << 20
"""Where what is fetched has more on average, bandwidth decides and not latency."""


@dataclass(frozen=True)
class Recorded:
    """One trace."""

    pieces: Pieces
    epochs: Sequence[Epoch]
    """At least one."""
    in_order: bool
    """Its files are read in the order of their names: later epochs are then the same; else they are drawn anew."""
    readers: int | None = None
    """That read at a time."""
    latency_s: float | None = None
    """Of one fetch, its bytes included."""
    source_rate: float | None = None
    """Bytes a second that the source gave in the first epoch; of large files only."""
    between_s: float | None = None
    """Between two reads of one reader, without waiting for the source: computing and the read itself."""
    notes: list[str] = field(default_factory=list)
    """For people."""

    @property
    def bytes(self) -> int:
        """Of all that is read, each piece once."""
        return int(self.pieces.sizes.sum())


def load(path: str) -> Trace:
    """The trace in a file. Raises ConfigError."""
    try:
        return Trace.load(path)
    except LayoutError as error:
        raise ConfigError(f"{error}; a trace is what `hfs-hint record -o TRACE` writes") from None


def recorded(trace: Trace, chunk_bytes: int) -> Recorded:
    """What it says, with large files in chunks of `chunk_bytes`."""
    _, files, offsets, sizes = trace.extents_of_each(np.arange(trace.samples))
    file_sizes = trace.file_sizes
    pieces, first_piece = _pieces(trace.files, file_sizes, chunk_bytes)
    ranks = _ranks(files, offsets)
    numbers, notes = _epochs(ranks)
    epochs = []
    for number in numbers:
        chosen = np.flatnonzero(ranks == number) if number >= 0 else np.arange(len(files))
        epochs.append(_accesses(files[chosen], offsets[chosen], sizes[chosen], first_piece, chunk_bytes))
    # Only what is read counts, of a large file too.
    read = np.zeros(len(pieces), bool)
    for epoch in epochs:
        read[epoch.pieces] = True
    pieces, epochs = pieces.some(read, epochs)
    named = np.argsort(np.argsort(np.array(trace.files, object)))
    steps = np.abs(np.diff(named[files[ranks == 0]]))
    in_order = len(steps) == 0 or float(steps.mean()) * _IN_ORDER_PART < max(_IN_ORDER_PART, len(named))
    return _with_costs(Recorded(pieces, epochs, in_order, notes=notes), trace, ranks)


def _pieces(names: Sequence[bytes], file_sizes: _Ints, chunk_bytes: int) -> tuple[Pieces, _Ints]:
    """All pieces of these files, and the number of the first of each file."""
    counts = np.maximum(1, -(-file_sizes // chunk_bytes))
    first = np.cumsum(counts) - counts
    indexes, files = ranges(np.zeros(len(counts), np.int64), counts)
    sizes = np.minimum(chunk_bytes, np.maximum(1, file_sizes[files]) - indexes * chunk_bytes)
    numbers: dict[bytes, int] = {}
    directories = [numbers.setdefault(posixpath.dirname(name), len(numbers)) for name in names]
    directory = np.where(counts > 1, -1, np.array(directories, np.int64))[files]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64, len(names))
    base = [posixpath.basename(name) for name in names]
    return Pieces(sizes, files, directory, [base[i] for i in files.tolist()], keys(hashes[files], indexes)), first


def _ranks(files: _Ints, offsets: _Ints) -> _Ints:
    """Which time it is that each read reads its bytes, from 0."""
    order = np.lexsort((np.arange(len(files)), offsets, files))
    same = np.zeros(len(files), bool)
    same[1:] = (np.diff(files[order]) == 0) & (np.diff(offsets[order]) == 0)
    places = np.arange(len(files))
    begins = np.maximum.accumulate(np.where(same, 0, places))
    found = np.empty(len(files), np.int64)
    found[order] = places - begins
    return found


def _epochs(ranks: _Ints) -> tuple[list[int], list[str]]:
    """Numbers of whole epochs, [-1] if all reads are one; and what is to be said of the others."""
    counts = np.bincount(ranks)
    whole = int(np.argmax(counts < _WHOLE * counts[0])) if (counts < _WHOLE * counts[0]).any() else len(counts)
    if whole == len(counts):
        return list(range(whole)), []
    last_first = int(np.flatnonzero(ranks == 0)[-1])
    again = np.flatnonzero(ranks == whole)
    if whole == 1 and float((again < last_first).mean()) > _BETWEEN:
        return [-1], ["an epoch reads some of its data several times: the whole trace is taken as one epoch"]
    part = counts[whole] / counts[0]
    left_out = f"epoch {whole + 1} of the trace has only {part:.0%} of the reads of the first and is left out: "
    return list(range(whole)), [left_out + "it was not recorded to its end, or the kernel has answered the rest"]


def _accesses(files: _Ints, offsets: _Ints, sizes: _Ints, first_piece: _Ints, chunk_bytes: int) -> Epoch:
    """Reads, cut at the borders of pieces."""
    begins = offsets // chunk_bytes
    indexes, of = ranges(begins, (offsets + sizes - 1) // chunk_bytes + 1)
    start = np.maximum(offsets[of], indexes * chunk_bytes)
    end = np.minimum(offsets[of] + sizes[of], (indexes + 1) * chunk_bytes)
    return Epoch(first_piece[files[of]] + indexes, end - start)


def _with_costs(found: Recorded, trace: Trace, ranks: _Ints) -> Recorded:
    spans_s, reads = _spans(trace.times_us, trace.threads)
    first_s = float(np.ptp(trace.times_us[ranks == 0])) / 1e6
    waits, waited_us = trace.source_waits
    total_s = float(np.ptp(trace.times_us)) / 1e6
    readers = max(1, round(sum(spans_s) / total_s)) if spans_s and total_s > 0 else None
    latency_s = waited_us / waits / 1e6 if waits >= _FEW_WAITS else None
    between_s = max(0.0, (sum(spans_s) - waited_us / 1e6) / reads) if reads else None
    rate = found.bytes / first_s if first_s > 0 and found.pieces.sizes.mean() > LARGE_BYTES else None
    return Recorded(found.pieces, found.epochs, found.in_order, readers, latency_s, rate, between_s, notes=found.notes)


def _spans(times_us: _Ints, threads: _Ints) -> tuple[list[float], int]:
    """Seconds from the first to the last read of each thread that is known, and how many reads lie between."""
    order = np.argsort(threads, kind="stable")
    order = order[threads[order] > 0]
    if not len(order):
        return [], 0
    begins = np.flatnonzero(np.diff(threads[order], prepend=0))
    ends = np.append(begins[1:], len(order)) - 1
    spans_s = (times_us[order[ends]] - times_us[order[begins]]) / 1e6
    return [span_s for span_s in spans_s.tolist() if span_s > 0], int((ends - begins).sum())


def later_epochs(found: Recorded, count: int) -> list[Epoch]:
    """`count` epochs: those of the trace, and then as many in the order of the last, or in orders that are drawn."""
    epochs = list(found.epochs[:count])
    random = np.random.default_rng(0)
    while len(epochs) < count:
        last = found.epochs[-1]
        order = np.arange(len(last.pieces)) if found.in_order else random.permutation(len(last.pieces))
        epochs.append(Epoch(last.pieces[order], last.sizes[order]))
    return epochs
