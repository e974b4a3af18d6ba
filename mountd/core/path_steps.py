"""Opening what lies in directories of others step by step, and going into no file system that another plain user
serves.

A plain user may mount a file system of FUSE on any directory or file of its own, as in /tmp, and let all others in: a
look at it ends when its server likes, and no signal ends the wait. An O_PATH descriptor of its root asks nobody; so
each step is one, and the kernel's table says whose mount it is in before anything is asked of it. Where openat2(2) is
to be had, it says in one call that there is no other mount. Standard library only.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import struct
from collections.abc import Callable

_STEP = os.O_PATH | os.O_CLOEXEC
_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_RESOLVE_NO_XDEV, _RESOLVE_NO_SYMLINKS = 0x01, 0x04  # <linux/openat2.h>
_SYS_OPENAT2 = 437  # the same on every architecture (since Linux 5.6)
_SERVER = re.compile(rb"(?:^|,)user_id=([0-9]+)")


def open_step(name: str, above: int | None = None, *, links_ok: bool = False, any_kind: bool = False) -> int:
    """An O_PATH descriptor of a directory, of a name in an open one or of a path; with `any_kind` of whatever is there,
    of a link itself too. Raises OSError: NotADirectoryError for a link where none may be, PermissionError where another
    plain user serves it. With a path only its end is safe: what stands above must be root's or our own."""
    flags = _STEP | (0 if links_ok else os.O_NOFOLLOW) | (0 if any_kind else os.O_DIRECTORY)
    descriptor = os.open(name, flags, dir_fd=above)
    try:
        refuse_strange(descriptor, name, above)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_strange(descriptor: int, name: str, above: int | None = None) -> None:
    """Raises PermissionError where what is open, as a path only, is served by another plain user; OSError. `above`:
    where it was opened, which was looked at before."""
    try:
        number = mount_number(descriptor)
        if above is not None and number == mount_number(above):
            return
    except (
        PermissionError
    ):  # before Linux 5.14, of a process that has become another user: who waits for it has a limit
        return
    server = _server_of(number)
    if server not in {None, 0, os.geteuid()}:
        raise PermissionError(errno.EPERM, f"lies in a file system that user {server} serves", name)


def _open_in_mount(name: str, above: int, flags: int) -> int | None:
    """A descriptor of what lies in the mount of the directory `above`; None: it does not, or openat2(2) is not to be
    had here. Raises OSError."""
    how = _HOW.pack(flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS)
    syscall, get_errno = _calls()
    descriptor = syscall(_SYS_OPENAT2, above, os.fsencode(name), how, len(how))
    if descriptor >= 0:
        return descriptor
    number = get_errno()
    if number in {errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EAGAIN}:
        return None
    raise OSError(number, os.strerror(number), name)


@functools.cache
def _calls() -> tuple[Callable[..., int], Callable[[], int]]:
    """syscall(2), and the errno of it."""
    import ctypes  # commands that must answer at once look for sockets, by steps alone

    return ctypes.CDLL(None, use_errno=True).syscall, ctypes.get_errno


def open_name(name: str, above: int, flags: int) -> int:
    """A descriptor of what is there, and is no link. Raises OSError as `open_step`."""
    if (same := _open_in_mount(name, above, flags)) is not None:
        return same
    step = open_step(name, above, any_kind=True)
    try:
        return os.open(f"/proc/self/fd/{step}", flags | os.O_CLOEXEC)
    finally:
        os.close(step)


def stat_name(name: str, above: int) -> os.stat_result:
    """Of what is there, or of the link. Raises OSError as `open_step`."""
    step = _open_in_mount(name, above, os.O_PATH)
    if step is None:
        step = open_step(name, above, any_kind=True)
    try:
        return os.fstat(step)
    finally:
        os.close(step)


def mount_number(descriptor: int) -> int:
    """Of the mount that a descriptor lies in, as mountinfo has it. Asks no file system. Raises OSError."""
    told = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(told, 4096).partition(b"mnt_id:")[2].split(None, 1)[0])
    finally:
        os.close(told)


def _server_of(number: int) -> int | None:
    """Who has mounted it, where a process serves it; None: the kernel does, or it is gone."""
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            if line.startswith(b"%d " % number):
                found = _SERVER.search(line.partition(b" - ")[2].rpartition(b" ")[2])
                return int(found[1]) if found else None
    return None
