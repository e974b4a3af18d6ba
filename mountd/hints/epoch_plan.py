"""One layout that learners read by, with the schedule of all of them, and what is known of its units.

It outlives its learners for a while, since the next epoch or the next job of the node reads the same. Event loop only;
reads and opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.version import Version
from hfs.mountd.hints.unit_layout import UnitLayout
from hfs.mountd.namespace import Node
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
