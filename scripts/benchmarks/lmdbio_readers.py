"""Reader processes of one LMDB, directly or through hfs, and what reached the source and the kernel meanwhile.

Nothing is computed between batches: the rows are about I/O.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.benchmarks.async_io_learners import READ_AHEAD_KB, SHARED_BPS, SourceWatch, read_ahead
from scripts.benchmarks.common import (
    BenchError,
    Mount,
    Reader,
    SlowFs,
    Work,
    hfs_mount,
    reader,
    slowfs,
    together,
)
from scripts.benchmarks.lmdbio_data import NAME, Database

READS_EXPLICITLY = ("dio", "prov", "coal", "stag")


@dataclass(frozen=True)
class Epoch:
    """What the readers, the source and the kernel say of one epoch. Times are from the first start to the last end,
    "first" of the reader for which it was longest; counts are of all readers together."""

    epoch_s: float
    first_s: float
    """Until the first batch."""
    source_s: float
    """Until the last byte had come from the source."""
    cpu_s: float
    """User and system time of the readers together."""
    records: int
    reads: int
    """READ requests at the source."""
    source_bytes: int
    ordered: int
    """READ requests that began behind the beginning of the one before."""
    switches: int
    major_faults: int

    def scaled(self, times: float) -> "Epoch":
        """`times` as much of all, each record of which costs as much as these."""
        scaled = {
            name: round(getattr(self, name) * times)
            for name in ("records", "reads", "source_bytes", "ordered", "switches", "major_faults")
        }
        times_s = {name: getattr(self, name) * times for name in ("epoch_s", "source_s", "cpu_s")}
        return replace(self, **times_s, **scaled)


@dataclass(frozen=True)
class OwnReads:
    """What the daemon says of its own source reads of large files in an epoch."""

    reads: int
    mean_bytes: float
    in_order: float
    """Share of them that began at or behind the end of the read before, of the same file."""


@dataclass(frozen=True)
class Job:
    """What is the same for all rows of a run."""

    work: Work
    database: Database
    preset: str
    readers: int
    seed: int

    @property
    def bound_s(self) -> float:
        """What the shared link takes for the file."""
        return self.database.bytes / SHARED_BPS[self.preset]

    def direct(self, count: int | None, *flags: object) -> Epoch:
        """From the source itself: the first `count` records, or all."""
        with slowfs(self.work, self.database.folder, self.preset) as source:
            return self._plain(source, source.path, count, *flags)

    def step(self, name: str, count: int | None) -> tuple[Epoch, Epoch]:
        """A step of LMDBIO, from the source itself: what it does before the first record, and the first `count`."""
        with slowfs(self.work, self.database.folder, self.preset) as source:
            more = [source.path / NAME, self.database.records, self.readers, self.layout(), name]
            if name in READS_EXPLICITLY:
                read_ahead(source.path, READ_AHEAD_KB)
            with reader("lmdb_node.py", *more) as program:
                return self._measured(source, [program], 0), self._measured(source, [program], count)

    def mounted(self, *flags: object, hint: bool) -> tuple[Epoch, OwnReads]:
        """Through a cold mount with the defaults, all records."""
        with (
            slowfs(self.work, self.database.folder, self.preset) as source,
            hfs_mount(self.work, source.path) as mount,
        ):
            more = ["--mount", mount.path, "--layout", self.layout()] if hint else []
            epoch = self._plain(source, mount.path, None, *flags, *more)
            if hint:
                check_told(mount, self.readers)
            return epoch, own_reads(mount)

    def layout(self) -> Path:
        """Where each record lies: made before, and once for all runs."""
        path = self.work.run / f"lmdb-{self.database.records}.layout"
        if not path.exists():
            self.database.layout().save(str(path))
        return path

    def _plain(self, source: SlowFs, root: Path, count: int | None, *flags: object) -> Epoch:
        with contextlib.ExitStack() as stack:
            programs = [
                stack.enter_context(reader("lmdb_plain.py", root / NAME, rank, self.readers, *flags))
                for rank in range(self.readers)
            ]
            return self._measured(source, programs, count)

    def _measured(self, source: SlowFs, programs: Sequence[Reader], count: int | None) -> Epoch:
        """Raises BenchError when not all records were read."""
        before = source.counters()
        watch = SourceWatch(source)
        watch.start()
        epoch_s, answers = together(programs, {"seed": self.seed, "count": count})
        last_byte = watch.settled()
        after = source.counters()
        found = total(answers, "records")
        if found != (self.database.records if count is None else count):
            raise BenchError(f"{found} records were read of {self.database.records}")
        return Epoch(
            epoch_s,
            max(answer["first_s"] for answer in answers),
            max(0.0, last_byte - min(answer["begin_s"] for answer in answers)),  # of no byte: when the watch began
            sum(answer["cpu"] for answer in answers),
            found,
            after["read"] - before["read"],
            after["read_bytes"] - before["read_bytes"],
            after["read_ordered"] - before["read_ordered"],
            total(answers, "switches"),
            total(answers, "major_faults"),
        )


def total(answers: Sequence[dict[str, Any]], what: str) -> int:
    return sum(answer[what] for answer in answers)


def own_reads(mount: Mount) -> OwnReads:
    """Raises BenchError when the daemon has not read the source."""
    source = mount.status()["source"]
    if not source["large_reads"]:
        raise BenchError("the daemon says that it has read no large file")
    reads = source["large_reads"]
    return OwnReads(reads, source["large_read_bytes"] / reads, source["large_reads_ordered"] / reads)


def check_told(mount: Mount, readers: int) -> None:
    """Raise BenchError unless each reader has given the daemon its order and nothing was wrong with it."""
    status = mount.status()
    learners = status["hints"]["learners"] + status["hints"]["past"]
    ranks = sorted(learner["rank"] for learner in learners if learner["samples"])
    wrong = {name: status["counters"][name]["value"] for name in ("hints_missing", "hints_refused")}
    if ranks != list(range(readers)) or any(wrong.values()):
        raise BenchError(f"the orders were not followed: of readers {ranks}, {wrong}")
