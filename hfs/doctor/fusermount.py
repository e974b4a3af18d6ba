"""fusermount3, which mounts for everybody who is not root: there, with the rights that it needs, and for a user whom it
does not refuse."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator

from hfs.doctor.check_result import CheckResult, fault, good, note
from hfs.doctor.surroundings import Surroundings

_NAME = "fusermount"
_PROGRAM = "fusermount3"
_INSTALL = "it is in the package fuse3"


def check(around: Surroundings) -> Iterator[CheckResult]:
    """What a plain user needs; of root a word where it is missing."""
    path = shutil.which(_PROGRAM, os.F_OK, path=around.search_path)
    if around.uid == 0:
        if path is None:
            yield note(_NAME, f"{_PROGRAM}: not installed: root does not need it, other users would", _INSTALL)
        return
    if path is None:
        yield fault(_NAME, f"{_PROGRAM}: not installed", _INSTALL)
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
            "allow-other",
            f"allow-other is configured, and {around.fuse_config} does not let users have it",
            f"ask for the line user_allow_other in {around.fuse_config}, or leave allow-other out",
        )


def _rights(around: Surroundings, path: str) -> CheckResult:
    found = os.stat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not os.access(path, os.X_OK):
        return fault(
            _NAME, f"{path}: may not be run by user {around.uid} (mode {mode:04o})", _group_remedy(found.st_gid)
        )
    by_capability = _has_capabilities(path)
    if not by_capability and (found.st_uid != 0 or not mode & stat.S_ISUID):
        return fault(
            _NAME, f"{path}: not set-user-ID root (mode {mode:04o}, owner {found.st_uid})", f"chmod u+s {path}"
        )
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return fault(
            _NAME,
            f"{path}: lies on a file system that is mounted nosuid, so it has no rights",
            "put fuse3 where set-user-ID programs work, or mount as root",
        )
    if around.status.get("NoNewPrivs") == "1":
        return fault(
            _NAME,
            f"{path}: programs started here get no further rights (no_new_privs), so it cannot mount",
            "start the container or service without that (allowPrivilegeEscalation, NoNewPrivileges=)",
        )
    return good(_NAME, f"{path} is set-user-ID root" if not by_capability else f"{path} has capabilities")


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
