"""The way to a mount that is to be taken away: to that one and to no other.

Below a directory of another user a path leads elsewhere a moment after it was looked up, or into a file system of that
user's which never answers. So root goes down by descriptors of directories, follows no link, goes into nothing that
another plain user serves, and knows what is mounted at the end by its number. As `mountd.core.path_steps`, of which the
keeper knows nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from hfs.mountd.supervisor.table import number_of, options_of

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SERVER = re.compile("(?:^|,)user_id=([0-9]+)")


@contextlib.contextmanager
def reached(mountpoint: str) -> Iterator[tuple[str, int]]:
    """(path, number as mountinfo has it) of what is mounted on top there. The path leads to it until the block ends.
    Touches no mount. Raises OSError: NotADirectoryError where a link is on the way, PermissionError where another plain
    user serves something on it."""
    above, name = os.path.split(mountpoint)
    directory = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        number = number_of(directory)
        for part in filter(None, above.split("/")):
            below = os.open(part, _STEP | os.O_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory, before, number = below, number, number_of(below)
            if number != before and _server_of(number) not in {None, 0, os.geteuid()}:
                text = f"lies in a file system that user {_server_of(number)} serves"
                raise PermissionError(errno.EPERM, text, part)
        end = os.open(name, _STEP, dir_fd=directory)
        try:
            number = number_of(end)
        finally:
            os.close(end)
        yield f"/proc/self/fd/{directory}/{name}", number
    finally:
        os.close(directory)


def _server_of(number: int) -> int | None:
    """Who has mounted it, where a process serves it; None: the kernel does, or it is gone."""
    found = _SERVER.search(options_of(number))
    return int(found[1]) if found else None
