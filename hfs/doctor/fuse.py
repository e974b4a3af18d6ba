"""What every mount needs of this machine: /dev/fuse, fusermount3, and what the kernel has.

The device is there, what it should be, and open to this user, and root may mount at all. fusermount3, which mounts for
everybody else, has the rights that it needs, for a user whom it does not refuse. Of the kernel versions are compared
where nothing else can be asked; system calls are tried, since a container's filter may refuse what the kernel has, and
some distributions carry later features in old kernels.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping

from hfs.doctor.surroundings import CheckResult, Surroundings, fault, good, limit, note

_DEVICE = "fuse-device"
_FUSERMOUNT, _RIGHTS = "fusermount", "fusermount-rights"
_ALLOW_OTHER = "allow-other"
CERTAIN = frozenset({_DEVICE, _FUSERMOUNT, _ALLOW_OTHER})
"""Checks whose faults no mount gets over, however it is made here."""
_NUMBER = (10, 229)
"""FUSE_MINOR of the misc devices, <linux/miscdevice.h>."""
_PROGRAM = "fusermount3"
_INSTALL = "it is in the package fuse3"
RESEND = (6, 9)
"""FUSE_HAS_RESEND and passthrough."""

_CALLS = {
    "pidfd_open": (434, "5.3", "the end of a daemon is not waited for at hfs umount"),
    "openat2": (437, "5.6", "names below SOURCE are opened a directory at a time"),
    "faccessat2": (439, "5.8", "other users' rights are asked for by opening files"),
}
"""Number (the same on every architecture), since when, what is lost without it."""
_MISSING = {errno.ENOSYS, errno.EPERM}
"""EPERM: a filter from before the call."""


def check_device(around: Surroundings) -> Iterator[CheckResult]:
    """One finding of the device, and one of root's rights if it lacks them."""
    yield _device(around)
    if around.uid == 0 and not around.may_mount:
        yield fault(
            "fuse-rights",
            "root without CAP_SYS_ADMIN may not mount, as in a container",
            "give the container the capability (--cap-add SYS_ADMIN), or mount on the host and show it in there",
        )


def _device(around: Surroundings) -> CheckResult:
    path = around.device
    loaded = any(line.split()[-1:] == ["fuse"] for line in around.lines("filesystems"))
    load = "ask for the module: modprobe fuse"
    try:
        found = os.stat(path)
    except OSError as error:
        missing = "missing" if error.errno == errno.ENOENT else f"cannot be looked at ({error.strerror})"
        return fault(
            _DEVICE, f"{path}: {missing}", "give the container the device: --device /dev/fuse" if loaded else load
        )
    if not stat.S_ISCHR(found.st_mode):
        return fault(_DEVICE, f"{path}: not a device", "make it: mknod -m 666 /dev/fuse c 10 229")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EACCES:
            return fault(
                _DEVICE,
                f"{path}: may not be opened by user {around.uid} (mode {stat.S_IMODE(found.st_mode):04o})",
                "ask for mode 0666 (it is the usual one)",
            )
        if error.errno == errno.EPERM:
            return fault(
                _DEVICE,
                f"{path}: this control group may not open it",
                "give the container the device: --device /dev/fuse",
            )
        return fault(_DEVICE, f"{path}: cannot be opened ({error.strerror})", load)
    os.close(descriptor)
    if (os.major(found.st_rdev), os.minor(found.st_rdev)) != _NUMBER:
        return fault(_DEVICE, f"{path}: another device", "make it: mknod -m 666 /dev/fuse c 10 229")
    return good(_DEVICE, f"{path} may be opened by user {around.uid}")


def check_fusermount(around: Surroundings) -> Iterator[CheckResult]:
    """What a plain user needs; of root a word where it is missing."""
    path = shutil.which(_PROGRAM, os.F_OK, path=around.search_path)
    if around.uid == 0:
        if path is None:
            yield note(_FUSERMOUNT, f"{_PROGRAM}: not installed: root does not need it, other users would", _INSTALL)
        return
    if path is None:
        yield fault(_FUSERMOUNT, f"{_PROGRAM}: not installed", _INSTALL)
        return
    yield _rights(around, path)
    try:
        pwd.getpwuid(around.uid)
    except KeyError:
        yield fault(
            "user-name",
            f"user {around.uid} has no name, and {_PROGRAM} refuses users without one",
            "give the container the user's line of /etc/passwd, or mount as root",
        )
    if around.allow_other and not _user_allow_other(around.fuse_config):
        yield fault(
            _ALLOW_OTHER,
            f"allow-other is configured, and {around.fuse_config} does not let users have it",
            f"ask for the line user_allow_other in {around.fuse_config}, or leave allow-other out",
        )


def _rights(around: Surroundings, path: str) -> CheckResult:
    found = os.stat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not os.access(path, os.X_OK):
        return fault(
            _RIGHTS, f"{path}: may not be run by user {around.uid} (mode {mode:04o})", _group_remedy(found.st_gid)
        )
    by_capability = _has_capabilities(path)
    if not by_capability and (found.st_uid != 0 or not mode & stat.S_ISUID):
        return fault(
            _RIGHTS, f"{path}: not set-user-ID root (mode {mode:04o}, owner {found.st_uid})", f"chmod u+s {path}"
        )
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return fault(
            _RIGHTS,
            f"{path}: lies on a file system that is mounted nosuid, so it has no rights",
            "put fuse3 where set-user-ID programs work, or mount as root",
        )
    if around.status.get("NoNewPrivs") == "1":
        return fault(
            _RIGHTS,
            f"{path}: programs started here get no further rights (no_new_privs), so it cannot mount",
            "start the container or service without that (allowPrivilegeEscalation, NoNewPrivileges=)",
        )
    return good(_RIGHTS, f"{path} is set-user-ID root" if not by_capability else f"{path} has capabilities")


def _has_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _group_remedy(gid: int) -> str:
    return f"ask to be made a member of group {gid}"


def _user_allow_other(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(line.split("#")[0].strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def version(release: str) -> tuple[int, int]:
    """(6, 8) of "6.8.0-31-generic"; (0, 0) of what is no version."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def refused_calls(numbers: Mapping[str, tuple[int, str, str]] = _CALLS) -> set[str]:
    """Names of the calls that cannot be made. Each is made with descriptors and pointers that no kernel takes."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    refused = set()
    for name, (number, _, _) in numbers.items():
        ctypes.set_errno(0)
        if call(ctypes.c_long(number), ctypes.c_long(-1), None, None, ctypes.c_long(0)) >= 0:
            continue
        if ctypes.get_errno() in _MISSING:
            refused.add(name)
    return refused


def check_kernel(around: Surroundings, refused: Callable[[], set[str]] = refused_calls) -> Iterator[CheckResult]:
    """One finding of the version, one for each call that is refused."""
    name = f"Linux {around.release}"
    if version(around.release) < RESEND:
        yield limit(
            "kernel",
            f"{name}: no passthrough, and after a crash of the daemon open files answer with errors",
            "Linux 6.9 or newer has both",
        )
    else:
        yield good("kernel", f"{name}: passthrough is possible, open files outlive a crash of the daemon")
    for call in sorted(refused()):
        _, since, loss = _CALLS[call]
        what = f"{call}(2) is refused: {loss}"
        remedy = f"Linux {since} or newer has it; in a container, a seccomp profile that knows it"
        yield limit(f"kernel-{call.replace('_', '-')}", what, remedy)


def io_mode_missing(around: Surroundings) -> str | None:
    """Why the kernel cannot pass reads through here, whatever libfuse; None if it can."""
    if version(around.release) < RESEND:
        return f"Linux {around.release} is older than 6.9"
    if not around.may_mount:
        return f"user {around.uid} has no CAP_SYS_ADMIN"
    if around.in_user_namespace:
        return "CAP_SYS_ADMIN is one of this user namespace only"
    return None
