"""The process whose writes are recorded: python -m tests.power.child CACHE BREAKAGE, below tests/power/record.c.

Works on a cache with the real index, disk and order of things, on one thread and in virtual time, so that each run
writes the same. Says in the record what staging has reported: `committed` once chunks are, `given up` before they may
go. BREAKAGE takes one of the promises out of the code that the cache rests on (`BREAKAGES`), to see that it is missed.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import trio
import trio.testing

from hfs.mountd.cache import Cache, CacheSettings, StagedFile, open_cache, reclaimer
from hfs.mountd.cache import committer as committer_module
from hfs.mountd.cache.index.database import IndexDatabase
from hfs.mountd.cache.index.statements import IndexWriter
from hfs.mountd.core.metrics import Metrics
from tests.power.crash_child import few_numbers_leased
from tests.support.faults import CAPACITY_BYTES, CHUNK_BYTES, evict, inline, put, version_of

_recorder = ctypes.CDLL(None)


def note(what: str, chunks: list[tuple[int, int, int]]) -> None:
    """`chunks`: (seed, generation, index)."""
    _recorder.record_note(json.dumps([what, chunks]).encode())


def chunks_of(file: StagedFile, indexes: list[int] | None = None) -> list[tuple[int, int, int]]:
    return [(file.version.inode, file.version.ctime_ns, index) for index in indexes or range(file.present.count)]


async def stage(staging: Cache, files: list[tuple[int, int]], generation: int = 1) -> list[StagedFile]:
    """Put files (seed, size) whole and have them committed."""
    staged = []
    for seed, size in files:
        file = await staging.files.get(version_of(seed, size, generation), b"dir/%d" % seed)
        for index in range(file.present.count):
            assert put(staging, file, index)
        staged.append(file)
    await staging.committer.wait_committed()
    note("committed", [chunk for file in staged for chunk in chunks_of(file)])
    return staged


async def give_up(staging: Cache, files: list[StagedFile]) -> None:
    note("given up", [chunk for file in files for chunk in chunks_of(file)])
    await evict(staging, *[file.version for file in files])


async def first_run(staging: Cache) -> None:
    """One chunk, several with a short end, exactly two; parts; what goes, is damaged, replaced; a lease that ends."""
    files = await stage(staging, [(1, 5000), (2, 300_000), (3, 2 * CHUNK_BYTES), (4, 70_001)])
    part = await staging.files.get(version_of(6, 1_000_000), b"part")
    put(staging, part, 3)
    put(staging, part, part.present.count - 1)
    await staging.committer.wait_committed()
    note("committed", chunks_of(part, [3, part.present.count - 1]))
    await give_up(staging, files[:2])
    put(staging, part, 5)  # on its way to the index when the next things happen
    note("given up", chunks_of(files[2], [1]))
    staging.reclaim_queue.give_up(files[2], [1])
    await staging.reclaimer.wait_idle()
    put(staging, files[2], 1)
    many = await stage(staging, [(100 + number, 3000 + number) for number in range(40)])
    note("given up", chunks_of(files[3]))
    await stage(staging, [(4, 70_001)], generation=2)  # a newer version
    await staging.files.supersede(version_of(4, 70_001))
    await staging.reclaimer.wait_idle()
    await give_up(staging, many[:20])
    await stage(staging, [(200 + number, 2000) for number in range(30)])


async def second_run(staging: Cache) -> None:
    """Over what the first has left, without an end."""
    await stage(staging, [(300 + number, 90_000) for number in range(4)])
    await give_up(staging, [await staging.files.get(version_of(301, 90_000))])
    for seed in (400, 401):
        file = await staging.files.get(version_of(seed, 5000))
        put(staging, file, 0)
    await trio.sleep(1)  # written, not yet synced


async def work(cache_dir: str) -> None:
    for run in (first_run, second_run):
        settings = CacheSettings(CAPACITY_BYTES, chunk_bytes=CHUNK_BYTES)
        async with open_cache(
            cache_dir, settings, metrics=Metrics(), run_in_thread=inline, clock=lambda: 1e9
        ) as staging:
            await staging.ready.wait()
            await run(staging)
            if run is second_run:
                os._exit(0)


@contextmanager
def committed_without_a_sync(name: str) -> Iterator[None]:
    """This method of IndexWriter commits as if nothing depended on it."""
    method, transaction = getattr(IndexWriter, name), IndexDatabase.transaction
    weak = False

    def weakly(self: IndexWriter, *args: Any) -> Any:
        nonlocal weak
        weak = True
        try:
            return method(self, *args)
        finally:
            weak = False

    def transact(self: IndexDatabase, *, durable: bool) -> Any:
        return transaction(self, durable=durable and not weak)

    with mock.patch.object(IndexWriter, name, weakly), mock.patch.object(IndexDatabase, "transaction", transact):
        yield


@contextmanager
def entered_without_a_sync() -> Iterator[None]:
    """Chunks get their rows before their bytes are on the disk."""
    with mock.patch.object(committer_module, "sync_objects", return_value=None):
        yield


@contextmanager
def names_not_synced() -> Iterator[None]:
    """What was unlinked may come back."""
    with mock.patch.object(reclaimer, "sync_names", return_value=None):
        yield


class Breakage(NamedTuple):
    """How to break it, and what is then found."""

    apply: Callable[[], Any]
    found: str


BREAKAGES = {
    "rows go without a sync before their objects": Breakage(
        lambda: committed_without_a_sync("doom"), "committed bytes cannot be read"
    ),
    "rows of removed objects are forgotten before their names are gone": Breakage(names_not_synced, "garbage"),
    "numbers are leased without a sync": Breakage(lambda: committed_without_a_sync("lease"), "garbage"),
    "chunks are forgotten without a sync before they are punched": Breakage(
        lambda: committed_without_a_sync("forget"), "committed bytes cannot be read"
    ),
    "rows come without a sync": Breakage(lambda: committed_without_a_sync("commit_chunks"), "reported and lost"),
    "rows come before the bytes are synced": Breakage(entered_without_a_sync, "committed bytes cannot be read"),
}


if __name__ == "__main__":
    cache, breakage = sys.argv[1:]
    with few_numbers_leased(), BREAKAGES[breakage].apply() if breakage else mock.patch.dict({}):
        trio.run(work, cache, clock=trio.testing.MockClock(autojump_threshold=0))
