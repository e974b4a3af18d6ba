"""The control socket itself: where it lies, who may connect, and that it is ours to put there and to take away.

Private to the owner of the mount, unless it is for others too. A socket file that nobody answers is replaced; anything
else at its path is a fault. What is said on a connection is not known here.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import trio

from hfs.mountd.core import socket_places
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import MountError
from hfs.mountd.core.open_files import OpenFiles, is_refusal

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

    Raises MountError.
    """
    mode = 0o666 if others else 0o600
    listener = socket_places.listen(path, "control socket", "give another with --control PATH", mode, backlog)
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


def _identity(path: str) -> tuple[int, int, int] | None:
    # ctime as well: ext4 gives the number of a removed inode to the next file.
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
