"""What `hfs trace simulate` works with: the rates and where each is from, the mounts to try, what they come to, and
which is worth having. Simulates nothing by itself: `policies.simulation` does.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hfs.layouts.trace import Trace
from hfs.mountd.core.config.key import parse_count, parse_duration, parse_size
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError, ranges
from hfs.planning.planning import Given
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.cluster.placement import keys
from hfs.policies.simulation.job import simulate
from hfs.policies.simulation.node import WAYS, Epoch, EpochOutcome, Pieces, Rates, SimulatedMount

PARTS = (0.25, 0.5, 0.75, 1.0)
"""Of the data: the caches that are tried where none is given."""

MOST_NODES = 64
"""All nodes are simulated, each with its cache."""

LOOK_PART = 0.5
"""Of a fetch: what it takes to ask the source whether a small file is what it was."""

PEER_RATE = 12.5e9
PEER_S = 0.001
"""As in `hfs plan`: one link of 100 Gbit/s for all nodes together."""

_WORTH = 0.05
"""Less of an epoch is not worth a larger cache, or another way."""
_GAIN = 0.02


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
    """What a trace says of a job: its pieces, its epochs, how many read at a time, and what their reads have cost.

    Opens no file but the trace. The k-th read of the same bytes belongs to epoch k; what the kernel has answered by
    itself is not in a trace, so an epoch that has much less than the first is left out, and said so. What a trace does
    not tell is None.

    One trace.
    """

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


@dataclass(frozen=True)
class SimulationInputs:
    """Of one simulation. Seconds, and bytes a second; infinite: no limit."""

    latency_s: Given
    source_rate: Given
    between_s: Given
    readers: Given

    @property
    def rates(self) -> Rates:
        """For the simulation."""
        return Rates(
            latency_s=self.latency_s.value,
            source_rate=self.source_rate.value,
            look_s=self.latency_s.value * LOOK_PART,
            compute_s=self.between_s.value,
            peer_rate=PEER_RATE,
            peer_s=PEER_S,
        )

    def shown(self) -> dict[str, dict[str, Any]]:
        """For JSON; what is infinite is null."""
        return {
            name: {**asdict(given), "value": given.value if math.isfinite(given.value) else None}
            for name, given in vars(self).items()
        }


def inputs_of(found: Recorded, given: Mapping[str, Given]) -> SimulationInputs:
    """`given` (given or measured) first, then what the trace tells. Raises ConfigError for what neither has."""
    recorded = {
        "latency_s": found.latency_s if found.source_rate is None else 0.0,
        "source_rate": found.source_rate,
        "between_s": found.between_s,
        "readers": found.readers,
    }
    assumed = {"source_rate": Given(math.inf, "assumed", "no limit"), "readers": Given(1, "assumed")}
    assumed["between_s"] = Given(0.0, "assumed", "readers do nothing but read")
    notes = {"source_rate": "what SOURCE gave in the first epoch"}
    values = {}
    for name, value in recorded.items():
        from_trace = None if value is None else Given(float(value), "recorded", notes.get(name, ""))
        chosen = given.get(name) or from_trace or assumed.get(name)
        if chosen is None:
            raise ConfigError(
                "the trace does not say how long SOURCE takes, since hardly anybody waited for it: give "
                "--source-latency, or --measure SOURCE"
            )
        values[name] = chosen
    return SimulationInputs(**values)


def mount_of(options: Iterable[str]) -> tuple[SimulatedMount, int]:
    """A mount with these `-o` options, and its chunks in bytes. Raises ConfigError."""
    mount, chunk_bytes = SimulatedMount(0), 8 << 20
    for name, text in (part.partition("=")[::2] for option in options for part in option.split(",") if part):
        try:
            if name == "ttl":
                mount = replace(mount, ttl_s=parse_duration(text))
            elif name == "immutable" and not text:
                mount = replace(mount, ttl_s=math.inf)
            elif name == "siblings":
                mount = replace(mount, siblings_bytes=parse_size(text))
            elif name == "buffer":
                mount = replace(mount, buffer_bytes=parse_size(text))
            elif name == "prefetch-threads":
                mount = replace(mount, fetches_ahead=max(1, 2 * parse_count(text)))
            elif name == "chunk":
                chunk_bytes = parse_size(text)
                if not 1 << 16 <= chunk_bytes <= 1 << 26 or chunk_bytes & (chunk_bytes - 1):
                    raise ValueError(text)
            else:
                raise ConfigError(
                    f"-o {name}: only what makes a difference here: ttl, immutable, siblings, buffer, "
                    "prefetch-threads, chunk"
                )
        except (ValueError, TypeError):
            raise ConfigError(f"-o {name} is {text!r}: give it as to hfs mount") from None
    return mount, chunk_bytes


def fits_bytes(pieces: Pieces) -> int:
    """The cache size from which on all of it stays: with what each file takes besides, and what is granted ahead."""
    room = sum(map(blocks_bytes, pieces.sizes.tolist())) + object_overhead_bytes(1) * len(set(pieces.files.tolist()))
    size = room + BLOCK_BYTES
    while size - grant_bytes(size) < room:
        size = room + grant_bytes(size) + BLOCK_BYTES
    return size


@dataclass(frozen=True)
class Row:
    """One mount, and what its epochs come to."""

    way: str
    nodes: int
    cache_bytes: int
    outcomes: Sequence[EpochOutcome]

    @property
    def later(self) -> Sequence[EpochOutcome]:
        """Epochs after the first; if there is only one, that."""
        return self.outcomes[1:] or self.outcomes

    @property
    def later_s(self) -> float:
        """Of an epoch after the first, on average."""
        return sum(outcome.seconds for outcome in self.later) / len(self.later)

    @property
    def hit_share(self) -> float:
        """The same."""
        return sum(outcome.hit_share for outcome in self.later) / len(self.later)

    def shown(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "eviction": self.way,
            "nodes": self.nodes,
            "cache_bytes": self.cache_bytes,
            "hit_share": round(self.hit_share, 4),
            "first_s": round(self.outcomes[0].seconds, 3),
            "later_s": round(self.later_s, 3),
            "epochs": [{**asdict(outcome), "hit_share": round(outcome.hit_share, 4)} for outcome in self.outcomes],
        }


def rows(
    found: Recorded,
    inputs: SimulationInputs,
    mount: SimulatedMount,
    *,
    cache_sizes: Sequence[int],
    ways: Sequence[str],
    nodes: Sequence[int],
    epochs: int,
) -> Iterator[Row]:
    """Each combination, as it is simulated."""
    orders = later_epochs(found, epochs)
    readers = max(1, round(inputs.readers.value))
    for way in ways:
        for count in nodes:
            for size in cache_sizes:
                one = replace(mount, cache_bytes=size, way=way, nodes=count, readers=readers)
                yield Row(way, count, size, simulate(found.pieces, orders, one, inputs.rates))


def recommended(made: Sequence[Row]) -> Row:
    """The least that has the shortest epochs, or hardly longer ones: the fewest nodes, then the smallest cache, then
    the way that asks for least."""
    best_s = min(row.later_s for row in made)
    near = [row for row in made if row.later_s <= best_s * (1 + _WORTH)]
    return min(near, key=lambda row: (row.nodes, row.cache_bytes, WAYS.index(row.way)))


def advice(made: Sequence[Row], row: Row, whole_bytes: int, size: Callable[[float], str]) -> list[str]:
    """What to tell of `row`, which is recommended. `whole_bytes`: the cache that all fits. `size`: bytes as text."""
    nodes = f" on {row.nodes} nodes" if row.nodes > 1 else ""
    said = [f"recommended: {size(row.cache_bytes)}, {row.way}{nodes}"]
    larger = [each for each in made if (each.way, each.nodes) == (row.way, row.nodes)]
    if row.cache_bytes < max(each.cache_bytes for each in larger):
        said.append(f"more than {size(row.cache_bytes)} gives nothing")
    need_bytes = -(-whole_bytes // row.nodes) if row.nodes > 1 else whole_bytes
    if row.hit_share < 1 - _GAIN:
        said.append(f"with {size(need_bytes)} a node all of it would stay after the first epoch")
    return said
