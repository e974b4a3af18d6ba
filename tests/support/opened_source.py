"""The source of a directory, opened for a test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source.source import Source
from hfs.mountd.source.threads import SourceThreads

CHUNK = 64 << 10
ID = "0" * 16


@asynccontextmanager
async def opened(root: Path, metrics: Metrics, ttl_s: float = 60.0) -> AsyncIterator[Source]:
    threads = SourceThreads(metrics, demand=4, prefetch=2, time_limit_s=10)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    source = Source(fd, str(root), ID, threads, metrics, ttl_s=ttl_s, large_bytes=CHUNK)
    try:
        yield source
    finally:
        source.close()
