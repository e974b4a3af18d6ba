"""Other processes: waiting until one is gone, and who holds files of a mount open.

Reads /proc only: no path of a mount is touched, so a hung one cannot hang us.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hfs.mountd.base.errors import MountError
from hfs.mountd.base.printable import printable
from hfs.mounting import mountinfo

_DELETED = " (deleted)"


class User(NamedTuple):
    """A process that keeps a mount busy, and by what."""

    pid: int
    command: str
    how: str
    """"cwd", "open PATH", "mapped PATH", ..."""

    def __str__(self) -> str:
        return printable(f"process {self.pid} ({self.command}): {self.how}")


def open_pid(pid: int) -> int | None:
    """A descriptor that stands for the process even when its number is used again; None if there is no such process."""
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:  # gone, or of a kernel without pidfds
        return None


def wait_gone(descriptor: int, limit_s: float) -> bool:
    """Wait until the process behind `open_pid`'s descriptor has ended; whether it has. Leaves it open."""
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    return bool(waiter.poll(limit_s * 1000))


def wait_daemons_gone(
    ending: Sequence[tuple[str, int]], limit_s: float, is_seen: Callable[[], bool] = lambda: False
) -> None:
    """Of (mountpoint, descriptor of `open_pid`); `is_seen`: whether other namespaces keep the mount alive.
    Raises MountError."""
    deadline = time.monotonic() + limit_s
    for place, descriptor in ending:
        if not wait_gone(descriptor, max(0.0, deadline - time.monotonic())):
            why = "other mount namespaces still show it" if is_seen() else "its daemon still works on the cache"
            raise MountError(f"{place}: unmounted, but {why} after {limit_s:g} s")


def seeing(device: str) -> list[User]:
    """Processes in whose mount namespace a file system is mounted, as far as we may see them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if any(mount.device == device for mount in mountinfo.mounts(entry)):
                    found.append(User(int(entry), _name(entry), "sees it in a mount namespace of its own"))
    return sorted(found)


def users_of(mountpoint: str) -> list[User]:
    """Processes with files, mappings or directories below the (canonical) mountpoint, as far as we may see them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            how = next(_uses(f"/proc/{entry}", mountpoint), None)
            if how is not None:
                found.append(User(int(entry), _name(entry), how))
    return sorted(found)


def having(mounts: Sequence[int]) -> list[User]:
    """Processes with something open in one of these mounts, which no path leads to, as far as we may see them."""
    wanted = {f"mnt_id:\t{number}\n" for number in mounts}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{entry}/fdinfo"):
                    with open(f"/proc/{entry}/fdinfo/{descriptor}", encoding="ascii", errors="replace") as lines:
                        if not wanted.isdisjoint(lines):
                            path = os.readlink(f"/proc/{entry}/fd/{descriptor}")
                            found.append(User(int(entry), _name(entry), f"has {path} open"))
                            break
    return found


def _name(entry: str) -> str:
    try:
        with open(f"/proc/{entry}/comm", encoding="utf-8", errors="backslashreplace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def _below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _uses(process: str, mountpoint: str) -> Iterator[str]:
    """What the process holds below the mountpoint, the most telling first. Nothing for one that is gone or hidden."""
    for name, how in (("cwd", "its working directory"), ("root", "its root directory"), ("exe", "its program")):
        try:
            target = os.readlink(f"{process}/{name}")
        except OSError:
            continue
        if _below(target, mountpoint):
            yield f"{how} is {target}"
    try:
        descriptors = os.listdir(f"{process}/fd")
    except OSError:
        descriptors = []
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{process}/fd/{descriptor}")
        except OSError:
            continue
        if _below(target, mountpoint):
            yield f"has {target.removesuffix(_DELETED)} open"
    for target in _mapped(process):
        if _below(target, mountpoint):
            yield f"has {target.removesuffix(_DELETED)} mapped"


def _mapped(process: str) -> Iterator[str]:
    """Mapped files; not of a process with a thread that waits in the kernel: reading `maps` could wait with it."""
    try:
        for thread in os.listdir(f"{process}/task"):
            with open(f"{process}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2][:1] == b"D":
                    return
        with open(f"{process}/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith("/"):
                    yield fields[5].replace("\\012", "\n")
    except OSError:
        return
