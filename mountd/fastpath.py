"""What the kernel can be told so that it asks less often: readahead size and background requests of our mount.

The kernel reads ahead 128 KiB on a FUSE mount and allows twelve background requests. Both are raised where we may: the
readahead through the mount's entry in /sys/class/bdi, the requests through fusectl, mounted if it is not. Neither is
needed for correctness; what could not be done is told in `hfs status` with its reason. Blocking: runs in a thread,
after the mount answers. Passthrough and stateless opens have their place in this file.

Also asks which pages of our files are in the page cache (cachestat(2), Linux 6.5), for `hfs status`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KernelSettings", "device_of", "resident", "tune"]

_READ_AHEAD_KB = 1024
"""1 MiB, the largest FUSE request: a sequential read costs an eighth of the round trips of the default."""

_MAX_BACKGROUND = 512
"""Twelve readers hung in the source stopped all other cold reads of a mount; 512 is more than a node has readers."""

_FUSECTL = Path("/sys/fs/fuse/connections")
_SYS_CACHESTAT = 451


@dataclass
class KernelSettings:
    """What holds for this mount, and why what does not could not be had."""

    read_ahead_kb: int | None = None
    max_background: int | None = None
    notes: list[str] = field(default_factory=list)


def device_of(mountpoint: str) -> int | None:
    """The device number (st_dev) of the topmost mount on `mountpoint`, without touching it."""
    wanted = os.fsencode(mountpoint)
    found = None
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.split()
            if _unescape(fields[4]) == wanted:
                major, minor = fields[2].split(b":")
                found = os.makedev(int(major), int(minor))
    return found


def tune(device: int) -> KernelSettings:
    """Raise readahead and background requests of the FUSE mount with st_dev `device`."""
    settings = KernelSettings()
    bdi = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    settings.read_ahead_kb = _raise(bdi, _READ_AHEAD_KB, settings, "readahead stays at 128 KiB")
    if not any(_FUSECTL.glob("*")):
        _mount_fusectl(settings)
    connection = _FUSECTL / str(os.minor(device)) / "max_background"
    settings.max_background = _raise(connection, _MAX_BACKGROUND, settings, "background requests stay at 12")
    if settings.max_background:
        _raise(connection.with_name("congestion_threshold"), _MAX_BACKGROUND * 3 // 4, settings, "congestion")
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


def _unescape(field_: bytes) -> bytes:
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field_ = field_.replace(code, byte)
    return field_


_libc = ctypes.CDLL(None, use_errno=True)


def resident(paths: Iterable[bytes]) -> tuple[int, int] | None:
    """Of the files at `paths`, opened through the mount: (bytes in the page cache, bytes in all).

    None where the kernel cannot tell. Blocks as long as an open of the mount may. In a process of its own: a thread of
    the daemon that waits in the daemon's own mount cannot be killed, and a daemon killed meanwhile would keep its
    connection, and everybody who waits in the mount, for ever.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", __file__], input=b"\0".join(paths), capture_output=True, check=False
    )
    figures = done.stdout.split()
    return (int(figures[0]), int(figures[1])) if len(figures) == 2 else None


def _resident(paths: Iterable[bytes]) -> tuple[int, int] | None:
    cached = total = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile
        try:
            found = _cached_bytes(fd)
            if found is None:
                return None
            size = os.fstat(fd).st_size
            cached += min(found, size)
            total += size
        finally:
            os.close(fd)
    return cached, total


def _cached_bytes(fd: int) -> int | None:
    whole = ctypes.create_string_buffer(struct.pack("QQ", 0, 0))
    figures = ctypes.create_string_buffer(5 * 8)
    if _libc.syscall(_SYS_CACHESTAT, fd, whole, figures, 0) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return None
        raise OSError(number, os.strerror(number))
    pages: int = struct.unpack_from("Q", figures)[0]
    return pages * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":  # see `resident`
    found = _resident(filter(None, sys.stdin.buffer.read().split(b"\0")))
    print(*(found or ()))
