"""Nodes of a job on one machine: a daemon each with its own cache and mount, over one source, and a learner each.

The daemons are started as the tests start them (tests/mpi): by mpirun with ULFM, over shared memory, in a network of
their own. Without peers they are plain mounts.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfs.client.client import Client, find_socket
from scripts.benchmarks.common import (
    BenchError,
    Reader,
    SlowFs,
    Work,
    hfs_mount,
    mounts_below,
    reader,
    together,
    unmount,
)
from tests.mpi.daemons import Daemons
from tests.mpi.harness import Job

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "mpi" / "programs" / "mount.py"

OPTIONS = ("-o", "push=no", "--cache-size", "1G")
"""Nothing is pushed into page caches, and the page cache of slowfs, which real nodes do not share, is left out."""

MEMORY = "16M"

SETTLED_S = 60.0

NONE = "none"
"""In place of a placement: no peers."""


@dataclass(frozen=True)
class Data:
    """Samples that are whole files: names relative to the root, and their bytes."""

    folder: Path
    names: Path
    """A JSON list."""
    samples: int
    bytes: int


class Nodes:
    """Daemons that run; `paths` their mountpoints, by rank."""

    def __init__(self, source: SlowFs, paths: list[Path], daemons: Daemons | None) -> None:
        self.source, self.paths, self._daemons = source, paths, daemons
        self._sockets = [find_socket(str(path)) for path in paths]
        self.alive = set(range(len(paths)))

    def status(self, rank: int) -> dict[str, Any]:
        return Client(self._sockets[rank]).status()

    def source_bytes(self) -> int:
        """What the source was asked for so far. By the daemons too: small files of several nodes, which real ones would
        each have read, may come out of the page cache of slowfs."""
        return max(self.source.counters()["read_bytes"], self.total("source_read_bytes"))

    def total(self, counter: str) -> int:
        """A counter of the daemons that live, together."""
        return sum(int(self.status(rank)["counters"][counter]["value"]) for rank in self.alive)

    def kill(self, rank: int) -> None:
        """kill -9."""
        if self._daemons is None:
            raise BenchError("only a daemon of a job can be killed")
        self.alive.discard(rank)
        self._daemons.kill(rank)

    def until_staged(self, size: int) -> None:
        """Wait until the caches hold `size` bytes together, or as much as they take."""
        limit = time.monotonic() + SETTLED_S
        while (found := self.total("staging_put_bytes")) < size:
            if time.monotonic() > limit:
                raise BenchError(f"{found} of {size} bytes were staged in {SETTLED_S:g} s")
            time.sleep(0.1)


@contextlib.contextmanager
def nodes(
    work: Work,
    source: SlowFs,
    count: int,
    placement: str,
    *,
    chunk: str = "1M",
    memory: str = MEMORY,
    options: Sequence[str] = (),
) -> Iterator[Nodes]:
    """`count` daemons with cold caches. Raises BenchError when they do not come up.

    A daemon holds for a moment, in a part of its memory, what it leaves to others to stage.
    """
    all_options = [*OPTIONS, "-o", f"buffer={memory}", *options]
    if placement == NONE or count == 1:
        with contextlib.ExitStack() as stack:
            all_options += ["--chunk", chunk]
            mounts = [stack.enter_context(hfs_mount(work, source.path, options=all_options)) for _ in range(count)]
            yield Nodes(source, [mount.path for mount in mounts], None)
        return
    base = work.new("nodes")
    jobs: list[Job] = []

    def mpirun(ranks: int, _program: str, *arguments: object, options: Sequence[str], env: dict[str, str]) -> Job:
        folder = work.new("job")
        jobs.append(Job(folder, ranks, ["python", str(PROGRAM), *map(str, arguments)], list(options), env))
        return jobs[-1]

    try:
        try:
            daemons = Daemons(mpirun, base, source.path, count, "--placement", placement, *all_options, chunk=chunk)
            daemons.wait()
        except AssertionError as error:
            raise BenchError(f"{count} daemons did not start: {str(error)[-1500:]}") from None
        running = Nodes(source, [daemons.path(rank) for rank in range(count)], daemons)
        try:
            yield running
        finally:
            with contextlib.suppress(AssertionError):  # what is left is ended below
                daemons.end()
                jobs[0].finish()
    finally:
        for job in jobs:
            job.close()
        for point in mounts_below(base):
            unmount(point)
        shutil.rmtree(base, ignore_errors=True)


class Learners:
    """A learner on each node; `epoch` runs one on all of them."""

    def __init__(self, running: Sequence[Reader]) -> None:
        self.readers = running

    def epoch(self, **request: Any) -> tuple[float, list[dict[str, Any]]]:
        """As `common.together`. Raises BenchError when a read has failed or was wrong."""
        epoch_s, answers = together(self.readers, request)
        if failed := [answer["error"] for answer in answers if answer["failed"]]:
            raise BenchError(f"reads have failed: {failed[0]}")
        return epoch_s, answers


@contextlib.contextmanager
def learners(paths: Sequence[Path], data: Data) -> Iterator[Learners]:
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(reader("node_learner.py", path, data.names, rank, len(paths)))
            for rank, path in enumerate(paths)
        ]
        yield Learners(running)


def list_names(work: Work, folder: Path, names: Sequence[str]) -> Data:
    """The data set of these files."""
    path = work.new("names") / "names.json"
    path.write_text(json.dumps(list(names)))
    return Data(folder, path, len(names), sum((folder / name).stat().st_size for name in names))
