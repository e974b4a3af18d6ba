"""What is told to monitoring systems, from when a mount is made to when it has ended: over HTTP, as a file, or both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hfs.mountd.core.background import guarded, note_fault, start_for_life
from hfs.mountd.core.config import Config
from hfs.mountd.monitoring.textfile import TextFile

if TYPE_CHECKING:
    from hfs.mountd.monitoring.exposition import Figures
    from hfs.mountd.monitoring.server import MetricsServer

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""So long the port may still be that of the daemon before, whose last threads are just ending, and nothing is said."""
_FIRST_S = 1.0
"""For the first time that the file is written; a directory that hangs must not keep the mount from being made."""


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
