"""What is told to monitoring systems, from when a mount is made to when it has ended: over HTTP, as a file, or both."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from hfs.mountd.core.background import start_for_life
from hfs.mountd.core.config import Config
from hfs.mountd.core.open_files import OpenFiles
from hfs.mountd.monitoring.exposition import Exposition, Figure
from hfs.mountd.monitoring.families import FAMILIES
from hfs.mountd.monitoring.server import PATIENCE_S, MetricsServer
from hfs.mountd.monitoring.textfile import TextFile

log = logging.getLogger(__name__)

_FIRST_S = 1.0
"""For the first time that the file is written; a directory that hangs must not keep the mount from being made."""


class MonitoringStatus:
    """The key `monitoring`."""

    def __init__(self, server: MetricsServer | None, file: TextFile | None) -> None:
        self._server = server
        self._file = file

    def gather(self) -> dict[str, object]:
        """Where metrics are, how often they were asked for, and what is amiss."""
        server, file = self._server, self._file
        found = None if server is None else server.found
        return {
            "monitoring": {
                "address": None if found is None else str(found),
                "error": None if server is None else server.error,
                "answered": 0 if server is None else server.answered,
                "refused": 0 if server is None else server.refused,
                "file": None if file is None else file.path,
                "file_error": None if file is None else file.error,
            }
        }


@asynccontextmanager
async def open_monitoring(
    config: Config,
    gather: Callable[[], Mapping[str, Figure]],
    named: Mapping[str, str],
    open_files: OpenFiles,
    run_in_thread: Callable[..., Awaitable[Any]],
    nursery: trio.Nursery,
    *,
    follows: bool,
) -> AsyncIterator[MonitoringStatus]:
    """Tell what `config` wants to be told, in `nursery`, until the block is left. Nothing is raised for it.

    `gather()`: all FIGURES of the moment, but for those of infos, which are `named`. `follows`: another daemon has
    served this mount, and may just be letting go of the port.
    """
    exposition = Exposition(FAMILIES, config.mountpoint, named)

    def text(openmetrics: bool = False) -> bytes:
        return exposition.text(gather(), openmetrics=openmetrics)

    server = file = None
    if config.metrics is not None:
        server = MetricsServer(config.metrics, text, open_files, patience_s=PATIENCE_S if follows else 0.0)
        if not server.wanted.is_loopback:
            log.warning(
                "metrics: whoever reaches %s over the network can read them, and the paths of SOURCE and MOUNTPOINT",
                server.wanted,
            )
        server.listen_nowait()
        start_for_life(nursery, "metrics", server.run)
    if config.metrics_file is not None:
        file = TextFile(config.metrics_file, config.mountpoint, text, run_in_thread)
        with trio.move_on_after(_FIRST_S):  # so that whoever mounts can be told how that went
            await file.write()
        start_for_life(nursery, "metrics file", file.run)
    try:
        yield MonitoringStatus(server, file)
    finally:
        if server is not None:
            server.close()
        if file is not None:
            await file.remove()
