"""The kernel: its version and what that gives; which system calls it lets us make.

Versions are compared where nothing else can be asked; system calls are tried, since a container's filter may refuse
what the kernel has, and some distributions carry later features in old kernels.
"""

from __future__ import annotations

import ctypes
import errno
import re
from collections.abc import Callable, Iterator, Mapping

from hfs.doctor.check_result import CheckResult, good, limit
from hfs.doctor.surroundings import Surroundings

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


def check(around: Surroundings, refused: Callable[[], set[str]] = refused_calls) -> Iterator[CheckResult]:
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
