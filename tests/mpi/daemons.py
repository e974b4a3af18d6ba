"""Jobs of daemons for tests: several mounts of one source on this machine, each with its own cache, under one mpirun.

Made by the fixture `daemons` in tests/mpi/conftest.py.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfs.client.client import Client
from tests.fuse.harness import kill, wait_gone
from tests.mpi.harness import Job

ULFM = ("--with-ft", "ulfm")


class Daemons:
    """`count` daemons; `wait` until all have mounted, `end` ends them."""

    def __init__(
        self, mpirun: Callable[..., Job], base: Path, source: Path, count: int, *options: str, chunk: str = "64K"
    ) -> None:
        self.base, self.count = base, count
        self.job = mpirun(
            count,
            "mount",
            source,
            base,
            *("--chunk", chunk, "--cache-size", "1G"),
            *options,
            options=ULFM,
            env={"XDG_CONFIG_HOME": str(base / "no-config")},
        )
        self.gone: set[int] = set()

    def wait(self) -> "Daemons":
        """Until all mounts answer."""
        for rank in range(self.count):
            self.job.wait_error(rank, ": mounted")
        return self

    def path(self, rank: int) -> Path:
        """The mountpoint of a rank."""
        return self.base / f"mnt-{rank}"

    def status(self, rank: int) -> dict[str, Any]:
        """What its daemon says."""
        socket = os.fsdecode(os.getxattr(self.path(rank), "user.hfs.socket"))
        return Client(socket).status()

    def counters(self, name: str) -> list[int]:
        """A counter of all that live, in the order of their ranks."""
        return [
            int(self.status(rank)["counters"][name]["value"]) for rank in range(self.count) if rank not in self.gone
        ]

    def dropped_bytes(self, chunk_bytes: int) -> int:
        """At most so much was not staged because the cache disk was slower than the source: it may be read again."""
        return sum(self.counters("staging_dropped")) * chunk_bytes

    def kill(self, rank: int) -> None:
        """kill -9 of one daemon and of its keeper, which is what mpirun has started; its mount stays, dead."""
        pid = self.status(rank)["pid"]
        self.job.kill(rank)
        kill(pid)
        self.gone.add(rank)

    def wait_gone(self, rank: int) -> None:
        """Until a rank knows that one has gone."""
        while not self.status(rank)["peers"]["gone"]:
            os.sched_yield()

    def crash(self, rank: int) -> None:
        """kill -9 of one daemon; its keeper starts the next one, which runs alone."""
        kill(self.status(rank)["pid"])

    def end(self) -> None:
        """SIGTERM to all: they unmount and end."""
        for rank in range(self.count):
            if rank not in self.gone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.job.pid(rank), signal.SIGTERM)
        for rank in range(self.count):
            assert wait_gone(self.job.pid(rank)), f"daemon {rank} stays\n{self.job.text()}"
            self.gone.add(rank)
