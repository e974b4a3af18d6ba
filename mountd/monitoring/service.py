"""What is told to monitoring systems, from when a mount is made to when it has ended: over HTTP, as a file, or both."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hfs.mountd.core.background import guarded, note_fault, start_for_life
from hfs.mountd.core.config import Config
from hfs.mountd.core.socket_places import prefix_of

if TYPE_CHECKING:
    from hfs.mountd.monitoring.exposition import Figures
    from hfs.mountd.monitoring.server import MetricsServer


log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""So long the port may still be that of the daemon before, whose last threads are just ending, and nothing is said."""
_FIRST_S = 1.0
"""For the first time that the file is written; a directory that hangs must not keep the mount from being made."""


EVERY_S = 15.0
"""What collectors take between two looks, by default or by custom: more often would not be seen."""
_END_S = 2.0
"""For taking it away: a directory that hangs must not keep the daemon from ending."""
_MODE = 0o644
"""node_exporter is a user of its own."""
_ENDING = ".prom"
_NAME_CHARACTERS = 60

_Identity = tuple[int, int, int]


class TextFile:
    """The metrics as a file, for the textfile collector of node_exporter: replaced as a whole, and gone with the mount.

    The collector reads all files that end with .prom. Given a directory, each mount has a file of its own there, whose
    name begins with hfs- and tells the mountpoint. A file that another program has put in its place meanwhile is left
    to that. The disk may be slow or hang: a thread writes, and nobody waits for it.

    Writes `text()`, which is called in a thread, until cancelled.
    """

    def __init__(
        self, path: str, mountpoint: str, text: Callable[[], bytes], run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        """`path`: absolute; a file that ends with .prom, or else a directory. `run_in_thread`: as
        trio.to_thread.run_sync."""
        is_file = path.endswith(_ENDING)
        self.path = path if is_file else f"{path.rstrip('/')}/{_name(mountpoint)}"
        self.error: str | None = None
        """Why it is not written, for people."""
        self._mountpoint = mountpoint
        self._text = text
        self._run_in_thread = run_in_thread
        self._lock = threading.Lock()
        """One thread at a time: a write that was given up must not come after the end."""
        self._ours: _Identity | None = None
        """Of what was written last."""
        self._over = False

    async def run(self) -> None:
        """Write every 15 s. Never returns."""
        while True:
            await trio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Replace the file, or tell why it cannot be."""
        try:
            await self._run_in_thread(self._replace, abandon_on_cancel=True)
        except OSError as error:
            self._failed(f"{self.path} cannot be written: {error.strerror or error}")
        except _NotOurs as error:
            self._failed(str(error))
        else:
            if self.error is not None:
                log.info("metrics: %s is written again", self.path)
            self.error = None

    async def remove(self) -> None:
        """The mount has ended."""
        with trio.move_on_after(_END_S, shield=True), contextlib.suppress(OSError):
            await self._run_in_thread(self._unlink, abandon_on_cancel=True)

    def _failed(self, why: str) -> None:
        if self.error != why:
            log.warning("metrics: %s", why)
        self.error = why

    def _replace(self) -> None:
        """In a thread."""
        text = self._text()
        with self._lock:
            if self._over:
                return
            directory, name = os.path.split(self.path)
            real = self._directory(directory)
            found = _identity(self.path)
            if self._ours is not None and found is not None and found != self._ours:
                raise _NotOurs(
                    f"{self.path} is written by another program, and left to that; name a directory, in which each "
                    "mount has a file of its own"
                )
            new = f"{real}/.{name}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)  # of a daemon that was killed
            try:
                self._ours = _write(new, text)
                os.replace(new, self.path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                raise

    def _directory(self, path: str) -> str:
        """Without symbolic links. Raises _NotOurs."""
        real = os.path.realpath(path)
        if f"{real}/".startswith(f"{self._mountpoint.rstrip('/')}/"):
            raise _NotOurs(f"{self.path} lies in the mount itself, which is read-only; name another place")
        if not os.path.isdir(real):
            raise _NotOurs(f"{path} is no directory; make it, or name a file that ends with {_ENDING}")
        return real

    def _unlink(self) -> None:
        """In a thread."""
        with self._lock:
            self._over = True
            if self._ours is not None and _identity(self.path) == self._ours:
                os.unlink(self.path)


class _NotOurs(Exception):
    """Nothing is written there; the text says why."""


def _write(path: str, text: bytes) -> _Identity:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, _MODE), "wb") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), _MODE)  # whatever the umask is
        found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _name(mountpoint: str) -> str:
    words = re.sub("[^A-Za-z0-9._]+", "-", mountpoint).strip("-")[-_NAME_CHARACTERS:] or "root"
    return f"hfs-{words}-{prefix_of(mountpoint)[:8]}{_ENDING}"


def _identity(path: str) -> _Identity | None:
    """Of what is there now; not its ctime: to change its mode is everybody's right."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


class Monitoring:
    """The key `monitoring` of the status; what is told while the block of `telling` lasts."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._server: MetricsServer | None = None
        self._file: TextFile | None = None

    def gather(self) -> dict[str, object]:
        """Where metrics are, how often they were asked for, and what is amiss."""
        server, file = self._server, self._file
        return {
            "monitoring": {
                "address": str(server.found) if server is not None and server.found is not None else None,
                "error": None if server is None else server.error,
                "answered": 0 if server is None else server.answered,
                "refused": 0 if server is None else server.refused,
                "file": None if file is None else file.path,
                "file_error": None if file is None else file.error,
            }
        }

    @asynccontextmanager
    async def telling(
        self,
        gather: Callable[[], Figures],
        run_in_thread: Callable[..., Awaitable[Any]],
        nursery: trio.Nursery,
        *,
        follows: bool,
    ) -> AsyncIterator[None]:
        """Tell what the configuration wants to be told until the block is left. Nothing is raised for it.

        `gather()`: the status, and what the table names besides. `follows`: another daemon has served this mount, and
        may just be letting go of the port.
        """
        config = self._config
        if config.metrics is None and config.metrics_file is None:
            yield
            return
        # With the library 50 ms and 2 MB, which most mounts need not pay.
        from hfs.mountd.monitoring.exposition import Exposition

        token = trio.lowlevel.current_trio_token()
        exposition = Exposition(config.mountpoint, partial(trio.from_thread.run_sync, gather, trio_token=token))
        if config.metrics is not None:
            self._listen(config.metrics, exposition.text, token, PATIENCE_S if follows else 0.0)
        if config.metrics_file is not None:
            file = TextFile(config.metrics_file, config.mountpoint, lambda: exposition.text()[1], run_in_thread)
            self._file = file
            with trio.move_on_after(_FIRST_S):  # so that whoever mounts can be told how that went
                await guarded("metrics file", file.write)
            start_for_life(nursery, "metrics file", file.run)
        try:
            yield
        finally:
            if self._server is not None:
                self._server.close()
            if self._file is not None:
                await self._file.remove()

    def _listen(
        self, address: str, text: Callable[[str], tuple[str, bytes]], token: trio.lowlevel.TrioToken, patience_s: float
    ) -> None:
        from hfs.mountd.monitoring.server import MetricsServer

        def fault(error: BaseException) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(note_fault, "metrics", error)

        self._server = MetricsServer(address, text, fault, patience_s=patience_s)
        if not self._server.wanted.is_loopback:
            log.warning(
                "metrics: whoever reaches %s over the network can read them, and the paths of SOURCE and MOUNTPOINT",
                self._server.wanted,
            )
        self._server.start()
