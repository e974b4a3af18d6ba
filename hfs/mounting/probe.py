"""Looking at a path that may never answer: in a child process, with a time limit.

A stat of a mount whose daemon hangs, or of a dead network file system, cannot be interrupted, and a process with such a
thread cannot even end. So a child looks; when it does not answer in time it is killed and left behind, and nobody waits
for it.

The child is a bare interpreter (about 15 ms): a fork of a training job with threads and devices would not be safe.
Where SOURCE is read as another user (`as-user`), the child becomes that user before it looks. It ends after its answer;
a command that looks at many places in the same namespace has one that goes on (`kept`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
# Answers each line, of a word and hexadecimal fields, with "errno N" or "ok FIELDS".
_CODE = """
for line in sys.stdin:
    what, path, *names = line.split()
    path = bytes.fromhex(path)
    try:
        if what == "xattr":
            said = [os.getxattr(path, bytes.fromhex(*names)).hex()]
        elif what == "real":
            said = [os.path.realpath(path).hex()]
        else:
            s = os.stat(path)
            with os.scandir(path) as entries:
                said = [s.st_dev, s.st_ino, int(next(entries, None) is not None)]
            os.stat(path + b"/.")  # a directory may be listed and not entered
        print("ok", *said, flush=True)
    except OSError as error:
        print("errno", error.errno, flush=True)
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
_idle: dict[str | None, subprocess.Popen[bytes]] | None = None
"""Children that have answered, by whom they have become, while `kept`; else None."""


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
    child = _child(code, arguments, as_user, modules, stdin)
    try:
        output, _ = child.communicate(timeout=limit_s)
        return output, child.returncode
    except BaseException as error:
        leave_behind(child)
        if isinstance(error, subprocess.TimeoutExpired):
            return error.output or b"", None
        raise


def _child(
    code: str, arguments: Sequence[str], as_user: str | None, modules: Sequence[str], stdin: int
) -> subprocess.Popen[bytes]:
    imports = "".join(f"import {name}\n" for name in modules)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", imports + _BECOME + code, as_user or "", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        bufsize=0,
    )


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """A child that has answered `look`, `real_path` or `xattr` is asked again, until the block ends: by a command that
    looks in one namespace."""
    global _idle
    before, _idle = _idle, {}
    try:
        yield
    finally:
        children, _idle = _idle, before
        for child in children.values():
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Of one that waits to be asked, or ends. Its exit code."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    child.stdout.close()
    return child.wait()


def leave_behind(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that does not end, which may take for ever, and wait for it no more."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    _left_behind.append(child)


def _ask(arguments: list[str], limit_s: float, as_user: str | None = None) -> list[str]:
    what, path, *names = arguments
    line = " ".join([what, *(os.fsencode(word).hex() for word in (path, *names))])
    child = (_idle or {}).pop(as_user, None) or _child(_CODE, [], as_user, (), subprocess.PIPE)
    try:
        output = _answered(child, line.encode() + b"\n", limit_s)
    except BaseException as error:
        leave_behind(child)
        if isinstance(error, TimeoutError):
            raise TimeoutError(110, os.strerror(110), path) from None
        raise
    kind, *fields = output.decode().split() or ["lost"]
    code = None
    if _idle is not None and kind in {"ok", "errno"} and as_user not in _idle:
        _idle[as_user] = child
    else:
        code = _end(child)
    if kind == "errno":
        number = int(fields[0])
        raise OSError(number, os.strerror(number), path)
    if kind == "kept":
        why = f"user {as_user} ({os.strerror(int(fields[0]))})"
        raise MountError(f"as-user: hfs cannot become {why} here: it needs CAP_SETUID and CAP_SETGID")
    if kind != "ok":
        raise OSError(5, f"the look at it ended with exit code {code}", path)
    return fields


def _answered(child: subprocess.Popen[bytes], line: bytes, limit_s: float) -> bytes:
    """The line that it says to this one; what came of it where it has ended. Raises TimeoutError."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(line)
    until_s = time.monotonic() + limit_s
    waiting = select.poll()
    waiting.register(child.stdout, select.POLLIN)
    said = b""
    while not said.endswith(b"\n"):
        if not waiting.poll(max(0.0, until_s - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(child.stdout.fileno(), 65536)
        if not part:
            break
        said += part
    return said
