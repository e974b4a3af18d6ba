"""`hfs cache check|evict|list --cache DIR`: caches that no daemon uses.

Opens the cache as the daemon does, under the same lock, for the time of one command; one in use is an error that names
its owner. The command line gets what it would get from a daemon: Progress and Rows by `news`, then a Result. Never
makes a cache: a directory that holds none is an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from mountd.base.errors import CacheInUse, ConfigError, HfsError, MountError
from mountd.cache import Cache, CacheSettings, open_cache
from mountd.core.metrics import Metrics
from mountd.ledger import caches_below, settle
from mountd.wire.protocol import PathFault, Progress, Result, Row, Rows

News = Callable[[Progress | Rows], None]

_EVERYTHING = (b"",)
_ROWS = 1000
"""Rows in one part."""
_NO_LIMIT_BYTES = 1 << 62
"""Nothing is staged here, so nothing must go to make room, however full the disk is."""


def check(cache_dir: str, paths: Sequence[bytes], news: News) -> Result:
    """Verify what is staged below `paths` (none: all). Raises ConfigError, MountError."""
    files = size = failed = 0

    async def work(cache: Cache) -> None:
        nonlocal files, size, failed
        async for checked in cache.checker.check(paths or _EVERYTHING):
            faults = []
            if checked.fault is not None:
                failed += 1
                faults = [PathFault(checked.path, checked.fault)]
            else:
                files += 1
                size += checked.bytes
            news(Progress(files=files, bytes=size, failed=failed, faults=faults))

    _with(cache_dir, work)
    return Result(files=files, bytes=size, failed=failed)


def evict(cache_dir: str, paths: Sequence[bytes], everything: bool, news: News) -> Result:  # noqa: ARG001 - as the others
    """Drop what is staged below `paths`, or everything. Raises ConfigError, MountError."""
    files = freed_bytes = 0

    async def work(cache: Cache) -> None:
        nonlocal files, freed_bytes
        more_files, more_bytes = await cache.evictions.evict_paths(_EVERYTHING if everything else paths)
        files += more_files
        freed_bytes += more_bytes

    _with(cache_dir, work)
    return Result(files=files, bytes=freed_bytes)


def list_rows(cache_dir: str, paths: Sequence[bytes], news: News) -> Result:
    """Rows of what is staged below `paths` (none: all). Raises ConfigError, MountError."""
    files = staged_bytes = 0

    async def work(cache: Cache) -> None:
        nonlocal files, staged_bytes
        rows: list[Row] = []
        async for row in cache.listing.rows(paths or _EVERYTHING):
            file = await cache.files.get(row.version)
            files += 1
            staged_bytes += file.staged_bytes()
            rows.append(
                Row(
                    path=row.path,
                    size=row.version.size,
                    staged_bytes=file.staged_bytes(),
                    complete=row.complete,
                    source_id=row.version.source_id,
                    inode=row.version.inode,
                    last_use_ns=row.last_use_s * 10**9,
                )
            )
            if len(rows) == _ROWS:
                news(Rows(rows))
                rows = []
        news(Rows(rows))

    _with(cache_dir, work)
    return Result(files=files, bytes=staged_bytes)


def _caches(cache_dir: str) -> list[str]:
    try:
        return caches_below(cache_dir)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MountError(f"the cache {cache_dir} cannot be used: {error.strerror}") from None


def _with(cache_dir: str, work: Callable[[Cache], Awaitable[None]]) -> None:
    """Open each cache of the root, do it, close the cache. One in use is told when the others are done."""
    caches = _caches(cache_dir)
    if not caches:
        raise ConfigError(f"--cache {cache_dir}: holds no cache of hfs; give the DIR of hfs mount --cache DIR")

    async def main() -> None:
        in_use = None
        for path in caches:
            try:
                await _on(path, work)
            except CacheInUse as error:
                in_use = error
        if in_use is not None:
            raise in_use

    try:
        trio.run(main)
    except* HfsError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _on(path: str, work: Callable[[Cache], Awaitable[None]]) -> None:
    settings = CacheSettings(capacity_bytes=_NO_LIMIT_BYTES, keeps_floor=False)
    async with open_cache(path, settings, metrics=Metrics()) as cache:
        await work(cache)
        used_bytes, error = cache.room.used_bytes, cache.statistics().last_error
    if error is not None:  # what was listed or checked is not all there is
        raise MountError(f"the cache {path}: {error}")
    settle(path, used_bytes)
