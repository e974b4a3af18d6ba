"""What `hfs status` tells of the daemon itself: the process, its keeper, its configuration, the kernel's settings."""

from __future__ import annotations

import dataclasses
import os
import time
from importlib import metadata

from hfs.mountd.core.background import faults
from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.config import describe
from hfs.mountd.core.open_files import read_small
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.ending import Ending
from hfs.mountd.kernel import KernelSettings


class DaemonStatus:
    """The keys `pid`, `version`, `mountpoint`, `keeper`, `uptime_s`, `memory`, `descriptors`, `background_faults`,
    `kernel` and `config`."""

    def __init__(self, basics: Basics, ending: Ending, buffers: Buffers) -> None:
        self._basics = basics
        self._ending = ending
        self._buffers = buffers
        self._started_s = time.time()
        self._kernel = KernelSettings()

    def tuned(self, settings: KernelSettings) -> None:
        """What the kernel took of our settings for the mount."""
        self._kernel = settings

    def gather(self) -> dict[str, object]:
        """The figures of this moment."""
        basics = self._basics
        return {
            "pid": os.getpid(),
            "version": metadata.version("hfs-cache"),
            "mountpoint": basics.config.mountpoint,
            "keeper": {**self._ending.keeper, "journal": basics.journal.statistics()},
            "uptime_s": round(time.time() - self._started_s, 1),
            "memory": {"buffer_bytes": self._buffers.used_bytes, "resident_bytes": _resident_bytes()},
            "descriptors": basics.open_files.statistics(),
            "background_faults": faults(),
            "kernel": dataclasses.asdict(self._kernel),
            "config": describe(basics.config, basics.origins),
        }


def _resident_bytes() -> int:
    return int(read_small("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGESIZE")
