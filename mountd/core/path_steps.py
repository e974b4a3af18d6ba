"""Opening a directory step by step, and going into no file system that another plain user serves.

A plain user may mount a file system of FUSE on any directory of its own, as in /tmp, and let all others in: a look at
it ends when its server likes, and no signal ends the wait. An O_PATH descriptor of its root asks nobody; so each step
is one, and the kernel's table says whose mount it is in before anything is asked of it. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SERVER = re.compile(rb"(?:^|,)user_id=([0-9]+)")


def open_step(name: str, above: int | None = None, *, links_ok: bool = False) -> int:
    """An O_PATH descriptor of a directory, of a name in an open one or of a path. Raises OSError: NotADirectoryError
    for a link where none may be, PermissionError where another plain user serves it. With a path only its end is safe:
    what stands above must be root's or our own."""
    descriptor = os.open(name, _STEP | (0 if links_ok else os.O_NOFOLLOW), dir_fd=above)
    try:
        number = mount_number(descriptor)
        if above is None or number != mount_number(above):
            server = _server_of(number)
            if server not in {None, 0, os.geteuid()}:
                raise PermissionError(errno.EPERM, f"lies in a file system that user {server} serves", name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_steps(path: str) -> int:
    """The same of an absolute path without links, each of whose directories may be anybody's."""
    descriptor = open_step("/")
    for name in filter(None, path.split("/")):
        above = descriptor
        try:
            descriptor = open_step(name, above)
        finally:
            os.close(above)
    return descriptor


def mount_number(descriptor: int) -> int:
    """Of the mount that a descriptor lies in, as mountinfo has it. Asks no file system. Raises OSError."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def _server_of(number: int) -> int | None:
    """Who has mounted it, where a process serves it; None: the kernel does, or it is gone."""
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            if line.startswith(b"%d " % number):
                found = _SERVER.search(line.partition(b" - ")[2].rpartition(b" ")[2])
                return int(found[1]) if found else None
    return None
