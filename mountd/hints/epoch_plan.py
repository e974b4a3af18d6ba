"""One layout that learners read by, with the schedule of all of them, and what is known of its units.

It outlives its learners for a while, since the next epoch or the next job of the node reads the same. Event loop only;
reads and opens nothing.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.caller import Credentials
from hfs.mountd.namespace import Node
from hfs.mountd.wire.layout import LayoutError, SampleExtents, ranges, refuse
from hfs.policies.schedule.epoch_progress import GUARD_SAMPLES
from hfs.policies.schedule.fetch_order import Sweep
from hfs.policies.schedule.schedule import Schedule
from hfs.policies.schedule.uses import HERE

_BYTES_A_UNIT = 21
"""What a schedule and a plan keep of each unit."""

_GUARD_BYTES = 1 << 30
"""What a loader has drawn ahead of its reads at most: four workers with two batches of 128 MB each. Without a guard the
samples that were given out first, and are waited for, were fetched after all others: 0.7 s for the first of 48 MiB."""

_SMALL_FILE_BYTES = 110_000
"""What a file of a list is taken for until one has been looked at: an image."""


_LOOKED_AT = 1 << 12
"""Units that are looked at one by one in a step."""


_SEPARATOR = 0
_LARGEST_FILE_BYTES = 1 << 62

_BYTES_A_FILE, _BYTES_AN_EXTENT = 20, 24
_MAKING_BYTES_A_FILE = 40
"""Ends and hashes while they are put in order."""


_HASHED_AT_ONCE = 512
"""Half a millisecond."""
_REST_S = 1e-4

hash_of = xxh3_64_intdigest
"""Of a path."""


def layout_bytes(layout: SampleExtents) -> int:
    """A layout in units: what the samples of a layout are fetched in, the numbers that `policies.schedule` works with.

    A unit is a whole file where samples are files, since whoever uses one reads all of it and its size is not known
    yet; otherwise a chunk of a file. The paths are only looked at when they are needed. Knows nothing of the source;
    opens nothing.

    What a `UnitLayout` takes while it is made, about.
    """
    return len(layout.names) + _MAKING_BYTES_A_FILE * layout.file_count + _BYTES_AN_EXTENT * layout.extent_count


class UnitLayout:
    """Memory: the names and 20 bytes for each file; 24 bytes for each extent."""

    def __init__(self, digest: str, layout: SampleExtents, chunk_bytes: int) -> None:
        """In a thread: it takes seconds where there are millions of files. `layout` itself is not kept. Raises
        LayoutError where it cannot be divided."""
        self.digest = digest
        self.chunk_bytes = chunk_bytes
        self.whole = not layout.extent_count
        """Samples are whole files."""
        names = np.frombuffer(layout.names, np.uint8)
        ends = np.flatnonzero(names == _SEPARATOR)
        self._ends: NDArray[np.int64] = np.append(ends, len(names)).astype(np.int64)
        # What came holds the extents too, as they were sent.
        self._names = (names if self.whole else names.copy()).data
        self.files = len(self._ends)
        self.samples = layout.samples
        self._starts: NDArray[np.int64] | None = None
        self._counts: NDArray[np.int64] | None = None
        """Units of each sample, where it may be several."""
        if self.whole:
            self.units = self.files
            self.bytes: int | None = None
            hashes = self._hashes_of_paths()
            self._by_hash = np.argsort(hashes, kind="stable").astype(np.int32)
            self._hashes = hashes[self._by_hash].data
            return
        self._divide(layout)

    def _divide(self, layout: SampleExtents) -> None:
        file_sizes, where, offsets, sizes = layout.file_sizes, layout.extents, layout.offsets, layout.sizes
        refuse(file_sizes, (file_sizes < 0) | (file_sizes > _LARGEST_FILE_BYTES), "file {} has {} bytes")
        self._sample_bytes = int(sizes.mean())
        if len(layout.starts):
            self._starts = layout.starts
        chunks = -(-file_sizes // self.chunk_bytes)
        if float(chunks.sum(dtype=np.float64)) >= 1 << 31:  # which cannot overflow
            raise LayoutError(f"{chunks.sum(dtype=np.float64):.0f} chunks are more than can be planned")
        self._first_units = np.concatenate(([0], np.cumsum(chunks)))
        self.units = int(self._first_units[-1])
        self._first = (self._first_units[where] + offsets // self.chunk_bytes).astype(np.int32)
        last = self._first_units[where] + (offsets + sizes - 1) // self.chunk_bytes
        self._extra = (last - self._first).astype(np.int32)
        """Chunks of each extent after its first."""
        if self._starts is not None:
            # Not reduceat: it counts one extent for a sample that has none.
            ends = np.append(0, np.cumsum(self._extra + np.int64(1)))
            self._counts = np.diff(ends[self._starts])
        elif self._extra.any():
            self._counts = self._extra + np.int64(1)
        self._file_sizes = file_sizes
        self.bytes = int(file_sizes.sum())

    @property
    def memory_bytes(self) -> int:
        """What it takes, about."""
        held = len(self._names) + _BYTES_A_FILE * self.files
        return held if self.whole else held + _BYTES_AN_EXTENT * len(self._first)

    def sample_bytes(self) -> int:
        """Bytes of an extent, on average; of whole files it is not known."""
        return 0 if self.whole else self._sample_bytes

    def path(self, file: int) -> bytes:
        """Of file number `file`, relative to the root of the mount."""
        start = int(self._ends[file - 1]) + 1 if file else 0
        return bytes(self._names[start : int(self._ends[file])])

    def find(self, path: bytes, path_hash: int) -> int | None:
        """The sample that is all of the file at `path`, of which `path_hash` is `hash_of`; the last one, if there are
        several.

        One step, whatever the names are: of names with the same hash only the last is ever found. Whoever makes such
        names has made only his own layout of less use.
        """
        place = bisect_right(self._hashes, path_hash) - 1
        if place < 0 or self._hashes[place] != path_hash:
            return None
        file = int(self._by_hash[place])
        return file if self.path(file) == path else None

    def _hashes_of_paths(self) -> NDArray[np.uint64]:
        """In a thread: rests now and then, since it holds the interpreter that the event loop needs."""
        hashes = np.empty(self.files, np.uint64)
        for first in range(0, self.files, _HASHED_AT_ONCE):
            end = min(first + _HASHED_AT_ONCE, self.files)
            hashes[first:end] = [hash_of(self.path(file)) for file in range(first, end)]
            if end < self.files:
                time.sleep(_REST_S)
        return hashes

    def unit_bytes(self) -> NDArray[np.int64] | None:
        """Bytes of each unit; None if they are not known before they are looked at."""
        if self.whole:
            return None
        sizes = np.full(self.units, self.chunk_bytes, np.int64)
        held = np.flatnonzero(self._file_sizes)
        last = self._first_units[held + 1] - 1
        sizes[last] = self._file_sizes[held] - (self._file_sizes[held] - 1) // self.chunk_bytes * self.chunk_bytes
        return sizes

    def file_size(self, file: int) -> int | None:
        """Bytes of a file when the layout was made, if it says so."""
        return None if self.whole else int(self._file_sizes[file])

    def place(self, unit: int) -> tuple[int, int | None]:
        """The file of a unit, and its chunk there; None for all of the file."""
        if self.whole:
            return unit, None
        file = int(np.searchsorted(self._first_units, unit, side="right")) - 1
        return file, unit - int(self._first_units[file])

    def unit(self, file: int, chunk: int) -> int:
        """The inverse of `place`."""
        return file if self.whole else int(self._first_units[file]) + chunk

    def count_uses(self, indices: NDArray[np.int64]) -> int:
        """How many units `uses` would give. Raises LayoutError for an index out of range."""
        self._check_indices(indices)
        if self._counts is None:
            return len(indices)
        return int(self._counts[indices].sum(dtype=np.float64))  # which cannot overflow

    def _check_indices(self, indices: NDArray[np.int64]) -> None:
        wrong = (indices < 0) | (indices >= self.samples)
        refuse(indices, wrong, f"at position {{}} the order names sample {{}} of {self.samples}")

    def uses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        """What reading these samples in this order needs: units, and for each the position of its sample.

        `None` for the positions: use i belongs to the sample at position i. Raises LayoutError for an index out of
        range.
        """
        self._check_indices(indices)
        if self.whole:
            return indices.astype(np.int32), None
        if self._starts is None:
            extents, at = indices, None
        else:
            extents, at = ranges(self._starts[indices], self._starts[indices + 1])
        extra = self._extra[extents]
        if not extra.any():
            return self._first[extents], at
        first = self._first[extents].astype(np.int64)
        units, of = ranges(first, first + extra + 1)
        return units.astype(np.int32), of if at is None else at[of]


@dataclass(frozen=True, slots=True)
class Work:
    """Units of one plan for one worker of `prefetch`."""

    plan: EpochPlan
    units: tuple[int, ...]


class PlanKey(NamedTuple):
    """What makes a plan another one."""

    digest: str
    """Of the layout."""
    reader: Credentials | None = None
    """Whose rights at the source count; None: the daemon's own."""


class EpochPlan:
    """One layout, and the schedule of those who read it. A unit is a chunk of a large file, or a whole small one."""

    def __init__(self, layout: UnitLayout, coalesce_bytes: int, reader: Credentials | None = None) -> None:
        """`coalesce_bytes`: of chunks that are fetched in the order of the file, at most."""
        self.layout = layout
        self.key = PlanKey(layout.digest, reader)
        self.readable: NDArray[np.bool_] | None = None if reader is None else np.zeros(layout.files, bool)
        """The files that `reader` was seen to be allowed to read; None: nobody has to be asked. Of all others nothing
        is told, whatever is known of them."""
        sizes = layout.unit_bytes()
        self.schedule = Schedule(
            layout.units,
            _SMALL_FILE_BYTES if sizes is None else sizes,
            guard_samples=min(GUARD_SAMPLES, 1 + _GUARD_BYTES // max(1, layout.sample_bytes())),
            uses_are_seen=layout.whole,
            sweep=None if layout.whole else Sweep(layout.samples / max(1, layout.units)),
            sweep_units=coalesce_bytes // layout.chunk_bytes,
        )
        self.sample_bytes = layout.sample_bytes()
        self.objects: NDArray[np.int64] | None = np.zeros(layout.units, np.int64) if layout.whole else None
        """Of whole files: the staged object of each, 0 where none is known."""
        self.learners: set[int] = set()
        """Numbers of the sessions that read it."""
        self.given_only: set[int] = set()
        """Of those, the ones that tell no more than what they have given out."""
        self.staged: dict[int, StagedFile] = {}
        """Of extents: the staged file of each file, once a chunk of it was wanted."""
        self.named: dict[int, bytes] = {}
        """Of units under way that are links: what these name, which `reader` may read."""
        self.under_way: set[int] = set()
        """Units that a worker has taken and not staged yet."""
        self.overtaken: set[bytes] = set()
        """The paths of those whole files that a reader opens meanwhile, and has fetched: once is enough."""
        self.units_of: dict[Node, int] = {}
        """Which unit a node is, of the whole files that were found in the namespace: the one found last. A layout finds
        a unit by its path in microseconds; an open of a small file has not so long. And of a file that is listed twice
        only the one who has looked it up knows which of the two was meant."""
        self.ready: set[int] = set()
        """Whole files that were fetched without a node: the data plane answers who opens them."""
        self.is_fetched_apart = False
        """The data plane has fetched all files of the last piece of work, each with a thread of its own."""
        self.held: set[int] = set()
        """Whole files that are not staged, only held in memory until they are read."""
        self.pushed: set[tuple[Version, int]] = set()
        """Chunks of large files that were put into the page cache of the mount, for all we know still there."""
        self.read_ahead_s: dict[tuple[Version, int], float] = {}
        """When chunks of staged files that the kernel reads by itself were read ahead."""
        self.missing = 0
        """Files of the layout that could not be fetched."""
        self._outside: set[int] = set()
        self._looked_at, self._looked_at_bytes = 1, _SMALL_FILE_BYTES

    @property
    def reader(self) -> Credentials | None:
        """Whose rights at the source count; None: the daemon's own."""
        return self.key.reader

    @property
    def is_foreseen(self) -> bool:
        """Somebody tells what is read next, so that nothing has to be guessed."""
        return self.learners != self.given_only

    @property
    def follows_links(self) -> bool:
        """Whatever the learners may name is for them. Else only what was found to be readable is fetched, by its own
        name: a link may lead elsewhere a moment later."""
        return self.readable is None

    def path(self, unit: int) -> bytes:
        """The file of a unit, as it is to be fetched."""
        return self.named.get(unit) or self.layout.path(self.layout.place(unit)[0])

    def may_know(self, unit: int) -> bool:
        """Whether the learners may be told what has become of a unit."""
        return self.readable is None or bool(self.readable[self.layout.place(unit)[0]])

    @property
    def memory_bytes(self) -> int:
        """What it takes, about, without the orders."""
        return plan_bytes(self.layout)

    @property
    def outside(self) -> int:
        """Files of the layout that links lead to out of SOURCE."""
        return len(self._outside)

    def leads_out(self, unit: int) -> None:
        """The file of a unit is none of SOURCE: there is nothing to fetch."""
        self._outside.add(self.layout.place(unit)[0])
        self.schedule.here(unit, 0)

    def failed(self, unit: int) -> None:
        """A unit could not be fetched."""
        self.missing += 1
        self.schedule.failed(unit)

    def land(self, units: Sequence[int]) -> None:
        """These are no longer under way."""
        self.under_way.difference_update(units)
        for unit in units if self.named else ():
            self.named.pop(unit, None)
        if self.overtaken:
            self.overtaken.difference_update(map(self.layout.path, units))

    def looked_at(self, size: int) -> None:
        """One file of the list has this many bytes."""
        self._looked_at += 1
        self._looked_at_bytes += size

    def staged_chunks(self, files: Iterable[int]) -> NDArray[np.int32]:
        """Of these files, as far as is known."""
        each = [np.fromiter(self.staged[file].present, np.int32) + self.layout.unit(file, 0) for file in files]
        return np.concatenate(each).astype(np.int32) if each else np.empty(0, np.int32)

    def begin_steps(self) -> Iterator[None]:
        """An epoch begins: what was here and has gone unnoticed is to be fetched again. In steps of a millisecond."""
        state, here = self.schedule.units.state, np.zeros(self.layout.units, bool)
        for number, file in list(self.staged.items()):
            here[np.fromiter(file.present, np.int64) + self.layout.unit(number, 0)] = True
            yield
        for first, end in self.schedule.units.ahead.steps():
            gone = (state[first:end] == HERE) & ~here[first:end]
            if self.objects is not None:
                gone &= self.objects[first:end] == 0
            units = np.flatnonzero(gone) + first
            for some in np.split(units, range(_LOOKED_AT, len(units), _LOOKED_AT)):
                self.schedule.evicted(some[[not self._has_come(unit) for unit in some.tolist()]])
                yield

    def _has_come(self, unit: int) -> bool:
        """It is here, since a moment ago."""
        if self.objects is not None:
            return unit in self.held or bool(self.objects[unit])
        number, index = self.layout.place(unit)
        file = self.staged.get(number)
        return file is not None and index is not None and index in file.present

    @property
    def mean_bytes(self) -> int:
        """Of a file of a list, by those that were looked at."""
        return self._looked_at_bytes // self._looked_at

    def sizes(self, units: NDArray[np.int32]) -> NDArray[np.int64]:
        """Bytes of `units`; of files of a list their mean, since it is asked before they are looked at."""
        if self.layout.whole:
            return np.full(len(units), self.mean_bytes, np.int64)
        return self.schedule.units.sizes[units]


def plan_bytes(layout: UnitLayout) -> int:
    """What a plan of this layout takes, about, without the orders."""
    return layout.memory_bytes + _BYTES_A_UNIT * layout.units
