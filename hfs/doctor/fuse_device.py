"""/dev/fuse: there, what it should be, and open to this user; and whether root may mount at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from hfs.doctor.check_result import CheckResult, fault, good
from hfs.doctor.surroundings import Surroundings

_NAME = "fuse-device"
_NUMBER = (10, 229)
"""FUSE_MINOR of the misc devices, <linux/miscdevice.h>."""


def check(around: Surroundings) -> Iterator[CheckResult]:
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
            _NAME, f"{path}: {missing}", "give the container the device: --device /dev/fuse" if loaded else load
        )
    if not stat.S_ISCHR(found.st_mode):
        return fault(_NAME, f"{path}: not a device", "make it: mknod -m 666 /dev/fuse c 10 229")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EACCES:
            return fault(
                _NAME,
                f"{path}: may not be opened by user {around.uid} (mode {stat.S_IMODE(found.st_mode):04o})",
                "ask for mode 0666 (it is the usual one)",
            )
        if error.errno == errno.EPERM:
            return fault(
                _NAME,
                f"{path}: this control group may not open it",
                "give the container the device: --device /dev/fuse",
            )
        return fault(_NAME, f"{path}: cannot be opened ({error.strerror})", load)
    os.close(descriptor)
    if (os.major(found.st_rdev), os.minor(found.st_rdev)) != _NUMBER:
        return fault(_NAME, f"{path}: another device", "make it: mknod -m 666 /dev/fuse c 10 229")
    return good(_NAME, f"{path} may be opened by user {around.uid}")
