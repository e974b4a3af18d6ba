"""What the kernel is told through /sys so that it asks less often: readahead size and background requests of our mount.

The kernel reads ahead 128 KiB on a FUSE mount and allows twelve background requests. Both are raised where we may: the
readahead through the mount's entry in /sys/class/bdi, the requests through fusectl, mounted if it is not (INIT has
asked for them already, within the kernel's limit for users). Neither is needed for correctness; what could not be done
is told in `hfs status` with its reason. Blocking: runs in a thread, after the mount answers.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

_READ_AHEAD_KB = 1024
"""1 MiB, the largest FUSE request: a sequential read costs an eighth of the round trips of the default. Larger ones,
where root has raised `fs.fuse.max_pages_limit` (Linux 6.13), did not pay: docs/benchmarks.md."""

MAX_BACKGROUND = 512
"""Twelve readers hung in the source stopped all other cold reads of a mount; 512 is more than a node has readers."""

_FUSECTL = Path("/sys/fs/fuse/connections")


@dataclass
class KernelSettings:
    """What holds for this mount, and why what does not could not be had."""

    read_ahead_kb: int | None = None
    max_background: int | None = None
    notes: list[str] = field(default_factory=list)


def tune(device: str) -> KernelSettings:
    """Raise readahead and background requests of the FUSE mount `device`, "MAJOR:MINOR" as in mountinfo; empty: this
    kernel does not tell which mount it is.
    """
    settings = KernelSettings()
    if not device:
        settings.notes.append("readahead and background requests stay: the kernel does not tell the mount's device")
        return settings
    bdi = Path(f"/sys/class/bdi/{device}/read_ahead_kb")
    settings.read_ahead_kb = _raise(bdi, _READ_AHEAD_KB, settings, "readahead stays at 128 KiB")
    if not any(_FUSECTL.glob("*")):
        _mount_fusectl(settings)
    connection = _FUSECTL / device.partition(":")[2] / "max_background"
    otherwise = f"{MAX_BACKGROUND} background requests were asked for"
    settings.max_background = _raise(connection, MAX_BACKGROUND, settings, otherwise)
    if settings.max_background:
        _raise(connection.with_name("congestion_threshold"), MAX_BACKGROUND * 3 // 4, settings, "congestion")
    return settings


def _raise(path: Path, value: int, settings: KernelSettings, otherwise: str) -> int | None:
    try:
        if int(path.read_text()) < value:
            path.write_text(str(value))
        return int(path.read_text())
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        settings.notes.append(f"{otherwise}: {path}: {reason}")
        return None


def _mount_fusectl(settings: KernelSettings) -> None:
    try:
        done = subprocess.run(
            ["mount", "-t", "fusectl", "none", str(_FUSECTL)], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        settings.notes.append(f"fusectl could not be mounted: {error}")
        return
    if done.returncode:
        settings.notes.append(f"fusectl could not be mounted: {done.stderr.strip() or done.returncode}")
