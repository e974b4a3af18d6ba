"""Pins: what is pinned goes by name and with a change at the source, and for nothing else; without threads."""

from pathlib import Path

import trio

from hfs.policies.cache.admission import BLOCK_BYTES
from tests.support.faults import CHUNK_BYTES, healthy_staging, put, stage, version_of

ROOM_BYTES = CHUNK_BYTES + BLOCK_BYTES


async def test_no_room_pressure_takes_what_is_pinned(tmp_path: Path) -> None:
    """Neither under lru, nor where the room is not ours any more; what is not pinned goes instead."""
    async with healthy_staging(tmp_path, capacity_bytes=4 * ROOM_BYTES, eviction="lru") as staging:
        pinned = await stage(staging, 1, CHUNK_BYTES, b"1")
        await trio.sleep(100)
        loose = await stage(staging, 2, CHUNK_BYTES, b"2")
        assert pinned.object_id is not None
        assert await staging.pinned.pin([pinned.object_id, 999]) == 1
        assert (staging.statistics().pinned_files, staging.statistics().pinned_bytes) == (1, ROOM_BYTES)
        await trio.sleep(100)
        for seed in range(3, 12):
            assert await staging.evictor.wait_room(ROOM_BYTES)
            await stage(staging, seed, CHUNK_BYTES, b"%d" % seed)
            await trio.sleep(10)
        assert (pinned.complete, loose.complete) == (True, False)
        staging.room.capacity_bytes = 0
        await staging.evictor.make_room()
        assert pinned.complete
        assert staging.statistics().files == 1
        assert not await staging.evictor.wait_room(1)
        other = await staging.files.get(version_of(20, CHUNK_BYTES))
        assert not put(staging, other, 0)  # and its readers go to the source
        assert "of it pinned" in (staging.admission.why_not(CHUNK_BYTES) or "")


async def test_what_is_pinned_while_it_is_being_evicted_stays_or_has_gone(tmp_path: Path) -> None:
    """Never half: who pins hears of what is left."""
    async with healthy_staging(tmp_path) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES, b"%d" % seed) for seed in range(1, 30)]
        numbers = [file.object_id or 0 for file in files]
        pinned = 0

        async def pin() -> None:
            nonlocal pinned
            pinned = await staging.pinned.pin(numbers)

        async with trio.open_nursery() as nursery:
            staging.room.capacity_bytes = 0
            nursery.start_soon(staging.evictor.make_room)
            nursery.start_soon(pin)
        assert pinned == sum(file.complete for file in files) == staging.statistics().files == len(staging.pinned)
        assert staging.statistics().pinned_bytes == staging.statistics().room_bytes == pinned * ROOM_BYTES


async def test_age_and_plans_leave_it_and_a_name_takes_it(tmp_path: Path) -> None:
    now = 1e9
    async with healthy_staging(tmp_path, clock=lambda: now, expire_s=86400.0) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES, b"%d" % seed) for seed in (1, 2, 3)]
        assert await staging.pinned.pin([file.object_id or 0 for file in files[:2]]) == 2
        now += 10 * 86400
        await trio.sleep(4000)
        assert [file.complete for file in files] == [True, True, False]
        assert await staging.evictions.evict_paths(before_s=now) == (0, 0)
        assert await staging.evictions.evict_objects([file.object_id or 0 for file in files[:2]]) == {}
        assert await staging.evictions.evict_chunk(files[0], 0) == 0
        assert await staging.evictions.evict_paths([files[0].path]) == (1, ROOM_BYTES)
        assert (len(staging.pinned), staging.room.pinned_bytes) == (1, ROOM_BYTES)
        assert await staging.pinned.unpin([files[1].path]) == (1, ROOM_BYTES)
        assert await staging.pinned.unpin() == (0, 0)
        assert await staging.evictions.evict_paths(before_s=now) == (1, ROOM_BYTES)
        assert (len(staging.pinned), staging.room.pinned_bytes) == (0, 0)


async def test_a_change_at_the_source_takes_it(tmp_path: Path) -> None:
    """Also where nobody has noticed the change but who stages the new version under the same name."""
    async with healthy_staging(tmp_path) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES, b"%d" % seed) for seed in (1, 2, 3)]
        assert await staging.pinned.pin([file.object_id or 0 for file in files]) == 3
        await staging.files.supersede(files[0].version)
        await staging.reclaimer.wait_idle()
        new = version_of(9, CHUNK_BYTES, ctime_ns=2)
        again = await staging.files.get(new, files[1].path)
        assert put(staging, again, 0)
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        assert [file.complete for file in (*files, again)] == [False, False, True, True]
        assert len(staging.pinned) == 1
        older = await staging.files.get(version_of(8, CHUNK_BYTES, ctime_ns=0), files[2].path)
        assert put(staging, older, 0)  # it was on its way all the time
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        assert files[2].complete


async def test_pins_outlive_a_restart_and_a_kill(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        files = [await stage(staging, seed, CHUNK_BYTES, b"%d" % seed) for seed in (1, 2)]
        assert await staging.pinned.pin([files[0].object_id or 0]) == 1
    async with healthy_staging(tmp_path, eviction="lru") as staging:
        assert (len(staging.pinned), staging.room.pinned_bytes) == (1, ROOM_BYTES)
        staging.room.capacity_bytes = 0
        await staging.evictor.make_room()
        rows = [row async for row in staging.listing.rows()]
        assert [(row.version, row.pinned) for row in rows] == [(files[0].version, True)]
        assert await staging.evictions.evict_objects([row.object_id for row in rows]) == {}
