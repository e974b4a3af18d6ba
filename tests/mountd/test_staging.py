"""Staging: what is put comes back right, from memory, from the disk and after a restart; room is never exceeded;
whatever fails costs staging and nothing else.

Without threads, in virtual time (tests/faults.py), except where threads are the matter.
"""

import errno
import os
import random
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mountd.errors import MountError, StagingError
from mountd.metrics import Metrics
from mountd.staging import StagedFile, Staging
from mountd.staging_disk import Disk, DiskSpace
from mountd.staging_opening import open_staging
from policies.admission import blocks_bytes
from policies.geometry import Extent
from tests.conftest import Logs
from tests.faults import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    Operations,
    disk_bytes,
    fail,
    healthy_staging,
    object_names,
    page_aligned,
    put,
    verify,
    version_of,
)
from tests.pattern import check, pattern

SIZE = 3 * CHUNK_BYTES + 1000


def run(function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))


async def stage(staging: Staging, seed: int, size: int = SIZE, path: bytes = b"f", ctime_ns: int = 1) -> StagedFile:
    """A whole file, vouched for."""
    file = await staging.file(version_of(seed, size, ctime_ns), path)
    for index in range(file.present.count):
        assert put(staging, file, index)
    await staging.wait_vouched()
    return file


def object_path(staging: Staging, file: StagedFile) -> str:
    assert file.object_id is not None
    return staging.sweeper.object_path(file.object_id)


def overwrite(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


# -- put, read, restart
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE])
def test_what_is_put_comes_back_byte_for_byte(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await stage(staging, 1, size)
            assert file.complete
            assert file.durable
            check(1, 0, await staging.read(file, Extent(0, size)))
            check(1, size // 2, await staging.read(file, Extent(size // 2, size)))
            check(1, file.chunk(0).start, await staging.read_chunk(file, 0))
            assert Path(object_path(staging, file)).read_bytes() == pattern(1, 0, size)
            assert os.stat(object_path(staging, file)).st_mode & 0o777 == 0o600
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, size))
            assert file.durable
            check(1, 0, await staging.read(file, Extent(0, size)))
            assert file.staged_bytes() == staging.statistics().bytes == size

    run(main)
    assert run(verify, str(tmp_path)) > 0


def test_an_incomplete_file_has_its_full_length_and_knows_its_chunks(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, SIZE), b"f")
            assert put(staging, file, 2)
            assert 2 not in file.present
            await staging.wait_vouched()
            assert list(file.present) == list(file.vouched) == [2]
            assert not file.complete
            assert os.path.getsize(object_path(staging, file)) == SIZE
            with pytest.raises(StagingError):
                await staging.read(file, Extent(0, 10))
            assert staging.read_nowait(file, Extent(0, 10)) is None
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, SIZE))
            assert list(file.vouched) == [2]
            check(1, 2 * CHUNK_BYTES, await staging.read_chunk(file, 2))

    run(main)


def test_a_chunk_is_present_before_it_is_vouched_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, 100), b"f")
            done: list[bool] = []
            data = page_aligned(pattern(1, 0, 100))
            assert staging.put_nowait(file, 0, data, lambda: done.append(0 in file.present))
            assert not done
            while not done:
                await trio.lowlevel.checkpoint()
            assert done == [True]
            assert not file.vouched
            assert staging.statistics().unvouched_bytes == 100
            await trio.sleep(1.9)
            assert not file.vouched
            await trio.sleep(0.2)
            assert file.vouched
            assert staging.statistics().unvouched_bytes == 0

    run(main)


def test_a_wrong_length_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, SIZE))
            with pytest.raises(ValueError, match="has 1000 bytes, not 7"):
                staging.put_nowait(file, 3, memoryview(b"1234567"))

    run(main)


def test_nothing_keeps_the_bytes_once_they_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, 5000), b"f")
            array = np.frombuffer(pattern(1, 0, 5000), np.uint8).copy()
            gone = weakref.ref(array)
            assert staging.put_nowait(file, 0, memoryview(array))
            del array
            while not file.present:
                await trio.lowlevel.checkpoint()
            assert gone() is None

    run(main)


def test_a_file_found_keeps_its_chunk_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, SIZE), b"f")
            put(staging, file, 1)
        async with healthy_staging(tmp_path, chunk_bytes=2 * CHUNK_BYTES) as staging:
            file = await staging.file(version_of(1, SIZE))
            assert file.chunk_bytes == CHUNK_BYTES
            put(staging, file, 0)
            await staging.wait_vouched()
            assert (await staging.file(version_of(2, SIZE))).chunk_bytes == 2 * CHUNK_BYTES
        async with healthy_staging(tmp_path) as staging:
            file = await staging.file(version_of(1, SIZE))
            check(1, 0, await staging.read(file, Extent(0, 2 * CHUNK_BYTES)))

    run(main)


def test_sources_of_one_cache_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await stage(staging, 5, 300)
            other = version_of(5, 300)._replace(source_id="00000000000000bb")
            file = await staging.file(other, b"f")
            assert not file.present
            staging.put_nowait(file, 0, memoryview(pattern(6, 0, 300)))
        async with healthy_staging(tmp_path) as staging:
            check(6, 0, await staging.read_chunk(await staging.file(other), 0))
            check(5, 0, await staging.read_chunk(await staging.file(version_of(5, 300)), 0))
            assert await staging.evict_paths([b""], other.source_id) == (1, 8192)
            assert [row.version.source_id async for row in staging.rows()] == ["00000000000000aa"]

    run(main)


@pytest.mark.slow
def test_large_chunks_go_to_a_real_disk_with_threads(tmp_path: Path) -> None:
    """With a ragged end, so that O_DIRECT, where the disk takes it, has something to cut off."""
    size, chunk = (8 << 20) + 12345, 4 << 20

    async def main() -> None:
        metrics = Metrics()
        keywords: dict[str, Any] = {"capacity_bytes": 1 << 30, "chunk_bytes": chunk, "metrics": metrics}
        async with open_staging(str(tmp_path), **keywords) as staging:
            files = [await staging.file(version_of(seed, size), b"f%d" % seed) for seed in (1, 2)]
            for index in (2, 0, 1):
                for file in files:
                    assert put(staging, file, index)
            await staging.wait_vouched()
            for seed, file in zip((1, 2), files, strict=True):
                assert file.durable
                assert os.path.getsize(object_path(staging, file)) == size
                check(seed, 0, await staging.read(file, Extent(0, size)))
            data = staging.read_nowait(files[0], Extent(100, 200))
            assert data is None or data == pattern(1, 100, 100)  # tmpfs never answers without waiting
            assert [checked.broken async for checked in staging.check()] == [(), ()]
            assert disk_bytes(str(tmp_path)) <= staging.statistics().room_bytes
        assert metrics["staging_errors"] == 0
        assert metrics["staging_put_bytes"] == 2 * size

    trio.run(main)


# -- look-ups
# ------------------------------------------------------------------------------------------------------------


def test_look_ups_that_wait_together_go_to_the_index_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            for seed in range(1, 101):
                put(staging, await staging.file(version_of(seed, 10), b"f"), 0)
        operations = Operations(0, fail)
        async with healthy_staging(tmp_path, operations=operations) as staging:
            assert staging.file_nowait(version_of(1, 10)) is None
            asked: list[int] = []
            find = staging._ground.index.find

            def counted(versions: Any) -> Any:
                asked.append(len(versions))
                return find(versions)

            staging._ground.index.find = counted  # type: ignore[method-assign]
            found: list[StagedFile] = []
            async with trio.open_nursery() as nursery:
                for seed in (*range(1, 101), 1, 1):

                    async def look(seed: int = seed) -> None:
                        found.append(await staging.file(version_of(seed, 10)))

                    nursery.start_soon(look)
            assert sum(asked) == 100
            assert len(asked) <= 2
            assert len(found) == 102
            assert len(set(map(id, found))) == 100
            assert all(file.durable for file in found)
            await staging.prefetch_lookups([version_of(seed, 10) for seed in range(90, 110)])
            assert sum(asked) == 109
            known = staging.file_nowait(version_of(109, 10))
            assert known is not None
            assert not known.present

    run(main)


def test_whoever_holds_a_file_holds_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            staging.files._keep = 4
            held = await stage(staging, 1, 10)
            for seed in range(2, 20):
                await stage(staging, seed, 10)
            assert len(staging.files) <= 5
            assert await staging.file(held.version) is held
            again = await staging.file(version_of(2, 10))
            assert again.durable  # forgotten by memory, not by the index

    run(main)


def test_a_broken_index_costs_staging_and_nothing_else(tmp_path: Path, logs: Logs) -> None:
    logs.expect("looking up staged files: .*serving from the source")

    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path) as staging:
            await stage(staging, 1)
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            staging._ground.index._reader.close()
            file = await staging.file(version_of(1, SIZE))
            assert not file.present
            assert metrics["staging_errors"] == 1
            assert staging.statistics().state == "resting"
            staging._ground.index.close()

    run(main)


# -- room
# ----------------------------------------------------------------------------------------------------------------


def test_fill_once_never_exceeds_the_capacity_and_keeps_what_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        metrics = Metrics()
        capacity = 3 * (CHUNK_BYTES + 4096)
        async with healthy_staging(tmp_path, capacity_bytes=capacity, metrics=metrics) as staging:
            files = [await staging.file(version_of(seed, CHUNK_BYTES), b"f") for seed in range(1, 6)]
            assert staging.admits_nowait(files[0], CHUNK_BYTES)
            assert [put(staging, file, 0) for file in files] == [True, True, True, False, False]
            await staging.wait_vouched()
            await trio.sleep(100)
            assert not staging.admits_nowait(files[3], 1)
            assert not put(staging, files[3], 0)
            assert [file.complete for file in files] == [True, True, True, False, False]
            assert staging.statistics().room_bytes == capacity
            assert staging.statistics().state == "full"
            assert disk_bytes(str(tmp_path)) <= capacity
            assert metrics["staging_dropped"] == 3
            await staging.evict([files[0].version])
            assert put(staging, files[3], 0)
            assert staging.statistics().state == "ok"

    run(main)


def test_fill_once_gives_up_what_nobody_used_for_a_day(tmp_path: Path) -> None:
    now = 1e9

    async def main() -> None:
        nonlocal now
        async with healthy_staging(tmp_path, capacity_bytes=2 * (CHUNK_BYTES + 4096), clock=lambda: now) as staging:
            old = await stage(staging, 1, CHUNK_BYTES)
            now += 25 * 3600
            used = await stage(staging, 2, CHUNK_BYTES)
            new = await staging.file(version_of(3, CHUNK_BYTES))
            assert not put(staging, new, 0)
            await trio.sleep(1)
            assert (old.complete, used.complete) == (False, True)
            assert put(staging, new, 0)

    run(main)


def test_lru_makes_room_for_what_comes_but_never_from_what_is_open(tmp_path: Path) -> None:
    now = 1e9

    async def main() -> None:
        nonlocal now
        async with healthy_staging(
            tmp_path, capacity_bytes=5 * (CHUNK_BYTES + 4096), eviction="lru", clock=lambda: now
        ) as staging:
            files = []
            for seed in range(1, 5):
                now += 100
                files.append(await stage(staging, seed, CHUNK_BYTES))
            staging.pin(files[0])
            staging.pin(files[1])
            staging.unpin(files[1])  # used just now
            await trio.sleep(1)
            new = await staging.file(version_of(9, CHUNK_BYTES))
            put(staging, new, 0)
            await trio.sleep(1)
            assert [file.complete for file in files] == [True, True, False, True]
            assert new.complete
            staging.unpin(files[0])
            assert await staging.evict([files[0].version]) == (1, CHUNK_BYTES + 4096)

    run(main)


class SmallDisk(Disk):
    """A disk of 100 GB with as much free as the test says."""

    free_bytes = 50 * 10**9
    memory = False

    def space(self) -> DiskSpace:
        return DiskSpace(100 * 10**9, self.free_bytes)

    def in_memory(self) -> bool:
        return self.memory


def test_without_a_size_the_floor_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        disk = SmallDisk(str(tmp_path))
        async with healthy_staging(tmp_path, capacity_bytes=None, disk=disk) as staging:
            files = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2, 3, 4)]
            held = 4 * (CHUNK_BYTES + 4096)
            assert staging.statistics().capacity_bytes == 40 * 10**9
            # Others write: nothing more is taken on, and what must go goes, also what was used today.
            staging.pin(files[0])
            disk.free_bytes = 10 * 10**9 - 100_000
            new = await staging.file(version_of(9, CHUNK_BYTES))
            await trio.sleep(11)
            assert not put(staging, new, 0)
            disk.free_bytes = 50 * 10**9  # two evicted, and others have gone as well
            assert staging.statistics().room_bytes < held
            assert files[0].complete
            await trio.sleep(11)
            assert put(staging, new, 0)

    run(main)


def test_a_cache_in_memory_needs_a_size(tmp_path: Path) -> None:
    async def main() -> None:
        disk = SmallDisk(str(tmp_path))
        disk.memory = True
        with pytest.raises(MountError, match="a cache on tmpfs needs --cache-size"):
            async with healthy_staging(tmp_path, capacity_bytes=None, disk=disk):
                pass
        async with healthy_staging(tmp_path, disk=disk):
            pass

    run(main)


def test_a_size_below_one_chunk_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(MountError, match=r"65535 bytes cannot hold one chunk of 65536.*larger --cache-size"):
            async with healthy_staging(tmp_path, capacity_bytes=CHUNK_BYTES - 1):
                pass

    run(main)


def test_an_unusable_directory_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(MountError, match="cannot be used: Not a directory: choose another --cache"):
            async with healthy_staging(tmp_path / "file" / "cache"):
                pass

    run(main)


def test_a_smaller_size_than_last_time_evicts(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            for seed in range(1, 11):
                await stage(staging, seed, CHUNK_BYTES)
        capacity = 4 * (CHUNK_BYTES + 4096)
        async with healthy_staging(tmp_path, capacity_bytes=capacity) as staging:
            await trio.sleep(1)
            assert staging.statistics().files == 4
            assert staging.statistics().room_bytes == capacity

    run(main)


def test_a_full_queue_drops_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path, in_flight_bytes=2 * CHUNK_BYTES, metrics=metrics) as staging:
            file = await staging.file(version_of(1, SIZE))
            assert [put(staging, file, index) for index in range(4)] == [True, True, False, False]
            assert staging.statistics().queued_bytes == 2 * CHUNK_BYTES
            await staging.wait_vouched()
            assert staging.statistics().queued_bytes == 0
            assert put(staging, file, 2)
            assert metrics["staging_dropped"] == 2

    run(main)


# -- faults
# --------------------------------------------------------------------------------------------------------------


class FullDisk(Disk):
    """Refuses writes, or syncs, while told to."""

    full = False
    sync_fails = False

    def write(self, fd: int, parts: Any, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "lost")


def test_a_full_disk_rests_longer_and_longer_and_recovers(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staging a chunk: .*full; serving from the source, trying again in 1 s")

    async def main() -> None:
        disk, metrics = FullDisk(str(tmp_path)), Metrics()
        async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
            disk.full = True
            file = await staging.file(version_of(1, SIZE), b"f")
            tries, start = [], trio.current_time()
            while trio.current_time() < start + 40:
                if put(staging, file, 0):
                    tries.append(round(trio.current_time() - start))
                await trio.sleep(0.25)
            assert tries == [0, 1, 3, 7, 15, 31]
            assert staging.statistics().state == "resting"
            assert staging.statistics().room_bytes == 0
            assert object_names(str(tmp_path)) == set()
            assert metrics["staging_errors"] == 6
            assert len(logs.records) == 1  # one a minute
            disk.full = False
            await trio.sleep(32)
            await stage(staging, 1)
            assert staging.statistics().state == "ok"
            disk.full = True
            put(staging, await staging.file(version_of(2, 10)), 0)
            await trio.sleep(0.1)
            assert staging._ground.health._rest_s == 1  # forgiven

    run(main)
    run(verify, str(tmp_path))


def test_a_failed_sync_is_believed(tmp_path: Path, logs: Logs) -> None:
    """What was written before it is not used any more, although the file system would now say that all is well."""
    logs.expect("making staged chunks durable: .*lost")

    async def main() -> None:
        disk, metrics = FullDisk(str(tmp_path)), Metrics()
        async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
            good = await staging.file(version_of(1, SIZE), b"f")
            put(staging, good, 0)
            await staging.wait_vouched()
            disk.sync_fails = True
            file = await staging.file(version_of(2, 5000), b"f")
            put(staging, good, 1)
            put(staging, file, 0)
            await staging.wait_vouched()
            await staging.sweeper.wait_idle()
            assert list(good.present) == list(good.vouched) == [0]
            assert not file.present
            assert metrics["staging_errors"] == 1
            assert staging.statistics().room_bytes == CHUNK_BYTES + 4096
            disk.sync_fails = False
            await trio.sleep(2)
            assert put(staging, good, 1)
            assert put(staging, file, 0)
            await staging.wait_vouched()
            assert file.durable

    run(main)
    assert run(verify, str(tmp_path)) == 3


@pytest.mark.parametrize("how", ["wrong byte", "short", "gone"])
def test_a_damaged_file_is_forgotten_and_staged_again(tmp_path: Path, logs: Logs, how: str) -> None:
    logs.expect("cannot be read")

    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            file = await stage(staging, 1)
            path = object_path(staging, file)
            if how == "wrong byte":
                overwrite(path, CHUNK_BYTES + 7, b"x")
            elif how == "short":
                os.truncate(path, 100)
            else:
                os.unlink(path)
            with pytest.raises(StagingError):
                await staging.read_chunk(file, 1)
            assert 1 not in file.present
            assert metrics["staging_errors"] == 1
            assert metrics["staged_checksum_failures"] == (how != "gone")
            await staging.sweeper.wait_idle()
            for index in list(file.present.missing()):
                assert put(staging, file, index)
            await staging.wait_vouched()
            check(1, CHUNK_BYTES, await staging.read_chunk(file, 1))

    run(main)
    if how != "short":  # there the other chunks are damaged too, which only a look at them tells
        assert run(verify, str(tmp_path)) == 4


def test_check_finds_damage_and_reports_it(tmp_path: Path) -> None:
    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            for seed in (1, 2):
                await stage(staging, seed, path=b"d/%d" % seed)
            file = await staging.file(version_of(1, SIZE))
            overwrite(object_path(staging, file), SIZE - 1, b"\0")
            found = {checked.path: checked async for checked in staging.check([b"d"])}
            assert found[b"d/1"].broken == (3,)
            assert found[b"d/2"].broken == ()
            assert (found[b"d/2"].chunks, found[b"d/2"].bytes) == (4, SIZE)
            assert metrics["staged_checksum_failures"] == 1
            await staging.sweeper.wait_idle()
            assert [checked.chunks async for checked in staging.check([b"d/1"])] == [3]

    run(main)
    assert run(verify, str(tmp_path)) == 7


def test_a_damaged_index_stops_staging_until_the_next_start(tmp_path: Path, logs: Logs) -> None:
    logs.expect("nothing more is staged, the next mount starts with an empty cache")
    logs.expect("set aside as index.sqlite.broken-1")

    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await stage(staging, 1)
        async with healthy_staging(tmp_path) as staging:
            path = tmp_path / "index.sqlite"
            path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
            file = await staging.file(version_of(1, SIZE))
            assert not file.present
            assert not put(staging, file, 0)
            assert staging.statistics().state == "off"
        async with healthy_staging(tmp_path) as staging:
            await staging.wait_ready()
            await stage(staging, 1)

    run(main)
    assert run(verify, str(tmp_path)) == 4


# -- evict and supersede
# -------------------------------------------------------------------------------------------------


def test_evict_takes_what_is_named_and_not_open(tmp_path: Path) -> None:
    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            paths = [b"a/b/1", b"a/b2/1", b"a/bc", b"x"]
            files = [await stage(staging, seed, 100, path) for seed, path in enumerate(paths, 1)]
            assert [row.path async for row in staging.rows([b"a/b"])] == [b"a/b/1"]
            assert [row.path async for row in staging.rows([b"a/", b"x"])] == paths
            assert await staging.evict_paths([b"a/b", b"a/bc"]) == (2, 2 * 8192)
            assert [file.complete for file in files] == [False, True, False, True]
            staging.pin(files[3])
            assert await staging.evict() == (1, 8192)
            assert metrics["evicted_files"] == 3
            assert metrics["evicted_bytes"] == 3 * 8192
            staging.unpin(files[3])
            assert await staging.evict([files[3].version, version_of(99, 5)]) == (1, 8192)
            assert staging.statistics().files == staging.statistics().room_bytes == 0
            await stage(staging, 1, 100)  # and again, under another number

    run(main)
    assert run(verify, str(tmp_path)) == 1


def test_a_superseded_version_goes_when_its_last_reader_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await stage(staging, 1)
            staging.pin(file)
            await staging.supersede(file.version)
            await staging.sweeper.wait_idle()
            check(1, 0, await staging.read_chunk(file, 0))
            staging.unpin(file)
            await staging.sweeper.wait_idle()
            assert not file.present
            assert staging.statistics().files == 0

    run(main)


def test_a_look_up_of_a_newer_version_supersedes_the_older(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await stage(staging, 1, ctime_ns=5)
            await stage(staging, 2, ctime_ns=5)
        async with healthy_staging(tmp_path) as staging:
            await staging.file(version_of(1, 777, 6))
            await staging.file(version_of(2, 777, 4))  # from a stale attribute: not newer
            await staging.sweeper.wait_idle()
            assert [row.version.inode async for row in staging.rows()] == [2]

    run(main)


def test_an_eviction_that_has_begun_is_finished(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            for seed in range(1, 30):
                await stage(staging, seed, 10)
            for give_up in range(40):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(staging.evict, [version_of(give_up, 10)] if give_up else None)
                        for _ in range(give_up):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()
                names = object_names(str(tmp_path))
                assert names == {row.object_id async for row in staging.rows()}
                assert staging.statistics().room_bytes == 8192 * len(names)

    run(main)


def test_a_descriptor_in_use_is_not_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await stage(staging, 1, 100)
            await staging.read_chunk(file, 0)
            assert file.object_id is not None
            held = staging._descriptors.acquire(file.object_id)
            assert held is not None
            await staging.evict()
            assert os.fstat(held.fd).st_nlink == 0
            staging._descriptors._limit = 2
            for seed in range(2, 9):
                other = await stage(staging, seed, 100)
                await staging.read_chunk(other, 0)
            assert len(staging._descriptors) == 2
            assert os.pread(held.fd, 100, 0) == pattern(1, 0, 100)
            staging._descriptors.release(held)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(held.fd)

    run(main)


def test_a_read_that_a_repair_overtakes_brings_no_zeros(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await stage(staging, 1)
            reading = staging._ground.threads._reading
            outcome: list[object] = []

            async def read() -> None:
                try:
                    outcome.append(await staging.read(file, Extent(0, 1000)))
                except StagingError as error:
                    outcome.append(error)

            async with trio.open_nursery() as nursery:
                places = int(reading.total_tokens)
                for place in range(places):
                    reading.acquire_on_behalf_of_nowait(place)
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                staging.chunks_lost(file, [0])
                await staging.sweeper.wait_idle()
                put(staging, file, 0)  # present again, but what the thread reads was read before
                for place in range(places):
                    reading.release_on_behalf_of(place)
            assert isinstance(outcome[0], StagingError)

    run(main)


def test_a_look_up_that_an_eviction_overtakes_finds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            number = (await stage(staging, 1)).object_id
            assert number is not None
        async with healthy_staging(tmp_path) as staging:
            threads, gate = staging._ground.threads, trio.Event()
            ask_index = threads.ask_index

            async def slow(*args: Any) -> Any:
                answer = await ask_index(*args)
                await gate.wait()
                return answer

            threads.ask_index = slow  # type: ignore[method-assign]
            found: list[StagedFile] = []

            async def look() -> None:
                found.append(await staging.file(version_of(1, SIZE)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
                await trio.testing.wait_all_tasks_blocked()
                assert (await staging.sweeper.evict([(number, version_of(1, SIZE))]))[0] == 1
                gate.set()
            assert not found[0].present
            assert found[0].object_id is None

    run(main)


def test_cancelled_waiters_leave_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await stage(staging, 1)
            for patience in range(12):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(staging.wait_vouched)
                        nursery.start_soon(staging.read_chunk, file, 0)
                        nursery.start_soon(staging.file, version_of(100 + patience, 5))
                        for _ in range(patience):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()
            other = await stage(staging, 2)
            assert other.durable
            await staging.file(version_of(103, 5))
            check(1, 0, await staging.read_chunk(file, 0))

    run(main)
    run(verify, str(tmp_path))


# -- everything at once
# --------------------------------------------------------------------------------------------------


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

    async def actor(staging: Staging) -> None:
        for _ in range(25):
            inode = dice.choice(list(sizes))
            version = version_of(inode, sizes[inode], dice.choice((1, 1, 2)))
            file = staging.file_nowait(version) or await staging.file(version, b"f")
            index = dice.randrange(file.present.count)
            action = dice.randrange(8)
            if action < 3:
                put(staging, file, index)
            elif action < 5:
                staging.pin(file)
                try:
                    if index in file.present:
                        extent = file.chunk(index)
                        check(inode, extent.start, await staging.read(file, extent))
                except StagingError:
                    pass
                finally:
                    staging.unpin(file)
            elif action == 5:
                await staging.evict([version])
            elif action == 6:
                staging.chunks_lost(file, [index])
            else:
                await staging.supersede(version)
            statistics = staging.statistics()
            assert statistics.room_bytes <= capacity
            assert disk_bytes(cache) <= statistics.room_bytes

    async def main() -> None:
        async with healthy_staging(cache, capacity_bytes=capacity, eviction=policy) as staging:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(actor, staging)
            await staging.wait_vouched()
            await staging.sweeper.wait_idle()
            rows = [row async for row in staging.rows()]
            assert sum(row.room_bytes for row in rows) == staging.statistics().room_bytes
            for file in staging.files._known.values():
                assert file.unsettled == file.pins == 0
                assert file.barred is None
                held = sum(map(file.chunk_room_bytes, file.present))
                assert file.room_bytes == (held + file.overhead_bytes() if file.object_id is not None else 0)
        async with healthy_staging(cache, capacity_bytes=capacity) as staging:
            assert staging._ground.index.opened.clean

    run(main)
    run(verify, cache, capacity)


def test_capacity_is_what_the_tests_think_it_is() -> None:
    assert blocks_bytes(SIZE) == 3 * CHUNK_BYTES + 4096
    assert 10 * blocks_bytes(SIZE) <= CAPACITY_BYTES
