"""The control socket itself: where it lies, who may connect, and that it is ours to put there and to take away.

Private to the owner of the mount, unless it is for others too. A socket file that nobody answers is replaced; anything
else at its path is a fault. What is said on a connection is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

import trio

from hfs.mountd.core import socket_places
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import MountError
from hfs.mountd.core.open_files import OpenFiles, is_refusal
from hfs.mountd.core.socket_peer import socket_peer

_ACCEPT_AGAIN_S = 0.05
"""After a connection for which there was no descriptor: others close theirs meanwhile."""


def socket_path(config: Config) -> str:
    """The path of the socket: config.control, else a new name in a directory that nobody else can write to. Raises
    MountError."""
    if config.control is not None:
        return os.path.abspath(config.control)
    path = socket_places.new_path(config.mountpoint, socket_places.DAEMON, for_others=config.allow_other)
    if path is not None:
        return path
    nowhere = "no place for the control socket: no directory of our own can be made in /tmp"
    raise MountError(f"{nowhere}; set XDG_RUNTIME_DIR to a directory of your own, or give --control PATH")


@contextlib.contextmanager
def control_socket(path: str, backlog: int, *, others: bool = False) -> Iterator[socket.socket]:
    """A socket that listens at `path`, for its owner alone or for others too; its file goes with the block.

    A socket file that nobody answers is replaced; raises MountError for one that somebody does, for anything else at
    the path, and when none can be made.
    """
    listener = _listen(path, backlog, 0o666 if others else 0o600)
    mark = _identity(path)
    try:
        yield listener
    finally:
        listener.close()
        if mark is not None and _identity(path) == mark:  # not one that was put in its place
            os.unlink(path)


class ControlListener(trio.abc.Listener[trio.SocketStream]):
    """As trio's, and has descriptors closed that are only kept where there is none for a connection."""

    def __init__(self, listener: trio.SocketListener, open_files: OpenFiles) -> None:
        self._listener = listener
        self._open_files = open_files

    async def accept(self) -> trio.SocketStream:
        """The next connection."""
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if not is_refusal(error):
                    raise
            self._open_files.refuse()
            await trio.sleep(_ACCEPT_AGAIN_S)

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()


def _listen(path: str, backlog: int, mode: int) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # Until listen, every connect is refused: there is no moment in which the mode is wider.
        os.chmod(path, mode)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise MountError(
            f"control socket {path}: {error.strerror or error}; give another with --control PATH"
        ) from None
    return listener


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise MountError(f"control socket {path}: there is something else; give another with --control PATH")
    except FileNotFoundError:
        return
    except OSError as error:
        raise MountError(f"control socket {path}: {error.strerror}; give another with --control PATH") from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(path)
        if result in {errno.ECONNREFUSED, errno.ENOENT}:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # its owner was faster
            except OSError as error:
                raise MountError(f"control socket {path} is stale and cannot be removed: {error.strerror}") from None
            return
        pid = socket_peer(probe).pid if result == 0 else 0
    owner = f"process {pid}" if pid else "another process"
    raise MountError(f"control socket {path} is in use by {owner}; give another with --control PATH")


def _identity(path: str) -> tuple[int, int, int] | None:
    # ctime as well: ext4 gives the number of a removed inode to the next file.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
