"""How reads of a disk wait, as the kernel counts them: also those that no daemon sees, of files passed through.

/sys/dev/block/MAJOR:MINOR/stat and `inflight` (Documentation/block/stat.rst, Documentation/ABI/stable/sysfs-block), of
a partition or a whole disk. They say nothing of who reads, so they are looked at only while the kernel reads staged
files by itself. Where a file system has no block device of its own (btrfs, ZFS, overlayfs) nothing is known. Two files
of /sys are read, for some 20 us; nothing waits for the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from hfs.policies.prefetch.yielding import Waits

_BY_NUMBER = Path("/sys/dev/block")
_READS, _READ_MS = 0, 3
"""Places in `stat`: reads that have ended, and milliseconds that they have taken."""


class DiskReads:
    """Of the disk with this st_dev."""

    def __init__(self, device: int, by_number: Path = _BY_NUMBER) -> None:
        self._folder = by_number / f"{os.major(device)}:{os.minor(device)}"
        self._waits = Waits(0, 0, 0)
        self._before: tuple[int, int] | None = None
        """Reads and milliseconds at the last look, if they counted then."""

    def look(self, *, counts: bool) -> Waits:
        """What has waited since the first look, as long as it `counts`."""
        found = self._read() if counts else None
        if found is None:
            self._before, self._waits = None, self._waits._replace(waiting=0)
            return self._waits
        reads, spent_ms, waiting = found
        if self._before is not None:
            more, more_ms = max(0, reads - self._before[0]), max(0, spent_ms - self._before[1])
            self._waits = Waits(self._waits.waits + more, self._waits.waited_ns + more_ms * 1_000_000, waiting)
        self._before = reads, spent_ms
        return self._waits

    def _read(self) -> tuple[int, int, int] | None:
        try:
            stat = (self._folder / "stat").read_text().split()
            in_flight = (self._folder / "inflight").read_text().split()
            return int(stat[_READS]), int(stat[_READ_MS]), int(in_flight[0])
        except (OSError, ValueError, IndexError):
            return None
