"""SOURCE opened for the mount's daemons: by us, or by a child that has become the user as whom it is read (`as-user`).

Root may not so much as look at a directory of a file system that squashes it, or at another user's FUSE mount. A FUSE
mount that admits its owner alone wants all of the ids to be his, which the keeper could not take back; so a child
becomes him, opens it, and passes the descriptor on.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from hfs.mountd.supervisor.daemons import received

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OpenSource(NamedTuple):
    """SOURCE's directory."""

    fd: int
    device: int
    """st_dev and st_ino."""
    inode: int


class CannotBecome(Exception):
    """No process of ours can become that user; the text says why."""


def open_source(path: str, as_user: str | None) -> OpenSource:
    """`as_user`: UID:GID:GROUP,GROUP... Raises OSError, CannotBecome. Only one thread may run: this forks."""
    if as_user is None:
        return _open(path)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = os.fork()
            if child == 0:
                _answer(theirs, path, as_user)
        data, descriptors = received(ours, 256, 1)
    os.waitpid(child, 0)
    what, *numbers = data.decode().split() or ["lost"]
    if what == "open":
        return OpenSource(descriptors[0], int(numbers[0]), int(numbers[1]))
    if what == "refused":
        raise OSError(int(numbers[0]), os.strerror(int(numbers[0])), path)
    why = os.strerror(int(numbers[0])) if numbers else "the process that tried has ended"
    raise CannotBecome(f"as-user: the keeper cannot become user {as_user} ({why}): it needs CAP_SETUID and CAP_SETGID")


def _open(path: str) -> OpenSource:
    fd = os.open(path, _FLAGS)
    try:
        found = os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise
    return OpenSource(fd, found.st_dev, found.st_ino)


def _answer(to: socket.socket, path: str, as_user: str) -> None:
    """In the child, which ends here whatever happens."""
    try:
        step = "kept"
        try:
            uid, gid, groups = as_user.split(":")
            os.setgroups([int(group) for group in groups.split(",") if group])
            os.setresgid(int(gid), int(gid), int(gid))
            os.setresuid(int(uid), int(uid), int(uid))
            step = "refused"
            found = _open(path)
        except OSError as error:
            to.send(f"{step} {error.errno or 5}".encode())
        else:
            socket.send_fds(to, [f"open {found.device} {found.inode}".encode()], [found.fd])
    finally:
        os._exit(0)
