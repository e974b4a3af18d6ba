"""The way to a mount that is to be taken away: to that one and to no other.

Below a directory of another user a path leads elsewhere a moment after it was looked up, or into a file system of that
user's which never answers. So root goes down by descriptors of directories, follows no link, goes into nothing that
another plain user serves, and knows what is mounted at the end by its number. As `mountd.core.path_steps`, of which the
keeper knows nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator

from hfs.mountd.supervisor.table import Mount, number_of, numbered

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_UMOUNT_NOFOLLOW = 8  # <sys/mount.h>

_libc = ctypes.CDLL(None, use_errno=True)


def unmounted(mountpoint: str, flags: int, is_meant: Callable[[Mount], bool] | None = None) -> int:
    """Unmount what lies on top there: 0, or the errno of umount2(2); ESTALE: root finds another than is meant. None:
    whatever is there. Raises OSError as `reached`."""
    with contextlib.ExitStack() as stack:
        path = mountpoint
        if is_meant is not None and os.geteuid() == 0:  # others take away by fusermount3, which looks for itself
            path, number = stack.enter_context(reached(mountpoint))
            mount = numbered(number)
            if mount is None or not is_meant(mount):
                return errno.ESTALE
        return 0 if _libc.umount2(os.fsencode(path), _UMOUNT_NOFOLLOW | flags) == 0 else ctypes.get_errno()


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
            served_by = None if number == before else _server_of(number)
            if served_by not in {None, 0, os.geteuid()}:
                raise PermissionError(errno.EPERM, f"lies in a file system that user {served_by} serves", part)
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
    mount = numbered(number)
    return None if mount is None else mount.owner_uid
