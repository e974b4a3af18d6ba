"""Being another user, in one thread: the file system then decides about that user, and not about the daemon.

fsuid, fsgid, supplementary groups and capabilities belong to a thread; glibc's setgroups changes all threads, so the
system call is made directly. A thread that has become somebody keeps no capability but the two it needs to become
somebody else, and never becomes the daemon again: it is to be used for nothing else. Knows no paths.

A FUSE mount without allow_other looks at the real, effective and saved ids instead (`fuse_allow_current_process`), so
`become_wholly` sets these too. By them the kernel decides who may send a thread signals, and who may trace it: where
this is used the process must not be dumpable (`be_closed`), or the user would have all of the daemon, root's rights
included. `ReadingUser` is the user as whom the whole source is read, if that is not the daemon's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
from typing import NamedTuple

from hfs.mountd.core.caller import Credentials
from hfs.mountd.native.libc import checked, libc

_SETGROUPS, _SETRESUID, _SETRESGID = {
    "x86_64": (116, 117, 119),
    "aarch64": (159, 147, 149),
    "riscv64": (159, 147, 149),
    "loongarch64": (159, 147, 149),
    "ppc64le": (81, 164, 169),
    "s390x": (206, 208, 210),
}.get(platform.machine(), (None, None, None))
"""The numbers of the system calls, <asm/unistd.h>."""

_CAP_SETGID, _CAP_SETUID = 6, 7
_NEEDED = 1 << _CAP_SETGID | 1 << _CAP_SETUID
_CAPABILITY_VERSION_3 = 0x20080522
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_NOBODY = 0xFFFFFFFF
"""No user's id: setfsuid(2) with it changes nothing, and tells who is who."""

_setfsuid, _setfsgid = libc.setfsuid, libc.setfsgid
_setfsuid.argtypes = _setfsgid.argtypes = [ctypes.c_uint32]


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    """Two of these: capabilities 0 to 31, and those from 32 on."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class ReadingUser(NamedTuple):
    """The user as whom the source is read."""

    who: Credentials
    wholly: bool
    """By `become_wholly`."""

    def become(self) -> None:
        """The calling thread is that user from now on. Raises OSError, and is then nobody to work for."""
        (become_wholly if self.wholly else become)(self.who)


def be_closed() -> None:
    """Nobody but root may trace this process or have its core from now on, whatever its threads become."""
    checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(2)")


def become_wholly(who: Credentials) -> None:
    """The calling thread is `who` in all that the kernel asks, for ever, and has no capability. Needs `be_closed`.

    Raises OSError, and is then nobody to work for.
    """
    _be_in(who)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1:
        raise OSError(errno.EPERM, "the process can be traced")
    checked(libc.syscall(_SETRESGID, who.gid, who.gid, who.gid), "setresgid(2)")
    checked(libc.syscall(_SETRESUID, who.uid, who.uid, who.uid), "setresuid(2)")
    _keep_only(0)


def become(who: Credentials) -> None:
    """The calling thread is `who` for file systems from now on. Raises OSError, and is then nobody to work for."""
    dumpable = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    _be_in(who)
    _setfsgid(who.gid)
    _setfsuid(who.uid)
    _keep_only(_NEEDED)
    if _setfsuid(_NOBODY) & 0xFFFFFFFF != who.uid or _setfsgid(_NOBODY) & 0xFFFFFFFF != who.gid:
        raise OSError(errno.EPERM, f"user {who.uid}, group {who.gid}: refused by setfsuid(2) or setfsgid(2)")
    if dumpable == 1:  # another fsuid takes it from the whole process, and with it core dumps
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def why_impossible() -> str | None:
    """Why no thread of this process can become another user; None if one can."""
    found: list[str | None] = []

    def try_it() -> None:
        try:
            become(Credentials(os.geteuid() + 1, os.getegid() + 1, (os.getegid() + 2,)))
            found.append(None)
        except OSError as error:
            found.append(error.strerror or str(error))

    thread = threading.Thread(target=try_it, name="hfs-as-user", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        return str(error)
    thread.join()
    return found[0]


def _be_in(who: Credentials) -> None:
    """In the groups of `who`."""
    if _SETGROUPS is None:
        raise OSError(errno.ENOSYS, f"setgroups(2) is not known for {platform.machine()}")
    if who.uid == 0:
        raise OSError(errno.EINVAL, "root is not another user")  # and would have its capabilities back
    groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
    checked(libc.syscall(_SETGROUPS, len(who.groups), groups), "setgroups(2)")


def _keep_only(wanted: int) -> None:
    """Take all other effective capabilities from the calling thread; what it may have back stays permitted."""
    header = _Header(_CAPABILITY_VERSION_3, 0)
    sets = (_Capabilities * 2)()
    checked(libc.capget(ctypes.byref(header), sets), "capget(2)")
    sets[0].effective = sets[0].permitted & wanted
    sets[1].effective = 0
    checked(libc.capset(ctypes.byref(header), sets), "capset(2)")
