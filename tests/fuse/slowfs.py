"""scripts/slowfs in tests: mounts it before a folder, reads its counters, gives it faults.

Made by the fixture `slow_source`. What the commands mean stands in scripts/slowfs/README.md.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fuse.harness import ROOT, Pace, kill, must, run, unmount_lazily, wait_gone

PROGRAM = ROOT / "scripts" / "slowfs" / "slowfs"


class SlowFs:
    """One slowfs that shows `backing` at `path`. `pid` is its process."""

    def __init__(
        self,
        backing: Path,
        path: Path,
        preset: str = "none",
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.backing, self.path, self.options = backing, path, ("--preset", preset, *options)
        self.env = env
        self.pid = 0
        self._pace = Pace()

    def mount(self) -> None:
        """Returns when the mount answers."""
        assert PROGRAM.exists(), f"{PROGRAM} is not built: run scripts/setup"
        self.path.mkdir(exist_ok=True)
        must(PROGRAM, *self.options, self.backing, self.path, env=self.env)
        self.pid = int(self.counters()["pid"])

    def counters(self) -> dict[str, Any]:
        """Operations by kind, `read_bytes`, `in_flight`, `parked` and the rest of its report."""
        # Without a buffer: its size of 0 in stat(2) is not the length of what it says.
        descriptor = os.open(self.path / ".slowfs", os.O_RDONLY)
        try:
            with self._pace:
                return json.loads(os.read(descriptor, 1 << 16))
        finally:
            os.close(descriptor)

    def order(self, *commands: str) -> None:
        """Commands of the control file, one a line: "fault read eio 3", "clear", "reset", "set read_us 1000"."""
        descriptor = os.open(self.path / ".slowfs", os.O_WRONLY)
        try:
            os.write(descriptor, "\n".join(commands).encode())
        finally:
            os.close(descriptor)

    def umount(self) -> None:
        """Unmount, which must work, and wait for the end of the process."""
        must("umount" if os.geteuid() == 0 else "fusermount3", *(() if os.geteuid() == 0 else ("-u",)), self.path)
        assert wait_gone(self.pid), f"slowfs {self.pid} goes on after its mount has gone"

    def remount(self) -> None:
        """A cold source: nothing of it is in the page cache, its counters are zero."""
        self.umount()
        self.mount()

    def close(self) -> None:
        """End it whatever its state."""
        if not self.pid or wait_gone(self.pid, 0):
            if os.path.ismount(self.path):
                unmount_lazily(self.path)
            return
        self.order("clear")
        command = ("umount", self.path) if os.geteuid() == 0 else ("fusermount3", "-u", self.path)
        if run(*command).returncode != 0:
            unmount_lazily(self.path)
        if not wait_gone(self.pid, 5):
            kill(self.pid)


SlowSource = Callable[..., SlowFs]
"""What the fixture `slow_source` is."""
