"""A cache disk and an index that fail, or kill their process, at the Nth operation; and what must hold afterwards.

`Operations` counts every disk call and every SQL statement of a cache and does something at the chosen one. `inline`
runs thread work at once, so a run is the same every time. The inode of a test version is the seed of its contents
(`contents`: tests/support/pattern.py, or from SHRINKS on what can be
encoded, from ZEROS on zeros). `healthy_staging` is a cache for tests; `verify`
opens one and checks all that must be true of it, whatever happened before.
"""

import errno
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from mmap import mmap
from os import PathLike
from typing import Any

import numpy as np
import trio
import trio.testing

from hfs.mountd.cache import Cache, CacheSettings, Others, StagedFile, open_cache
from hfs.mountd.cache.objects.codec import Shrinker
from hfs.mountd.cache.objects.disk import Disk, DiskSpace
from hfs.mountd.cache.objects.io import ObjectIO
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.cache.encoding import EncodingChoice
from hfs.policies.geometry import Extent
from tests.support.pattern import check, pattern

CHUNK_BYTES = 64 << 10
CAPACITY_BYTES = 4 << 20
SIZE = 3 * CHUNK_BYTES + 1000
_DAYS_S = 300_000.0
"""Of the usual test file: four chunks, the last of them short."""

SHRINKS = 1 << 20
"""Seeds from here on are of contents that an encoder makes a quarter of. Those of `pattern` do not shrink."""


ZEROS = 1 << 22
"""And from here on of zeros alone."""


def contents(seed: int, offset: int, size: int) -> bytes:
    """The bytes of the test file with this seed."""
    if seed >= ZEROS:
        return bytes(size)
    data = pattern(seed, offset, size)
    return (np.frombuffer(data, np.uint8) & 3).tobytes() if seed >= SHRINKS else data


def check_contents(seed: int, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Fail unless `data` is what the file has at `offset`."""
    if seed < SHRINKS:
        check(seed, offset, data)
    else:
        assert bytes(data) == contents(seed, offset, len(data))


async def inline(sync_fn: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None) -> Any:
    """As trio.to_thread.run_sync, without a thread: others run before and after, and what has begun is not
    cancelled."""
    async with limiter or trio.CapacityLimiter(1):
        await trio.lowlevel.cancel_shielded_checkpoint()
        value = sync_fn(*args)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return value


class Operations:
    """Calls `act` with the name of the Nth operation and, if `for_ever`, of each one after it. Counts them all.

    `reads` False leaves out what changes nothing, as a process that dies there has done what it did one operation
    before.
    """

    def __init__(self, at: int, act: Callable[[str], None], *, for_ever: bool = False, reads: bool = True) -> None:
        self.count = 0
        self.names: list[str] = []
        self._at = at
        self._act = act
        self._for_ever = for_ever
        self._reads = reads

    def __call__(self, name: str) -> None:
        if not self._reads and name.startswith(("read", "open_read", "space", "sql SELECT", "sql PRAGMA")):
            return
        self.count += 1
        self.names.append(name)
        if self.count == self._at or (self._for_ever and self.count > self._at):
            self._act(name)

    def act_after(self, number: int, *, for_ever: bool = False) -> None:
        """Choose the operation that is `number` from here on."""
        self._at, self._for_ever = self.count + number, for_ever

    def act_no_more(self) -> None:
        self._at, self._for_ever = 10**9, False

    @property
    def reached(self) -> bool:
        """The chosen operation took place."""
        return self.count >= self._at

    def disk(self, cache_dir: str) -> Disk:
        """A real disk whose calls are counted."""
        return _CountedDisk(cache_dir, self)

    def connect(self, *args: Any, **keywords: Any) -> sqlite3.Connection:
        """As sqlite3.connect; the statements of the connection are counted."""
        before = self

        class Counted(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                before("sql " + sql.split("(")[0][:40])
                # Against a kill the page cache is durable enough, and a real sync costs milliseconds a time.
                return super().execute("PRAGMA synchronous = OFF" if "synchronous" in sql else sql, *values)

            def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
                before("sql " + sql.split("(")[0][:40])
                return super().executemany(sql, rows)

        return sqlite3.connect(*args, **keywords, factory=Counted)


def fail(name: str) -> None:
    """The disk is full."""
    if name.startswith("sql"):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error
    raise OSError(errno.ENOSPC, "no space left", name)


def die(name: str) -> None:
    """The process is gone."""
    os.kill(os.getpid(), signal.SIGKILL)


class _CountedIO(ObjectIO):
    def __init__(self, before: Operations) -> None:
        self._before = before

    def write(self, fd: int, parts: Sequence[memoryview | mmap], offset: int) -> None:
        # A write may be cut anywhere: here, in the middle of its first part, on a block boundary.
        self._before("write")
        half = len(parts[0]) // 2 // 4096 * 4096
        super().write(fd, [memoryview(parts[0])[:half]], offset)
        self._before("write the rest")
        super().write(fd, [memoryview(parts[0])[half:], *parts[1:]], offset + half)

    def set_length(self, fd: int, size: int) -> None:
        self._before("set_length")
        super().set_length(fd, size)

    def read(self, fd: int, offset: int, size: int) -> bytearray:
        self._before("read")
        return super().read(fd, offset, size)

    def read_into(self, fd: int, offset: int, buffer: memoryview) -> bool:
        self._before("read_into")
        return super().read_into(fd, offset, buffer)

    def read_part(self, fd: int, offset: int, buffer: memoryview) -> int:
        self._before("read_part")
        return super().read_part(fd, offset, buffer)

    def sync(self, fd: int) -> None:
        self._before("sync")

    def punch(self, fd: int, start: int, end: int) -> None:
        self._before("punch")
        super().punch(fd, start, end)


class _CountedDisk(Disk):
    def __init__(self, cache_dir: str, before: Operations) -> None:
        super().__init__(cache_dir)
        self._before = before
        self.io = _CountedIO(before)

    def open_write(self, number: int, *, create: bool, direct: bool) -> int:
        self._before("open_write")
        return super().open_write(number, create=create, direct=direct)

    def open_read(self, number: int, *, direct: bool = False) -> int:
        self._before("open_read")
        if direct:  # the kernel would write first what is not synced here
            raise OSError(errno.EINVAL, "no direct reads")
        return super().open_read(number)

    def sync_all(self) -> None:
        self._before("sync_all")

    def unlink(self, number: int) -> bool:
        self._before("unlink")
        return super().unlink(number)

    def sync_name(self, number: int) -> None:
        self._before("sync_name")

    def space(self) -> DiskSpace:
        self._before("space")
        return super().space()

    def remove_set_aside(self) -> None:
        self._before("remove_set_aside")
        super().remove_set_aside()


_SETTINGS = {field.name for field in fields(CacheSettings)}


@asynccontextmanager
async def healthy_staging(
    cache_dir: str | PathLike[str],
    *,
    metrics: Metrics | None = None,
    operations: Operations | None = None,
    disk: Disk | None = None,
    clock: Callable[[], float] = lambda: 1e9,
    encoding: bool = False,
    **how: Any,
) -> AsyncIterator[Cache]:
    """A cache without threads and without real syncs; `operations` may make it fail, `disk` stand in for its disk.

    `encoding`: what shrinks is staged encoded. `how`: fields of CacheSettings, and of Others.
    """
    cache = os.fspath(cache_dir)
    operations = operations or Operations(0, fail)
    usual = {"capacity_bytes": CAPACITY_BYTES, "chunk_bytes": CHUNK_BYTES, "eviction": "fill-once"}
    async with open_cache(
        cache,
        CacheSettings(**usual | {name: value for name, value in how.items() if name in _SETTINGS}),
        metrics=metrics or Metrics(),
        disk=disk or operations.disk(cache),
        connect=operations.connect,
        run_in_thread=inline,
        clock=clock,
        others=Others(**{name: value for name, value in how.items() if name not in _SETTINGS}),
    ) as staging:
        if encoding:
            staging.shrinking.choose(EncodingChoice(True, "for a test"), Shrinker())
        yield staging


def version_of(seed: int, size: int, ctime_ns: int = 1) -> Version:
    """The version of the test file with this seed."""
    return Version("00000000000000aa", seed, size, 1, ctime_ns)


def page_aligned(data: bytes) -> memoryview:
    """A copy that O_DIRECT takes, as the daemon's buffers are."""
    buffer = mmap(-1, max(len(data), 1))
    buffer[: len(data)] = data
    return memoryview(buffer)[: len(data)]


def put(staging: Cache, file: StagedFile, index: int) -> bool:
    """Stage the right bytes of a chunk."""
    extent = file.chunk(index)
    return staging.writer.put_nowait(file, index, page_aligned(contents(file.version.inode, extent.start, extent.size)))


def disk_bytes(cache_dir: str) -> int:
    """What the objects really take."""
    total = 0
    for folder, _, names in os.walk(os.path.join(cache_dir, "objects")):
        total += sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in names)
    return total


def object_names(cache_dir: str) -> set[int]:
    """The numbers of all objects on the disk."""
    return {int(name) for _, _, names in os.walk(os.path.join(cache_dir, "objects")) for name in names}


async def check_all(staging: Cache, *, may_fail: bool = False) -> int:
    """Every chunk that is committed has the right bytes. Returns how many there are."""
    chunks = 0

    async def compare(file: StagedFile, extent: Extent) -> None:
        try:
            data = await staging.reader.read(file, extent)
        except StagingError as error:
            assert may_fail, f"committed bytes cannot be read: {error}"
        else:
            check_contents(file.version.inode, extent.start, data)

    rows = [row async for row in staging.listing.rows()]
    newest = {row.version.inode: row.version.ctime_ns for row in sorted(rows, key=lambda row: row.version.ctime_ns)}
    for row in rows:
        if row.version.ctime_ns < newest[row.version.inode]:
            continue  # goes as soon as the newer version is looked up
        file = await staging.files.get(row.version)
        if file.object_id != row.object_id:
            assert may_fail  # an eviction failed half way: the row is there, but nothing reads it
            continue
        for index in file.committed:
            await compare(file, file.chunk(index))
            chunks += 1
        if file.committed.full:
            assert os.path.getsize(staging.context.disk.path(row.object_id)) == row.version.size
            await compare(file, Extent(0, row.version.size))
    return chunks


Chunk = tuple[int, int, int]
"""Seed and generation (ctime) of a test file, and the number of the chunk."""


async def _committed_chunks(staging: Cache) -> set[Chunk]:
    found: set[Chunk] = set()
    for row in [row async for row in staging.listing.rows()]:
        file = await staging.files.get(row.version)
        found.update((row.version.inode, row.version.ctime_ns, index) for index in file.committed)
    return found


async def verify(
    cache_dir: str, capacity_bytes: int = CAPACITY_BYTES, reported: Collection[Chunk] = frozenset()
) -> int:
    """Open the cache with a healthy disk and check all promises. Returns the number of chunks committed.

    `reported`: chunks that must be among them.
    """
    metrics = Metrics()
    async with healthy_staging(cache_dir, capacity_bytes=capacity_bytes, metrics=metrics) as staging:
        await staging.ready.wait()
        lost = set(reported) - await _committed_chunks(staging)
        assert not lost, f"reported and lost: {sorted(lost)}"
        chunks = await check_all(staging)
        damaged = [checked async for checked in staging.checker.check() if checked.broken]
        assert not damaged
        await staging.reclaimer.wait_idle()
        rows = [row async for row in staging.listing.rows()]
        statistics = staging.statistics()
        assert metrics["staging_errors"] == 0, statistics.last_error
        assert object_names(cache_dir) == {row.object_id for row in rows}, "garbage, or rows without an object"
        assert statistics.files == len(rows)
        assert statistics.bytes == sum(row.staged_bytes for row in rows)
        assert statistics.room_bytes == sum(row.room_bytes for row in rows)
        assert statistics.shrunk_stored_bytes <= statistics.shrunk_bytes <= statistics.bytes
        assert disk_bytes(cache_dir) <= statistics.room_bytes <= capacity_bytes
        assert not [name for name in os.listdir(cache_dir) if name.startswith("objects.broken")]
    return chunks


def run(function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    """In virtual time, of which nothing takes days: what hangs fails at once, and what is only slow does not."""

    async def main() -> Any:
        with trio.fail_after(_DAYS_S):
            return await function(*args)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def stage(staging: Cache, seed: int, size: int = SIZE, path: bytes = b"f", ctime_ns: int = 1) -> StagedFile:
    """A whole file, committed."""
    file = await staging.files.get(version_of(seed, size, ctime_ns), path)
    for index in range(file.present.count):
        assert put(staging, file, index)
    await staging.committer.wait_committed()
    return file


async def evict(staging: Cache, *versions: Version) -> tuple[int, int]:
    """Evict these, except what is open. (how many are gone, bytes of room given back)."""
    await staging.committer.wait_committed()
    files = [await staging.files.get(version) for version in versions]
    targets = [(file.object_id, file.version) for file in files if file.object_id is not None]
    gone, freed_bytes = await staging.reclaimer.evict(targets)
    return len(gone), freed_bytes


def object_path(staging: Cache, file: StagedFile) -> str:
    assert file.object_id is not None
    return staging.context.disk.path(file.object_id)


def overwrite(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
