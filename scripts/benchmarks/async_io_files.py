"""What the groups of whole files share: the set of files, the job that reads them, the watch on the source.

Answers of a job are judged here: too few bytes, or a hint that the daemon has not followed, is an error and no row.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hfs.client.client import Client, find_socket
from scripts.benchmarks.common import READER_LIMIT_S, BenchError, Mount, Reader, SlowFs, Work, files_at, reader

BATCH = 32
"""As in the paper (Serizawa and Tatebe)."""

LOOK_S = 0.02
"""Between two looks at the source's counters: 1 % of the shortest time that is measured with them."""


class FileSet:
    """The files below a folder, and the list of them that a job is given, so that it has nothing to list."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.folder = folder
        paths = files_at(folder)
        self.names = [str(path.relative_to(folder)) for path in paths]
        self.sizes = [path.stat().st_size for path in paths]
        self.bytes = sum(self.sizes)
        self.batches = -(-len(self.names) // BATCH)
        self.list = work.new("list") / "files.txt"
        self.list.write_text("\n".join(self.names))

    def below(self, root: Path) -> list[Path]:
        return [root / name for name in self.names]

    def __str__(self) -> str:
        return f"{len(self.names)} files of {self.bytes / len(self.names) / 1000:.0f} KB"


class Job:
    """A job that reads the files of a set below `root`, ready for its epochs."""

    def __init__(self, program: Reader, files: FileSet) -> None:
        self._program, self._files = program, files

    def begin(self, epoch: int, seed: int, compute_s: float = 0.0) -> None:
        """Start an epoch; computing is `compute_s` a batch."""
        self._program.send({"epoch": epoch, "seed": seed, "compute_s": compute_s})

    def failed(self) -> bool:
        """Has the program ended, which it does when an epoch raises?"""
        return self._program.process.poll() is not None

    def end(self) -> dict[str, Any]:
        """Wait for its end. Raises BenchError when not all was read."""
        answer = self._program.answer()
        if (answer["files"], answer["bytes"]) != (len(self._files.names), self._files.bytes):
            raise BenchError(f"{answer['files']} files, {answer['bytes']} bytes were read of {self._files.bytes}")
        return answer

    def epoch(self, epoch: int, seed: int, compute_s: float = 0.0) -> dict[str, Any]:
        self.begin(epoch, seed, compute_s)
        return self.end()


@contextmanager
def job(
    files: FileSet, root: Path, workers: int, *, hint: bool = False, drop: bool = False, threads: int = 1
) -> Iterator[Job]:
    """`drop`: it leaves no page of what it has read in memory. `threads`: in each worker."""
    flags = [*(["--hint"] if hint else []), *(["--drop"] if drop else []), "--threads", threads]
    with reader("batches.py", root, files.list, workers, BATCH, *flags) as program:
        yield Job(program, files)


def check_followed(mount: Mount, epoch: int) -> None:
    """Raise BenchError unless the daemon has fetched by this epoch's order and nothing was wrong with it. To be called
    while the job is there."""
    status = mount.status()
    epochs = [learner["epoch"] for learner in status["hints"]["learners"]]
    wrong = {name: status["counters"][name]["value"] for name in ("hints_missing", "hints_refused")}
    if epochs != [epoch] or any(wrong.values()) or not status["ahead"]["hinted_bytes"]:
        raise BenchError(f"the order of epoch {epoch} was not followed: learners in {epochs}, {wrong}")


def wait_staged(program: Job, source: SlowFs, mount: Mount, size: int) -> float:
    """Wait until `size` bytes were read from the source and are staged; the moment, in seconds of CLOCK_MONOTONIC.

    The daemon, which is what is measured, is not asked before the source has given all. Raises BenchError when it does
    not come, or when the job that reads them has failed.
    """
    limit = time.monotonic() + READER_LIMIT_S
    client = Client(find_socket(str(mount.path)))
    while source.counters()["read_bytes"] < size or client.status()["staged"]["bytes"] < size:
        if program.failed():
            program.end()
        if time.monotonic() > limit:
            raise BenchError(f"of {size} bytes {client.status()['staged']['bytes']} were staged")
        time.sleep(LOOK_S)
    return time.monotonic()
