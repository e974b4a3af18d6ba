"""Room: the capacity is never exceeded, the floor of the disk is left to others, what goes is what the policy gives up.

Without threads, in virtual time (tests/support/faults.py).
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache.objects.disk import Disk, DiskSpace
from hfs.mountd.core.errors import MountError
from hfs.mountd.core.metrics import Metrics
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SIZE,
    Operations,
    disk_bytes,
    evict,
    fail,
    healthy_staging,
    object_path,
    page_aligned,
    put,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import check, pattern


async def test_fill_once_never_exceeds_the_capacity_and_keeps_what_it_has(tmp_path: Path) -> None:
    metrics = Metrics()
    capacity = 3 * (CHUNK_BYTES + 4096)
    async with healthy_staging(tmp_path, capacity_bytes=capacity, metrics=metrics) as staging:
        files = [await staging.files.get(version_of(seed, CHUNK_BYTES), b"f") for seed in range(1, 6)]
        assert staging.admission.admits_nowait(files[0], CHUNK_BYTES)
        assert [put(staging, file, 0) for file in files] == [True, True, True, False, False]
        await staging.committer.wait_committed()
        await trio.sleep(100)
        assert not staging.admission.admits_nowait(files[3], 1)
        assert not put(staging, files[3], 0)
        assert [file.complete for file in files] == [True, True, True, False, False]
        assert staging.statistics().room_bytes == capacity
        assert staging.statistics().state == "full"
        assert staging.statistics().full_because == "cache-size reached (209 kB)"
        assert disk_bytes(str(tmp_path)) <= capacity
        assert (metrics["staging_dropped"], metrics["staging_behind"]) == (3, 0)
        await evict(staging, files[0].version)
        assert staging.statistics().state == "ok", "though nothing was put since"
        assert str(staging.admission.refusal(CHUNK_BYTES)) == "cache-size reached (209 kB)"
        metrics.add("staging_behind")
        assert str(staging.admission.refusal(CHUNK_BYTES)) == "the cache disk does not keep up"
        assert put(staging, files[3], 0)
        assert (staging.statistics().state, staging.statistics().full_because) == ("ok", None)


async def test_what_cleans_up_after_a_crash_is_no_disk_that_fails(tmp_path: Path) -> None:
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        ready, staging.admission._ready, staging.ready = staging.ready, trio.Event(), trio.Event()
        assert not put(staging, file, 0)
        assert (staging.statistics().state, staging.statistics().last_error) == ("cleaning", None)
        assert (metrics["staging_dropped"], metrics["staging_behind"]) == (1, 0)
        staging.ready = staging.admission._ready = ready
        assert put(staging, file, 0)
        assert staging.statistics().state == "ok"


@pytest.mark.slow
async def test_what_nobody_used_for_so_long_expires_though_there_is_room(tmp_path: Path) -> None:
    now = 1e9
    async with healthy_staging(tmp_path, clock=lambda: now, expire_s=30 * 86400.0) as staging:
        old = await stage(staging, 1, CHUNK_BYTES)
        now += 20 * 86400
        new = await stage(staging, 2, CHUNK_BYTES)
        await trio.sleep(4000)
        assert (old.complete, new.complete) == (True, True)
        now += 11 * 86400
        await trio.sleep(4000)
        assert (old.complete, new.complete) == (False, True)


async def test_fill_once_gives_up_what_nobody_used_for_a_day(tmp_path: Path) -> None:
    now = 1e9
    async with healthy_staging(tmp_path, capacity_bytes=2 * (CHUNK_BYTES + 4096), clock=lambda: now) as staging:
        old = await stage(staging, 1, CHUNK_BYTES)
        now += 25 * 3600
        used = await stage(staging, 2, CHUNK_BYTES)
        new = await staging.files.get(version_of(3, CHUNK_BYTES))
        assert not put(staging, new, 0)
        await trio.sleep(1)
        assert (old.complete, used.complete) == (False, True)
        assert put(staging, new, 0)


async def test_lru_makes_room_for_what_comes_but_never_from_what_is_open(tmp_path: Path) -> None:
    now = 1e9
    async with healthy_staging(
        tmp_path, capacity_bytes=5 * (CHUNK_BYTES + 4096), eviction="lru", clock=lambda: now
    ) as staging:
        files = []
        for seed in range(1, 5):
            now += 100
            files.append(await stage(staging, seed, CHUNK_BYTES))
        staging.files.pin(files[0])
        staging.files.pin(files[1])
        staging.files.unpin(files[1])  # used just now
        await trio.sleep(1)
        new = await staging.files.get(version_of(9, CHUNK_BYTES))
        put(staging, new, 0)
        await trio.sleep(1)
        assert [file.complete for file in files] == [True, True, False, True]
        assert new.complete
        staging.files.unpin(files[0])
        assert await evict(staging, files[0].version) == (1, CHUNK_BYTES + 4096)


async def test_what_an_order_names_is_not_what_makes_room(tmp_path: Path) -> None:
    named: list[int] = []

    async def planned(_objects: Sequence[int]) -> list[int]:
        return named

    async with healthy_staging(
        tmp_path, capacity_bytes=3 * (CHUNK_BYTES + 4096), eviction="lru", planned=planned
    ) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2)]
        assert files[0].object_id is not None
        named.append(files[0].object_id)
        await trio.sleep(1)
        new = await staging.files.get(version_of(9, CHUNK_BYTES))
        put(staging, new, 0)
        await trio.sleep(1)
        more = await staging.files.get(version_of(10, CHUNK_BYTES))
        put(staging, more, 0)
        await trio.sleep(1)
        assert [file.complete for file in files] == [True, False]


class SmallDisk(Disk):
    """A disk of 100 GB with as much free as the test says."""

    free_bytes = 50 * 10**9
    memory = False

    def space(self) -> DiskSpace:
        return DiskSpace(100 * 10**9, self.free_bytes)

    def in_memory(self) -> bool:
        return self.memory


async def test_without_a_size_the_floor_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    disk = SmallDisk(str(tmp_path))
    async with healthy_staging(tmp_path, capacity_bytes=None, disk=disk) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2, 3, 4)]
        held = 4 * (CHUNK_BYTES + 4096)
        assert staging.statistics().capacity_bytes == 40 * 10**9
        # Others write: nothing more is taken on, and what must go goes, also what was used today.
        staging.files.pin(files[0])
        disk.free_bytes = 10 * 10**9 - 100_000
        new = await staging.files.get(version_of(9, CHUNK_BYTES))
        await trio.sleep(11)
        assert not put(staging, new, 0)
        disk.free_bytes = 50 * 10**9  # two evicted, and others have gone as well
        assert staging.statistics().room_bytes < held
        assert files[0].complete
        await trio.sleep(11)
        assert put(staging, new, 0)


async def test_with_a_size_the_last_of_the_disk_is_left_to_others_too(tmp_path: Path) -> None:
    disk = SmallDisk(str(tmp_path))
    disk.free_bytes = 10**9 + 3 * (CHUNK_BYTES + 4096)
    async with healthy_staging(tmp_path, disk=disk) as staging:
        held = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2, 3)]
        new = await staging.files.get(version_of(9, CHUNK_BYTES))
        assert not put(staging, new, 0)
        why = staging.admission.why_not(CHUNK_BYTES)
        assert why == "the cache disk is full: 1.00 GB free, 1.00 GB are left to others"
        disk.free_bytes = 10**9 - 100_000  # what is staged is off the free space by now; others have come
        assert not await staging.evictor.wait_room(CHUNK_BYTES)
        disk.free_bytes = 10**9 + 100_000
        assert sum(file.complete for file in held) == 1
        await trio.sleep(31)
        assert await staging.evictor.wait_room(CHUNK_BYTES)
        assert put(staging, new, 0)


async def test_who_only_looks_evicts_nothing_however_full_the_disk_is(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1, CHUNK_BYTES)
    disk = SmallDisk(str(tmp_path))
    disk.free_bytes = 0
    async with healthy_staging(tmp_path, disk=disk, keeps_floor=False) as staging:
        await trio.sleep(100)
        assert staging.statistics().files == 1
    async with healthy_staging(tmp_path, disk=disk) as staging:
        await trio.sleep(1)
        assert staging.statistics().files == 0


async def test_lru_makes_room_for_who_waits_for_it(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, capacity_bytes=3 * (CHUNK_BYTES + 4096), eviction="lru") as staging:
        files = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2)]
        staging.files.pin(files[0])
        assert await staging.evictor.wait_room(2 * CHUNK_BYTES)
        assert [file.complete for file in files] == [True, False]
        assert not await staging.evictor.wait_room(3 * CHUNK_BYTES)
        staging.files.unpin(files[0])


async def test_a_cache_in_memory_needs_a_size(tmp_path: Path) -> None:
    disk = SmallDisk(str(tmp_path))
    disk.memory = True
    with pytest.raises(MountError, match="a cache on tmpfs needs --cache-size"):
        async with healthy_staging(tmp_path, capacity_bytes=None, disk=disk):
            pass
    async with healthy_staging(tmp_path, disk=disk):
        pass


async def test_a_size_below_one_chunk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"65535 bytes cannot hold one chunk of 65536.*larger --cache-size"):
        async with healthy_staging(tmp_path, capacity_bytes=CHUNK_BYTES - 1):
            pass


async def test_an_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MountError, match="cannot be used: Not a directory: choose another --cache"):
        async with healthy_staging(tmp_path / "file" / "cache"):
            pass


async def test_a_smaller_size_than_last_time_evicts(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        for seed in range(1, 11):
            await stage(staging, seed, CHUNK_BYTES)
    capacity = 4 * (CHUNK_BYTES + 4096)
    async with healthy_staging(tmp_path, capacity_bytes=capacity) as staging:
        await trio.sleep(1)
        assert staging.statistics().files == 4
        assert staging.statistics().room_bytes == capacity


async def test_a_full_queue_drops_what_is_new(tmp_path: Path) -> None:
    metrics = Metrics()
    async with healthy_staging(tmp_path, in_flight_bytes=2 * CHUNK_BYTES, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, SIZE))
        assert [put(staging, file, index) for index in range(4)] == [True, True, False, False]
        assert staging.statistics().queued_bytes == 2 * CHUNK_BYTES
        await staging.committer.wait_committed()
        assert staging.statistics().queued_bytes == 0
        assert put(staging, file, 2)
        assert (metrics["staging_dropped"], metrics["staging_behind"]) == (2, 2)


async def test_blocks_of_zeros_of_a_sparse_file_take_no_room(tmp_path: Path) -> None:
    """Neither on the disk nor in the account, after a restart too; what it gives back is what it took."""
    size = 20 * CHUNK_BYTES + 1000
    blocks = {0: 1, 1: 0, 2: 16, 5: 3, 20: 0}
    """By chunk, how many of its first blocks have data; the last one has its last byte."""

    def content(file: StagedFile, index: int) -> bytes:
        data = pattern(1, index, blocks.get(index, 0) * 4096)
        end = b"e" if index == 20 else b""
        return data + bytes(file.chunk_size(index) - len(data) - len(end)) + end

    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, size), b"f")
        for index in (5, *(number for number in range(21) if number != 5)):
            assert staging.writer.put_nowait(file, index, page_aligned(content(file, index)), sparse=True)
        await staging.committer.wait_committed()
        wanted_bytes = (1 + 16 + 3 + 1) * 4096 + file.overhead_bytes()
        assert file.durable
        assert staging.room.used_bytes == file.room_bytes == wanted_bytes
        assert disk_bytes(str(tmp_path)) <= wanted_bytes
    for _ in range(2):
        async with healthy_staging(tmp_path) as staging:
            file = await staging.files.get(version_of(1, size))
            assert staging.room.used_bytes == file.room_bytes == wanted_bytes
            assert file.durable
            for index in range(21):
                assert await staging.reader.read_chunk(file, index) == content(file, index)
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, size))
        for index, freed_bytes in ((5, 3 * 4096), (1, 0), (2, 16 * 4096)):
            assert await staging.evictions.evict_chunk(file, index) == freed_bytes
            wanted_bytes -= freed_bytes
            assert index not in file.committed
            assert staging.room.used_bytes == file.room_bytes == wanted_bytes
        assert staging.writer.put_nowait(file, 5, page_aligned(content(file, 5)), sparse=True)
        assert staging.writer.put_nowait(file, 1, page_aligned(content(file, 1)))  # as it is
        await staging.committer.wait_committed()
        wanted_bytes += 3 * 4096 + CHUNK_BYTES
        assert staging.room.used_bytes == file.room_bytes == wanted_bytes
    async with healthy_staging(tmp_path) as staging:
        assert staging.room.used_bytes == wanted_bytes
        await staging.evictions.evict_paths()
        assert staging.room.used_bytes == 0


async def test_chunks_of_zeros_alone_are_staged_without_a_write(tmp_path: Path) -> None:
    count = 2500
    size = (count - 1) * CHUNK_BYTES + 1000

    async def check_it(staging: Cache, file: StagedFile) -> None:
        assert file.durable
        assert staging.room.used_bytes == file.room_bytes == CHUNK_BYTES + file.overhead_bytes()
        assert staging.statistics().bytes == size
        for index in (0, 6, 8, count - 1):
            assert await staging.reader.read_chunk(file, index) == bytes(file.chunk_size(index))
        check(1, 7 * CHUNK_BYTES, await staging.reader.read_chunk(file, 7))

    operations = Operations(0, fail)
    async with healthy_staging(tmp_path, operations=operations) as staging:
        file = await staging.files.get(version_of(1, size), b"f")
        staging.files.pin(file)
        assert put(staging, file, 7)
        await staging.writer.put_holes(file, [index for index in range(count) if index != 7])
        await check_it(staging, file)
        await staging.writer.put_holes(file, range(count))  # there is nothing left to do
        staging.files.unpin(file)
        assert operations.names.count("write") == 1
        assert disk_bytes(str(tmp_path)) <= staging.room.used_bytes
    operations = Operations(0, fail)
    async with healthy_staging(tmp_path, operations=operations) as staging:
        file = await staging.files.get(version_of(1, size))
        await check_it(staging, file)
        file.suspect()
        for index in range(count):
            await staging.reader.verify(file, index)
        assert file.sound
        (checked,) = [found async for found in staging.checker.check()]
        assert (checked.chunks, checked.bytes, checked.fault) == (count, size, None)
        assert operations.names.count("read_part") + operations.names.count("read_into") <= 6
        await staging.evictions.evict_paths()
        assert staging.room.used_bytes == 0
    await verify(str(tmp_path))


async def test_chunks_of_zeros_that_the_disk_does_not_take_cost_nothing(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staging a chunk: .*no space left")
    operations = Operations(0, fail)
    async with healthy_staging(tmp_path, operations=operations) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        staging.files.pin(file)
        operations.act_after(1, for_ever=True)
        await staging.writer.put_holes(file, range(4))
        assert not file.present
        operations.act_no_more()
        await staging.writer.put_holes(file, range(4))
        assert not file.present, "the disk rests"
        await trio.sleep(2)
        await staging.writer.put_holes(file, range(4))
        assert file.durable
        assert staging.room.used_bytes == file.room_bytes == file.overhead_bytes()
        staging.files.unpin(file)


@pytest.mark.parametrize(
    ("damage", "broken"), [("in a hole", (1,)), ("no hole", (2,)), ("its end", (1, 2, 3)), ("zeros", ())]
)
async def test_damage_beside_holes_is_found(tmp_path: Path, damage: str, broken: tuple[int, ...]) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        staging.files.pin(file)
        assert put(staging, file, 2)
        await staging.writer.put_holes(file, (0, 1, 3))
        staging.files.unpin(file)
        fd = os.open(object_path(staging, file), os.O_RDWR)
        if damage == "no hole":
            staging.context.disk.io.punch(fd, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES)
        elif damage == "its end":
            os.truncate(fd, CHUNK_BYTES)
        else:
            os.pwrite(fd, b"x" if damage == "in a hole" else bytes(1), CHUNK_BYTES)
        os.close(fd)
        (checked,) = [found async for found in staging.checker.check()]
        assert checked.broken == broken
        assert not set(broken) & set(file.present)
