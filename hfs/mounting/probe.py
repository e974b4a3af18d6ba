"""Looking at a path that may never answer: in a child process, with a time limit.

A stat of a mount whose daemon hangs, or of a dead network file system, cannot be interrupted, and a process with such a
thread cannot even end. So a child looks; when it does not answer in time it is killed and left behind, and nobody waits
for it.

The child is a bare interpreter (about 15 ms): a fork of a training job with threads and devices would not be safe.
Where SOURCE is read as another user (`as-user`), the child becomes that user before it looks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from hfs.mountd.core.errors import MountError
from hfs.mountd.supervisor.daemons import received

PROBE_S = 10.0
"""A busy metadata server answers a stat within a second or two; ten without an answer is no answer."""

# These read argv themselves: they are another process's text. The first stands before each other: it becomes the user
# that it is given, or answers "kept N".
_BECOME = """
import os, sys
user = sys.argv.pop(1)
if user:
    try:
        uid, gid, groups = user.split(":")
        os.setgroups([int(group) for group in groups.split(",") if group])
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
    except OSError as error:
        sys.exit(print("kept", error.errno))
"""
# Answers "errno N" or "ok FIELDS".
_CODE = """
what, path = sys.argv[1], os.fsencode(sys.argv[2])
try:
    if what == "xattr":
        print("ok", os.getxattr(path, sys.argv[3]).hex())
    elif what == "real":
        print("ok", os.path.realpath(path).hex())
    else:
        s = os.stat(path)
        with os.scandir(path) as names:
            entries = int(next(names, None) is not None)
        os.stat(path + b"/.")  # a directory may be listed and not entered
        print("ok", s.st_dev, s.st_ino, entries)
except OSError as error:
    print("errno", error.errno)
"""
# Opens a path as that alone, and gives the descriptor to who has its standard input.
_OPEN = """
try:
    descriptor = os.open(os.fsencode(sys.argv[1]), os.O_PATH)
    socket.send_fds(socket.socket(fileno=0), [b"."], [descriptor])
except OSError as error:
    print("errno", error.errno)
"""
_left_behind: list[subprocess.Popen[bytes]] = []
"""Children that did not end; kept so that nothing waits for them or warns about them."""


class Look(NamedTuple):
    """What a look at a directory found."""

    device: int
    inode: int
    has_entries: bool


def look(path: str, as_user: str | None = None, *, limit_s: float = PROBE_S) -> Look:
    """stat, and the first directory entry. `as_user`: as the configuration has it.

    Raises OSError; TimeoutError when there is no answer; MountError where nobody can become that user.
    """
    device, inode, entries = (int(field) for field in _ask(["list", path], limit_s, as_user))
    return Look(device, inode, bool(entries))


def real_path(path: str, as_user: str) -> str:
    """The path without symlinks, as this user finds it. Raises as `look`."""
    (found,) = _ask(["real", path], PROBE_S, as_user)
    return os.fsdecode(bytes.fromhex(found))


def xattr(path: str, name: str, *, limit_s: float = PROBE_S, as_user: str | None = None) -> bytes:
    """The value of an extended attribute. Raises as `look`."""
    return bytes.fromhex("".join(_ask(["xattr", path, name], limit_s, as_user)))


def opened(path: str, limit_s: float) -> int:
    """An O_PATH descriptor of a path that somebody else has named, on the way to which anything may be. Raises OSError,
    TimeoutError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        output, code = answer(_OPEN, [path], limit_s, modules=["socket"], stdin=theirs.fileno())
        if code is None:
            raise TimeoutError(110, os.strerror(110), path)
        if output or code:
            _, _, number = output.decode().partition(" ")
            raise OSError(int(number or 5), os.strerror(int(number or 5)), path)
        _, (descriptor,) = received(ours, 1, 1, socket.MSG_DONTWAIT)
    return descriptor


def answer(
    code: str,
    arguments: Sequence[str],
    limit_s: float,
    as_user: str | None = None,
    modules: Sequence[str] = (),
    stdin: int = subprocess.DEVNULL,
) -> tuple[bytes, int | None]:
    """What an interpreter without site packages says when it runs this text, and its exit code; None: it did not end
    within `limit_s`, and this is what it had said until then. Nothing waits for such a child any more. One that cannot
    become `as_user` says "kept N", with an errno. `modules`: what the text needs besides os and sys, imported before
    that: the library of the interpreter may lie where the user cannot enter, such as below root's home."""
    imports = "".join(f"import {name}\n" for name in modules)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", imports + _BECOME + code, as_user or "", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        output, _ = child.communicate(timeout=limit_s)
        return output, child.returncode
    except BaseException as error:
        leave_behind(child)
        if isinstance(error, subprocess.TimeoutExpired):
            return error.output or b"", None
        raise


def leave_behind(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that does not end, which may take for ever, and wait for it no more."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    _left_behind.append(child)


def _ask(arguments: list[str], limit_s: float, as_user: str | None = None) -> list[str]:
    path = arguments[1]
    output, code = answer(_CODE, arguments, limit_s, as_user)
    if code is None:
        raise TimeoutError(110, os.strerror(110), path)
    kind, *fields = output.decode().split() or ["lost"]
    if kind == "errno":
        number = int(fields[0])
        raise OSError(number, os.strerror(number), path)
    if kind == "kept":
        why = f"user {as_user} ({os.strerror(int(fields[0]))})"
        raise MountError(f"as-user: hfs cannot become {why} here: it needs CAP_SETUID and CAP_SETGID")
    if kind != "ok":
        raise OSError(5, f"the look at it ended with exit code {code}", path)
    return fields
