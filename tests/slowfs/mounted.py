"""One mounted slowfs, and what is done to it, for the tests of slowfs itself. Not a test module."""

import json
import mmap
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOWFS = Path(__file__).parents[2] / "scripts/slowfs"
PAGE = 4096
PATIENCE_S = 20  # far above what any wait takes; reached only by a failure


class Mount:
    """One mounted slowfs. `end` unmounts it if nobody has and waits for its process."""

    def __init__(self, backing: Path, mountpoint: Path, *options: str, descriptors: int | None = None) -> None:
        self.backing, self.path = backing, mountpoint
        # prlimit, as no code of this process may run in the child: it has threads
        limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        subprocess.run([*limit, SLOWFS / "slowfs", *options, backing, mountpoint], check=True, timeout=PATIENCE_S)
        self.pid: int = self.state()["pid"]
        self._process = os.pidfd_open(self.pid)

    def state(self) -> dict[str, Any]:
        return json.loads((self.path / ".slowfs").read_bytes())

    def tell(self, *commands: str) -> None:
        (self.path / ".slowfs").write_text("".join(f"{command}\n" for command in commands))

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Asks again until `holds` of the state; the test's own time limit ends what never comes."""
        while not holds(self.state()):
            os.sched_yield()

    def gone(self) -> bool:
        """Has the process ended (waits for it a while)?"""
        return bool(select.select([self._process], [], [], PATIENCE_S)[0])

    def end(self) -> None:
        if os.path.ismount(self.path):
            command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*command, self.path], check=True, timeout=PATIENCE_S)
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)
            self.gone()
        os.close(self._process)


def files(backing: Path, count: int, size: int = 100) -> list[str]:
    """Makes `count` files of different bytes; their names."""
    names = [f"file{i}" for i in range(count)]
    for i, name in enumerate(names):
        (backing / name).write_bytes(bytes([65 + i]) * size)
    return names


def errno_of(action: Callable[[], object]) -> int:
    """The errno `action` fails with; 0 when it does not fail."""
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def read_direct(path: Path, size: int, offset: int = 0) -> bytes:
    """One read of `size` bytes at `offset` (multiples of a page) past the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, size) as buffer:
            return buffer[: os.preadv(descriptor, [buffer], offset)]
    finally:
        os.close(descriptor)
