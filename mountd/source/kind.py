"""What kind of file system something below SOURCE lies on: what policies/permissions.py wants to know of it.

Asks the kernel, which knows the mount of an open file, and the file for the names of its extended attributes. Called by
`source` in its threads.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

__all__ = ["FileSystemSeen", "look_at"]


class FileSystemSeen(NamedTuple):
    """What `policies.permissions` wants to know."""

    kind: str
    options: tuple[str, ...]
    xattrs: tuple[str, ...]
    device: int
    """st_dev"""


def look_at(directory_fd: int, name: bytes) -> FileSystemSeen:
    """The file system of `name` in an open directory (empty: the directory itself). Blocks. Raises OSError."""
    fd = os.open(name or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        device = os.fstat(fd).st_dev
        try:
            xattrs = tuple(os.listxattr(f"/proc/self/fd/{fd}"))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            xattrs = ()
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            (number,) = (line.split()[1] for line in lines if line.startswith("mnt_id:"))
    finally:
        os.close(fd)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.split(" ", 1)[0] == number:
                kind, _, options = line.rstrip("\n").partition(" - ")[2].split(" ", 2)
                return FileSystemSeen(kind, tuple(options.split(",")), xattrs, device)
    return FileSystemSeen("a file system of another namespace", (), xattrs, device)
