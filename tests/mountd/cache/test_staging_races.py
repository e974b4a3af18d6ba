"""Evictions, repairs and readers that meet: nothing is taken from under a reader, no byte is ever wrong.

Without threads, in virtual time (tests/support/faults.py).
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.support.faults import (
    CHUNK_BYTES,
    SHRINKS,
    SIZE,
    disk_bytes,
    evict,
    healthy_staging,
    object_names,
    put,
    run,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import check, pattern


async def test_evict_takes_what_is_named_and_not_open(tmp_path: Path) -> None:
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        paths = [b"a/b/1", b"a/b2/1", b"a/bc", b"x"]
        files = [await stage(staging, seed, 100, path) for seed, path in enumerate(paths, 1)]
        assert [row.path async for row in staging.listing.rows([b"a/b"])] == [b"a/b/1"]
        assert [row.path async for row in staging.listing.rows([b"a/", b"x"])] == paths
        assert await staging.evictions.evict_paths([b"a/b", b"a/bc"]) == (2, 2 * 8192)
        assert [file.complete for file in files] == [False, True, False, True]
        staging.files.pin(files[3])
        assert await staging.evictions.evict_paths() == (1, 8192)
        assert metrics["evicted_files"] == 3
        assert metrics["evicted_bytes"] == 3 * 8192
        staging.files.unpin(files[3])
        assert await evict(staging, files[3].version, version_of(99, 5)) == (1, 8192)
        assert staging.statistics().files == staging.statistics().room_bytes == 0
        await stage(staging, 1, 100)  # and again, under another number
    assert await verify(str(tmp_path)) == 1


async def test_what_was_given_up_and_put_again_before_its_object_went_stays(tmp_path: Path) -> None:
    """A file whose only chunk was damaged, read again at once, while the removal of others takes its time."""
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await stage(staging, 1, 100)
        async with staging.reclaimer.lock:
            staging.reclaim_queue.give_up(file, [0])
            await trio.testing.wait_all_tasks_blocked()
            assert not file.present
            assert await stage(staging, 1, 100) is file
        await staging.reclaimer.wait_idle()
        assert file.present
        assert metrics["evicted_files"] == 0
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        assert staging.statistics().files == 0


async def test_a_superseded_version_goes_when_its_last_reader_closes(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1)
        staging.files.pin(file)
        await staging.files.supersede(file.version)
        await staging.reclaimer.wait_idle()
        check(1, 0, await staging.reader.read_chunk(file, 0))
        staging.files.unpin(file)
        await staging.reclaimer.wait_idle()
        assert not file.present
        assert staging.statistics().files == 0


async def test_a_look_up_of_a_newer_version_supersedes_the_older(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1, ctime_ns=5)
        await stage(staging, 2, ctime_ns=5)
    async with healthy_staging(tmp_path) as staging:
        await staging.files.get(version_of(1, 777, 6))
        await staging.files.get(version_of(2, 777, 4))  # from a stale attribute: not newer
        await staging.reclaimer.wait_idle()
        assert [row.version.inode async for row in staging.listing.rows()] == [2]


async def test_an_eviction_that_has_begun_is_finished(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        for seed in range(1, 30):
            await stage(staging, seed, 10)
        for give_up in range(40):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    if give_up:
                        nursery.start_soon(evict, staging, version_of(give_up, 10))
                    else:
                        nursery.start_soon(staging.evictions.evict_paths)
                    for _ in range(give_up):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            names = object_names(str(tmp_path))
            assert names == {row.object_id async for row in staging.listing.rows()}
            assert staging.statistics().room_bytes == 8192 * len(names)


async def test_a_descriptor_in_use_is_not_closed(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1, 100)
        await staging.reader.read_chunk(file, 0)
        assert file.object_id is not None
        held = staging.descriptors.acquire(file.object_id)
        assert held is not None
        await staging.evictions.evict_paths()
        assert os.fstat(held.fd).st_nlink == 0
        staging.descriptors._limit = 2
        for seed in range(2, 9):
            other = await stage(staging, seed, 100)
            await staging.reader.read_chunk(other, 0)
        assert len(staging.descriptors) == 2
        assert os.pread(held.fd, 100, 0) == pattern(1, 0, 100)
        staging.descriptors.release(held)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(held.fd)


async def test_a_read_that_a_repair_overtakes_brings_no_zeros(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1)
        reading = staging.context.threads._reading.limiter
        outcome: list[object] = []

        async def read() -> None:
            try:
                outcome.append(await staging.reader.read(file, Extent(0, 1000)))
            except StagingError as error:
                outcome.append(error)

        async with trio.open_nursery() as nursery:
            places = int(reading.total_tokens)
            for place in range(places):
                reading.acquire_on_behalf_of_nowait(place)
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            staging.reclaim_queue.give_up(file, [0])
            await staging.reclaimer.wait_idle()
            put(staging, file, 0)  # present again, but what the thread reads was read before
            for place in range(places):
                reading.release_on_behalf_of(place)
        assert isinstance(outcome[0], StagingError)


@pytest.mark.parametrize("encoding", [False, True])
@pytest.mark.parametrize("during_sync", [False, True])
async def test_a_chunk_put_again_before_it_was_committed_is_counted_once(
    tmp_path: Path, encoding: bool, during_sync: bool
) -> None:
    """It is found damaged while its first put waits for the sync; another chunk keeps the object."""
    async with healthy_staging(tmp_path, encoding=encoding) as staging:
        file = await staging.files.get(version_of(SHRINKS, SIZE), b"f")
        syncing = staging.context.threads.sync.limiter
        syncing.acquire_on_behalf_of_nowait(staging)
        assert put(staging, file, 0)
        assert put(staging, file, 1)
        if during_sync:
            await trio.sleep(10)
        await trio.testing.wait_all_tasks_blocked()
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        assert put(staging, file, 0)
        await trio.testing.wait_all_tasks_blocked()
        syncing.release_on_behalf_of(staging)
        await staging.committer.wait_committed()
        (row,) = [row async for row in staging.listing.rows()]
        statistics = staging.statistics()
        assert row.room_bytes == file.room_bytes == statistics.room_bytes
        assert row.staged_bytes == statistics.bytes == 2 * CHUNK_BYTES
        assert sorted(file.committed) == [0, 1]
        assert not staging.committer._latest
        await staging.evictions.evict_paths()
        statistics = staging.statistics()
        assert statistics.room_bytes == statistics.bytes == statistics.shrunk_bytes == 0


async def test_only_what_was_synced_is_committed(tmp_path: Path) -> None:
    """A chunk is given up and put again during the sync that its first put waits for: the next one counts."""
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        sync, gate = staging.context.threads.sync, trio.Event()

        async def slow(*args: Any) -> Any:
            answer = await sync(*args)
            await gate.wait()
            return answer

        staging.context.threads.sync = slow  # type: ignore[method-assign]  # replaced on purpose
        assert put(staging, file, 0)
        assert put(staging, file, 1)
        await trio.sleep(10)
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        assert put(staging, file, 0)
        await trio.testing.wait_all_tasks_blocked()
        staging.context.threads.sync = sync  # type: ignore[method-assign]  # and put back
        places = staging.context.threads.sync.limiter
        places.acquire_on_behalf_of_nowait(staging)
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(file.committed) == [1]
        places.release_on_behalf_of(staging)
        await staging.committer.wait_committed()
        assert sorted(file.committed) == [0, 1]


async def test_a_look_up_that_an_eviction_overtakes_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfs.mountd.cache.files._QUICK_CHUNKS", 1)
    async with healthy_staging(tmp_path) as staging:
        number = (await stage(staging, 1)).object_id
        assert number is not None
    async with healthy_staging(tmp_path) as staging:
        threads, gate = staging.context.threads, trio.Event()
        ask_index = threads.ask_index

        async def slow(*args: Any) -> Any:
            answer = await ask_index(*args)
            await gate.wait()
            return answer

        threads.ask_index = slow  # type: ignore[method-assign]  # replaced on purpose
        found: list[StagedFile] = []

        async def look() -> None:
            found.append(await staging.files.get(version_of(1, SIZE)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.testing.wait_all_tasks_blocked()
            assert (await staging.reclaimer.evict([(number, version_of(1, SIZE))]))[0] == [number]
            gate.set()
        assert not found[0].present
        assert found[0].object_id is None


async def test_cancelled_waiters_leave_nothing_behind(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1)
        for patience in range(12):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(staging.committer.wait_committed)
                    nursery.start_soon(staging.reader.read_chunk, file, 0)
                    nursery.start_soon(staging.files.get, version_of(100 + patience, 5))
                    for _ in range(patience):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
        other = await stage(staging, 2)
        assert other.durable
        await staging.files.get(version_of(103, 5))
        check(1, 0, await staging.reader.read_chunk(file, 0))
    await verify(str(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(180)  # five seconds of CPU: a minute on a machine with a load of 20; a hang fails at once
@settings(max_examples=25)
@given(st.random_module(), st.integers(0, 1 << 32), st.sampled_from(["lru", "fill-once"]))
def test_whatever_happens_together_no_byte_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, module: object, seed: int, policy: Any
) -> None:
    """Tasks put, read, pin, evict, supersede and give up chunks of the same few files in any order."""
    cache = str(tmp_path_factory.mktemp("cache"))
    sizes = {1: 500, 2: 3 * CHUNK_BYTES, 3: CHUNK_BYTES + 1, 4: CHUNK_BYTES}
    capacity = 6 * CHUNK_BYTES
    dice = random.Random(seed)

    async def actor(staging: Cache) -> None:
        for _ in range(25):
            inode = dice.choice(list(sizes))
            version = version_of(inode, sizes[inode], dice.choice((1, 1, 2)))
            file = staging.files.get_nowait(version) or await staging.files.get(version, b"f")
            index = dice.randrange(file.present.count)
            action = dice.randrange(8)
            if action < 3:
                put(staging, file, index)
            elif action < 5:
                staging.files.pin(file)
                try:
                    if index in file.present:
                        extent = file.chunk(index)
                        check(inode, extent.start, await staging.reader.read(file, extent))
                except StagingError:
                    pass
                finally:
                    staging.files.unpin(file)
            elif action == 5:
                await evict(staging, version)
            elif action == 6:
                staging.reclaim_queue.give_up(file, [index])
            else:
                await staging.files.supersede(version)
            statistics = staging.statistics()
            assert statistics.room_bytes <= capacity
            assert disk_bytes(cache) <= statistics.room_bytes

    async def main() -> None:
        async with healthy_staging(cache, capacity_bytes=capacity, eviction=policy) as staging:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(actor, staging)
            await staging.committer.wait_committed()
            await staging.reclaimer.wait_idle()
            async with staging.reclaimer.lock:  # the evictor may still be at work
                rows = [row async for row in staging.listing.rows()]
                assert sum(row.room_bytes for row in rows) == staging.statistics().room_bytes
            for file in staging.files._known.values():
                assert file.unsettled == file.pins == 0
                assert file.barred is None
                held = sum(map(file.chunk_room_bytes, file.present))
                assert file.room_bytes == (held + file.overhead_bytes() if file.object_id is not None else 0)
        async with healthy_staging(cache, capacity_bytes=capacity) as staging:
            assert staging.context.index.opened.clean

    run(main)
    run(verify, cache, capacity)
