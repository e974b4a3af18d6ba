"""`hfs cache check|evict|unpin|list --cache DIR`: caches that no daemon uses. And `hfs cache du`: what those of a root
hold.

Opens a cache as the daemon does, under the same lock, for the time of one command; one in use is an error that names
its owner. The command line gets what it would get from a daemon: Progress and Rows by `news`, then a Result. Never
makes a cache nor a ledger: a directory that holds none is an error.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from hfs.client.client import Client
from hfs.mountd.cache import Cache, CacheSettings, open_cache
from hfs.mountd.control import Report, StagedCommands
from hfs.mountd.core.errors import CacheInUse, ConfigError, HfsError, MountError, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import CacheRoot, Hold, Listed, caches_below, has_ledger
from hfs.mountd.wire.protocol import Progress, Result, Rows, Touches
from hfs.policies.cache.eviction import Lru

News = Callable[[Progress | Rows], None]
_Figures = TypeVar("_Figures", Progress, Result)

_LIMIT_S = 2.0
_NO_LIMIT_BYTES = 1 << 62
"""Nothing is staged here, so nothing must go to make room, however full the disk is."""
_AS_IT_IS = CacheSettings(capacity_bytes=_NO_LIMIT_BYTES, keeps_floor=False)


@contextlib.contextmanager
def cache_root(path: str) -> Iterator[CacheRoot]:
    """The root that --cache names, until the block ends. Raises ConfigError where there is none, MountError."""
    if not has_ledger(path):
        raise ConfigError(f"--cache {path}: holds no cache of hfs; give the DIR of hfs mount --cache DIR")
    try:
        with contextlib.closing(CacheRoot(path)) as root:
            yield root
    except OSError as error:
        name = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        text = f"the cache {path} cannot be used: {error.strerror}{name}; see what is there, or give another --cache"
        raise MountError(text) from None


def held(entry: Listed) -> tuple[int, int]:
    """Bytes staged in one cache, and of them those that go only by name. Of our own its daemon knows better than the
    ledger, where it writes seconds later; another user's may say nothing, and there may be many."""
    is_ours = entry.owner == os.geteuid()
    if is_ours and entry.running and entry.serving is not None and _is_socket_of(entry.serving.control, entry.owner):
        try:
            staged = Client(os.fsdecode(entry.serving.control)).status(_LIMIT_S)["staged"]
            return int(staged["room_bytes"]), int(staged.get("pinned_bytes", 0))
        except (HfsError, KeyError, TypeError, ValueError, AttributeError):
            pass  # another user's daemon may say what it likes
    return entry.grant.used_bytes, entry.claims.pinned_bytes


def _is_socket_of(path: bytes, owner: int) -> bool:
    """Whoever keeps caches in the root writes by himself where his daemon listens: nobody else is asked."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == owner


def listed(path: str) -> tuple[int | None, list[dict[str, Any]]]:
    """The size that a root may have (None: the disk's), and what each of its caches holds. No cache is opened, and
    those of other users are seen too."""
    with cache_root(path) as root:
        return root.ledger.size_bytes(), [_told(entry) for entry in root.ledger.listed()]


def _told(entry: Listed) -> dict[str, Any]:
    serving, (used_bytes, pinned_bytes) = entry.serving, held(entry)
    try:
        owner = pwd.getpwuid(entry.owner).pw_name
    except KeyError:
        owner = str(entry.owner)
    return {
        "name": entry.name,
        "source": "?" if serving is None else os.fsdecode(serving.source),
        "owner": owner,
        "used_bytes": used_bytes,
        "pinned_bytes": pinned_bytes,
        "granted_bytes": entry.grant.granted_bytes,
        "used_s": entry.grant.used_s,
        "running": entry.running,
        "mountpoint": os.fsdecode(serving.mountpoint) if serving is not None and entry.running else "",
    }


def check(cache_dir: str, paths: Sequence[bytes], news: News) -> Result:
    """Verify what is staged below `paths` (none: all). Raises ConfigError, MountError."""
    return _each(cache_dir, news, lambda commands, report: commands.check(paths, False, report))


def evict(cache_dir: str, paths: Sequence[bytes], older_than_s: float, source: str | None) -> Result:
    """Drop what is staged below `paths` (none: everything) and was last used longer ago than that, of the cache of this
    source (None: of all). By age nothing goes that is pinned. Raises ConfigError, MountError."""
    return _each(
        cache_dir, _unheard, lambda commands, report: commands.evict(paths, not paths, older_than_s, report), source
    )


def unpin(cache_dir: str, paths: Sequence[bytes]) -> Result:
    """Let what is pinned below `paths` (none: everything) go for room again. Raises ConfigError, MountError."""
    return _each(cache_dir, _unheard, lambda commands, _report: commands.unpin(paths))


def list_rows(cache_dir: str, paths: Sequence[bytes], news: News) -> Result:
    """Rows of what is staged below `paths` (none: all). Raises ConfigError, MountError."""
    return _each(cache_dir, news, lambda commands, report: commands.list(paths, report))


def shrink(cache_dir: str, to_bytes: int) -> Result:
    """Drop what was used longest ago, of the cache first that was used longest ago, until all caches of the root hold
    no more than this. Raises ConfigError, MountError where those that daemons use hold more."""
    with cache_root(cache_dir) as root:
        caches = sorted(root.ledger.listed(), key=lambda entry: entry.grant.used_s)
        lacking_bytes = sum(held(entry)[0] for entry in caches) - to_bytes
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


def _caches(cache_dir: str, source: str | None) -> list[str]:
    """Those of the root; with `source`: that of the source, by the path that it was mounted by. Raises ConfigError,
    MountError."""
    try:
        caches = caches_below(cache_dir)
    except (FileNotFoundError, NotADirectoryError):
        caches = []
    except OSError as error:
        raise MountError(f"the cache {cache_dir} cannot be used: {error.strerror}; give another --cache") from None
    if source is not None:
        wanted = {os.fsencode(path) for path in (source, os.path.abspath(source), os.path.realpath(source))}
        with cache_root(cache_dir) as root:
            names = {each.name for each in root.ledger.listed() if each.serving and each.serving.source in wanted}
        caches = [path for path in caches if os.path.basename(path) in names]
        if not caches:
            raise ConfigError(f"--source {source}: --cache {cache_dir} holds no cache of it; hfs cache du lists them")
    if not caches:
        raise ConfigError(f"--cache {cache_dir}: holds no cache of hfs; give the DIR of hfs mount --cache DIR")
    return caches


def _each(
    cache_dir: str,
    news: News,
    command: Callable[[StagedCommands, Report], Awaitable[Result]],
    source: str | None = None,
) -> Result:
    """What a command gives in all caches of the root, or that of a source: each is opened for it. One in use is told
    when the others are done."""
    done = Result()

    async def work(cache: Cache) -> None:
        nonlocal done

        async def report(part: Progress | Rows | Touches) -> None:
            if isinstance(part, Progress):
                news(_added(done, msgspec.structs.replace(part, files_total=None, bytes_total=None)))
            elif isinstance(part, Rows):
                news(part)

        result = await command(StagedCommands(cache), report)
        detail = {name: done.detail.get(name, type(value)()) + value for name, value in result.detail.items()}
        faults = [*done.faults, *result.faults]
        done = msgspec.structs.replace(_added(done, result), detail=done.detail | detail, faults=faults)

    async def main() -> None:
        in_use = None
        for path in _caches(cache_dir, source):
            try:
                await _on(path, work)
            except CacheInUse as error:
                in_use = error
        if in_use is not None:
            raise in_use

    _run(main)
    return done


def _added(done: Result, part: _Figures) -> _Figures:
    names = ("files", "bytes", "failed", "skipped")
    return msgspec.structs.replace(part, **{name: getattr(done, name) + getattr(part, name) for name in names})


def _unheard(_part: Progress | Rows) -> None:
    """Nothing is told before the end."""


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


def evict_old(root_path: str, expire_s: float) -> str:
    """What nobody has used for so long; what went wrong, empty: nothing."""
    try:
        evict(root_path, (), expire_s, None)
    except (HfsError, OSError) as error:
        return str(error)
    return ""


def _rehearse() -> None:
    """With a cache that is empty."""
    with tempfile.TemporaryDirectory(prefix="hfs-evict-") as place:

        async def make() -> None:
            async with open_cache(place, CacheSettings(1 << 30), metrics=Metrics()) as cache:
                await cache.ready.wait()

        trio.run(make)
        evict_old(place, 1.0)


def main() -> None:
    """A process of its own (own_process.py) that becomes a user and empties that user's old caches: ROOT EXPIRE_S UID
    GID. Prints what went wrong, or nothing.

    All that it runs is imported and has run once before it becomes the user: the library of the interpreter may lie
    where that one cannot enter, such as below root's home.
    """
    try:
        root_path, expire_s, uid, gid = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        _rehearse()
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        said = evict_old(root_path, expire_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(said[:4096].encode("utf-8", "backslashreplace").decode())
