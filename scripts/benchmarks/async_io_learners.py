"""Two learners of a job that read an epoch, directly or through hfs, and what reached the source meanwhile.

A measurement gives an `Epoch`; which ones a group takes and what they are held against is the group's.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hfs.layouts.hdf5 import build_hdf5
from hfs.layouts.layout import Layout
from scripts.benchmarks import data
from scripts.benchmarks.common import SlowFs, Work, hfs_mount, reader, slowfs, together
from scripts.benchmarks.options import Options

LEARNERS = 2
SHARED_BPS = {"lustre": 500e6, "busy": 50e6}

LOOK_S = 0.02
"""How often the counters of the source are looked at: a thousandth of the time that the data takes, or less."""

SETTLED_S = 1.0
"""Nothing has reached the source for so long: it is at rest. A hundred times the latency of a read."""
SETTLED_LIMIT_S = 60.0


READ_AHEAD_KB = 4096
"""How far the kernel reads ahead at the source for the learners that read it themselves. The usual 128 KiB are all
that a large read then asks for at a time; parallel file systems have more. Reads of single samples stay as they are."""


@dataclass(frozen=True)
class Strategy:
    """How the learners read; the words are those of readers/learner.py."""

    name: str
    order: str
    read: str
    overlap: bool
    mounted: bool = False
    hint: bool = False
    chunk: str = ""
    """Of the mount; empty: the default."""


TF = Strategy("TF", "random", "sample", overlap=False)
TF_PRE = Strategy("TF-Pre", "random", "sample", overlap=True)
ASYNC = Strategy("Async", "groups", "group", overlap=False)
ASYNC_DB = Strategy("Async-DB", "groups", "group", overlap=True)
MOUNT = Strategy("mount", "random", "sample", overlap=True, mounted=True)
MOUNT_HINT = Strategy("mount + hint", "random", "sample", overlap=True, mounted=True, hint=True)
MOUNT_PLAIN_GROUPS = Strategy("mount + group shuffle, nothing told", "groups", "sample", overlap=True, mounted=True)
"""What the job of somebody is who has mounted it with the defaults, and whose groups follow no layout."""
MOUNT_GROUPS = Strategy("mount + group shuffle", "groups", "sample", overlap=True, mounted=True, hint=True, chunk="2M")
"""A group of 12 MB lies in two or three chunks of 8 MiB, which are read whole: 1.7 times what it needs, and at the
start of an epoch nothing is left over from a neighbour yet. Of chunks of 2 MiB it is 1.15 times."""


@dataclass(frozen=True)
class DataSet:
    """Samples in several HDF5 files of one size, and how learners train on them."""

    folder: Path
    samples: int
    sample_bytes: int
    file_bytes: int
    batch: int
    """Samples of a batch of one learner."""

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.h5"))

    def bandwidth_s(self, preset: str) -> float:
        """What the shared link takes for all of it."""
        return self.file_bytes / SHARED_BPS[preset]


def data_set(
    work: Work, name: str, files: int, a_file: int, make: Callable[[Path, int, int], None], *, batch: int
) -> DataSet:
    """`files` files of `a_file` samples; `make` writes one of them."""

    def fill(folder: Path) -> None:
        for number in range(files):
            make(folder / f"{number:02d}.h5", a_file, number * a_file)

    folder = data.stamped(work.data / f"{name}-{files}x{a_file}", {"files": files, "samples": a_file}, fill)
    sample_bytes = {data.make_samples: data.SAMPLE_BYTES, data.make_volumes: data.VOLUME_BYTES}[make]
    return DataSet(folder, files * a_file, sample_bytes, data.tree_bytes(folder)[1], batch)


@dataclass(frozen=True)
class Epoch:
    """What the learners and the source say of one epoch. Times are those of the learner for which they were longest,
    "first" and "late" too, so exposed + compute may be a little more than the epoch."""

    epoch_s: float
    exposed_s: float
    compute_s: float
    opened_s: float
    """Until all files were open, which is part of what is exposed."""
    first_s: float
    """Until the first batch."""
    late: int
    """Batches that had to be waited for, and how many there were."""
    batches: int
    source_s: float
    """From the start until the last byte had come from the source."""
    source_bytes: int
    reads: int

    def scaled(self, parts: float) -> "Epoch":
        """Of `parts` times as many samples, each of which costs as much as these."""
        # Files are opened once, whatever is read of them then.
        exposed_s = self.opened_s + (self.exposed_s - self.opened_s) * parts
        times = {name: getattr(self, name) * parts for name in ("compute_s", "source_s")}
        times |= {"exposed_s": exposed_s, "epoch_s": exposed_s + times["compute_s"]}
        counts = {name: round(getattr(self, name) * parts) for name in ("late", "batches", "source_bytes", "reads")}
        return replace(self, **times, **counts)


class SourceWatch(threading.Thread):
    """Looks at the counters of a source until `settled`."""

    def __init__(self, source: SlowFs) -> None:
        super().__init__(daemon=True)
        self.source = source
        self.seen: list[tuple[float, int]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.seen.append((time.monotonic(), self.source.counters()["read_bytes"]))

    def settled(self, now: Callable[[], float] = time.monotonic) -> float:
        """Wait until nothing comes any more. The moment of the last byte, as time.monotonic gives it."""
        limit = now() + SETTLED_LIMIT_S
        while now() < limit and (not self.seen or self.seen[-1][0] - last_change(self.seen) < SETTLED_S):
            time.sleep(LOOK_S)
        self._ended.set()
        self.join()
        return last_change(self.seen)


def last_change(seen: Sequence[tuple[float, int]]) -> float:
    """The first moment at which the value was the last one."""
    return next(moment for moment, value in seen if value == seen[-1][1])


def layout_of(samples: DataSet) -> Layout:
    """Which bytes of which file each sample is: that of one file after the other."""
    parts = [build_hdf5(str(samples.folder / name), ["samples"], str(samples.folder)) for name in samples.files]
    return Layout(
        b"\0".join(part.names for part in parts),
        file_sizes=np.concatenate([part.file_sizes for part in parts]),
        extents=np.concatenate([part.extents + number for number, part in enumerate(parts)]),
        offsets=np.concatenate([part.offsets for part in parts]),
        sizes=np.concatenate([part.sizes for part in parts]),
    )


def read_ahead(mounted: Path, kib: int) -> None:
    """Set how far the kernel reads ahead on a mount. Without the right to, it stays as it is."""
    device = os.stat(mounted).st_dev
    with contextlib.suppress(PermissionError):
        Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").write_text(str(kib))


@dataclass(frozen=True)
class Job:
    """What is the same for all strategies of a run."""

    work: Work
    options: Options
    data: DataSet
    preset: str
    seed: int
    compute_s: float
    """Of an epoch, each learner's."""

    def epoch(self, strategy: Strategy, group: int, part: int | None = None) -> Epoch:
        """One epoch from a cold source, or the first `part` samples of each learner scaled to one."""
        with slowfs(self.work, self.data.folder, self.preset) as source:
            if not strategy.mounted:
                read_ahead(source.path, READ_AHEAD_KB)
                return self._read(source, source.path, strategy, group, part)
            more = self._hints() if strategy.hint else []
            chunk = ("--chunk", strategy.chunk) if strategy.chunk else ()
            with hfs_mount(self.work, source.path, options=chunk) as mount:
                if strategy.hint:
                    more += ["--mount", mount.path]
                return self._read(source, mount.path, strategy, group, part, *more)

    def _hints(self) -> list[object]:
        """What tells a learner which bytes each sample is: made before, and once for all runs."""
        path = self.work.run / f"{self.data.folder.name}.layout"
        if not path.exists():
            layout_of(self.data).save(str(path))
        return ["--layout", path]

    def _read(
        self, source: SlowFs, root: Path, strategy: Strategy, group: int, part: int | None, *more: object
    ) -> Epoch:
        files = [root / name for name in self.data.files]
        request: dict[str, Any] = {
            "order": strategy.order,
            "read": strategy.read,
            "overlap": strategy.overlap,
            "hint": strategy.hint,
            "group": group,
            "batch": self.data.batch,
            "seed": self.seed,
            "count": part,
            "sample_compute_s": self.compute_s * LEARNERS / self.data.samples,
        }
        with contextlib.ExitStack() as stack:
            programs = [
                stack.enter_context(reader("learner.py", rank, LEARNERS, *more, *files)) for rank in range(LEARNERS)
            ]
            before = source.counters()
            watch = SourceWatch(source)
            watch.start()
            epoch_s, answers = together(programs, request)
            last_byte = watch.settled()
        after = source.counters()
        epoch = Epoch(
            epoch_s,
            max(answer["exposed_s"] for answer in answers),
            max(answer["compute_s"] for answer in answers),
            max(answer["opened_s"] for answer in answers),
            max(answer["first_s"] for answer in answers),
            max(answer["late"] for answer in answers),
            max(answer["batches"] for answer in answers),
            last_byte - min(answer["begin_s"] for answer in answers),
            after["read_bytes"] - before["read_bytes"],
            after["read"] - before["read"],
        )
        return epoch if part is None else epoch.scaled(self.data.samples / sum(one["samples"] for one in answers))
