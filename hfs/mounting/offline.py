"""`hfs cache check|evict|unpin|list --cache DIR`: caches that no daemon uses.

Opens the cache as the daemon does, under the same lock, for the time of one command; one in use is an error that names
its owner. The command line gets what it would get from a daemon: Progress and Rows by `news`, then a Result. Never
makes a cache: a directory that holds none is an error.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import trio

from hfs.mountd.cache import Cache, CacheSettings, open_cache
from hfs.mountd.core.errors import CacheInUse, ConfigError, HfsError, MountError, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import Hold, caches_below
from hfs.mountd.wire.protocol import PathFault, Progress, Result, Row, Rows
from hfs.mounting.cache_root import cache_root, held
from hfs.policies.cache.evictions import Lru

News = Callable[[Progress | Rows], None]

_EVERYTHING = (b"",)
_ROWS = 1000
"""Rows in one part."""
_NO_LIMIT_BYTES = 1 << 62
"""Nothing is staged here, so nothing must go to make room, however full the disk is."""
_AS_IT_IS = CacheSettings(capacity_bytes=_NO_LIMIT_BYTES, keeps_floor=False)


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


def evict(cache_dir: str, paths: Sequence[bytes], older_than_s: float, source: str | None) -> Result:
    """Drop what is staged below `paths` (none: everything) and was last used longer ago than that, of the cache of this
    source (None: of all). By age nothing goes that is pinned. Raises ConfigError, MountError."""
    files = freed_bytes = pinned_files = 0
    before_s = time.time() - older_than_s if older_than_s else None

    async def work(cache: Cache) -> None:
        nonlocal files, freed_bytes, pinned_files
        if before_s is not None:
            pinned_files += sum([row.pinned async for row in cache.listing.rows(paths or _EVERYTHING)])
        more_files, more_bytes = await cache.evictions.evict_paths(paths or _EVERYTHING, None, before_s)
        files += more_files
        freed_bytes += more_bytes

    _with(cache_dir, work, source)
    return Result(files=files, bytes=freed_bytes, detail={"pinned_files": pinned_files} if pinned_files else {})


def unpin(cache_dir: str, paths: Sequence[bytes]) -> Result:
    """Let what is pinned below `paths` (none: everything) go for room again. Raises ConfigError, MountError."""
    files = size_bytes = 0

    async def work(cache: Cache) -> None:
        nonlocal files, size_bytes
        more_files, more_bytes = await cache.pinned.unpin(paths or _EVERYTHING)
        files += more_files
        size_bytes += more_bytes

    _with(cache_dir, work)
    return Result(files=files, bytes=size_bytes)


def shrink(cache_dir: str, to_bytes: int) -> Result:
    """Drop what was used longest ago, of the cache first that was used longest ago, until all caches of the root hold
    no more than this. Raises ConfigError, MountError where those that daemons use hold more."""
    with cache_root(cache_dir) as root:
        caches = sorted(root.ledger.listed(), key=lambda entry: entry.grant.used_s)
        lacking_bytes = sum(held(entry).bytes for entry in caches) - to_bytes
        files = freed_bytes = pinned_bytes = 0
        fault: HfsError | None = None

        async def work(cache: Cache) -> None:
            nonlocal files, freed_bytes, pinned_bytes
            room, before_files = cache.room, cache.statistics().files
            room.capacity_bytes = max(0, room.used_bytes - lacking_bytes)
            freed_bytes += await cache.evictor.make_room()
            files += before_files - cache.statistics().files
            pinned_bytes += room.pinned_bytes

        settings = CacheSettings(_NO_LIMIT_BYTES, keeps_floor=False, eviction=Lru.name)
        for entry in caches:
            if lacking_bytes > 0 and not entry.running and entry.name.startswith(f"{os.geteuid()}-"):
                before_bytes = freed_bytes
                try:
                    _run(partial(_on, root.path_of(entry.name), work, settings))
                except CacheInUse:
                    pass  # it has a daemon by now
                except HfsError as error:
                    fault = error  # the others still give what they have
                lacking_bytes -= freed_bytes - before_bytes
    if lacking_bytes > 0:
        if fault is not None:
            raise fault
        where = "are in caches with daemons, or of other users: unmount, or evict paths of the mounts"
        if pinned_bytes:
            where = f"are pinned ({pinned_bytes}; hfs cache unpin lets them go), or {where}"
        raise MountError(f"{lacking_bytes} bytes more than --to {where}")
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
                    pinned=row.pinned,
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
        raise MountError(f"the cache {cache_dir} cannot be used: {error.strerror}; give another --cache") from None


def _with(cache_dir: str, work: Callable[[Cache], Awaitable[None]], source: str | None = None) -> None:
    """Open each cache of the root (with `source`: that of the source), do it, close the cache. One in use is told when
    the others are done."""
    caches = _caches(cache_dir)
    if source is not None:
        caches = [path for path in caches if os.path.basename(path) in _names_of(cache_dir, source)]
        if not caches:
            raise ConfigError(f"--source {source}: --cache {cache_dir} holds no cache of it; hfs cache du lists them")
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

    _run(main)


def _names_of(cache_dir: str, source: str) -> set[str]:
    """Caches of a source, by the path that it was mounted by."""
    with cache_root(cache_dir) as root:
        wanted = {os.fsencode(path) for path in (source, os.path.abspath(source), os.path.realpath(source))}
        return {entry.name for entry in root.ledger.listed() if entry.serving and entry.serving.source in wanted}


def _run(main: Callable[[], Awaitable[None]]) -> None:
    with ungrouped():
        trio.run(main)


async def _on(path: str, work: Callable[[Cache], Awaitable[None]], settings: CacheSettings = _AS_IT_IS) -> None:
    with _held(path) as hold:
        async with open_cache(path, settings, metrics=Metrics()) as cache:
            await cache.ready.wait()
            await work(cache)
            room, error = cache.room, cache.statistics().last_error
        if error is not None:  # what was listed or checked is not all there is
            raise MountError(f"the cache {path}: {error}")
        if hold is not None:
            hold.settle(room.used_bytes, room.pinned_bytes)


@contextlib.contextmanager
def _held(path: str) -> Iterator[Hold | None]:
    """Its entry in the ledger, if it has one, so that no daemon comes meanwhile. Raises CacheInUse."""
    root_path, name = os.path.split(path)
    if not os.path.exists(f"{root_path}/ledger/{name}"):
        yield None
        return
    with cache_root(root_path) as root:
        try:
            hold = root.ledger.hold(name)
        except BlockingIOError:
            pid = next((e.serving.pid for e in root.ledger.listed() if e.name == name and e.serving), "unknown")
            raise CacheInUse(f"the cache {path} is in use by process {pid}: use the mount that it serves") from None
        with contextlib.closing(hold):
            yield hold
