"""Other processes: waiting until one is gone, and who holds files of a mount open.

Reads /proc only: no path of a mount is touched, so a hung one cannot hang us.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hfs.mountd.core.errors import MountError, printable
from hfs.mountd.core.socket_places import socket_peer
from hfs.mountd.supervisor.table import number_of
from hfs.mounting import mountinfo

_DELETED = " (deleted)"
_LINKS = (("cwd", "its working directory"), ("root", "its root directory"), ("exe", "its program"))
_SO_PEERPIDFD = 77  # <asm-generic/socket.h>; the same but for alpha, parisc and sparc
_ASK = {"nfs", "nfs4", "9p", "afs", "cifs", "smb3", "ceph"}
"""File systems that may ask their server when a link of /proc is followed, even if only its mount is looked at."""


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


def open_peer(connection: socket.socket) -> int | None:
    """As `open_pid`, of who listens at the other end; of another pid namespace only from Linux 6.5 on."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return open_pid(socket_peer(connection).pid)


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
    return _all_that(lambda process: _sees(process, device))


def users_of(mountpoint: str) -> list[User]:
    """Processes with files, mappings or directories below the (canonical) mountpoint, as far as we may see them."""
    return _all_that(lambda process: _uses(process, mountpoint))


def having(mounts: Sequence[int]) -> list[User]:
    """Processes that have something of one of these mounts, which no path leads to, as far as we may see them."""
    return _all_that(lambda process: _has(process, mounts)) if mounts else []


def _all_that(how: Callable[[str], Iterator[str]]) -> list[User]:
    """Each with the first that is said of it."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if (said := next(how(f"/proc/{entry}"), None)) is not None:
            found.append(User(int(entry), _name(entry), said))
    return sorted(found)


def _sees(process: str, device: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        if any(mount.device == device for mount in mountinfo.mounts(process.removeprefix("/proc/"))):
            yield "sees it in a mount namespace of its own"


def _name(entry: str) -> str:
    try:
        with open(f"/proc/{entry}/comm", encoding="utf-8", errors="backslashreplace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def _below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _has(process: str, mounts: Sequence[int]) -> Iterator[str]:
    """What the process holds in one of the mounts, as `_uses`."""
    wanted = {f"mnt_id:\t{number}\n" for number in mounts}
    for descriptor in _listed(f"{process}/fdinfo"):
        with contextlib.suppress(OSError):
            with open(f"{process}/fdinfo/{descriptor}", encoding="ascii", errors="replace") as lines:
                is_open = not wanted.isdisjoint(lines)
            if is_open:
                yield f"has {os.readlink(f'{process}/fd/{descriptor}')} open"
    links = {f"{process}/{name}": how for name, how in _LINKS}
    by_device = {fields[3]: fields[0] for fields in _maps(process)}  # each such mount has devices of its own
    for place in by_device.values():
        begin, _, end = place.partition("-")
        links[f"{process}/map_files/{int(begin, 16):x}-{int(end, 16):x}"] = "a file that is mapped"
    with contextlib.suppress(OSError):
        seen = mountinfo.mounts(process.removeprefix("/proc/"))
        for link, how in links.items():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                seen_in = mountinfo.enclosing(target, seen)
                if (seen_in is None or seen_in.fstype not in _ASK) and _mount_of(link) in mounts:
                    yield f"{how} is {target}"


def _mount_of(link: str) -> int:
    """The mount that a link of /proc leads to, as mountinfo has it. Raises OSError."""
    descriptor = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        return number_of(descriptor)
    finally:
        os.close(descriptor)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _uses(process: str, mountpoint: str) -> Iterator[str]:
    """What the process holds below the mountpoint, the most telling first. Nothing for one that is gone or hidden."""
    for name, how in _LINKS:
        try:
            target = os.readlink(f"{process}/{name}")
        except OSError:
            continue
        if _below(target, mountpoint):
            yield f"{how} is {target}"
    for descriptor in _listed(f"{process}/fd"):
        try:
            target = os.readlink(f"{process}/fd/{descriptor}")
        except OSError:
            continue
        if _below(target, mountpoint):
            yield f"has {target.removesuffix(_DELETED)} open"
    for fields in _maps(process):
        target = fields[5].replace("\\012", "\n")
        if _below(target, mountpoint):
            yield f"has {target.removesuffix(_DELETED)} mapped"


def _maps(process: str) -> Iterator[list[str]]:
    """Lines of `maps` of mapped files; not of a process with a thread that waits in the kernel: reading could wait with
    it."""
    try:
        for thread in os.listdir(f"{process}/task"):
            with open(f"{process}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2][:1] == b"D":
                    return
        with open(f"{process}/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith("/"):
                    yield fields
    except OSError:
        return
