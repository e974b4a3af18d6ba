"""What is leaving: when it goes, who asked for it, and what has become of it meanwhile.

In virtual time, as tests/mountd/cache/test_told_objects.py."""

import shutil
from pathlib import Path

import pytest
import trio

from hfs.mountd.cache.generation import Makers
from tests.support.faults import (
    CHUNK_BYTES,
    disk_bytes,
    evict,
    healthy_staging,
    object_names,
    object_path,
    overwrite,
    put,
    stage,
    version_of,
)
from tests.support.makers import LATER_S, ROOM, SOON_S, FakeMaker, begun, number_of, offering, renewed, told

# --- When it goes


async def test_makers_are_asked_for_newer_ones_once_a_second_however_much_leaves(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        files = [await stage(staging, seed, CHUNK_BYTES) for seed in range(1, 6)]
        before = maker.number()
        for file in files:
            assert told(staging, file)
            assert (await evict(staging, file.version))[0] == 0
            await trio.sleep(0.1)
            assert maker.number() == before + 1
        await trio.sleep(1)
        assert maker.number() == before + 2
        await trio.sleep(LATER_S)
        assert maker.number() == before + 2, "nothing more leaves"


async def test_the_number_never_goes_back(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)

        async def refused(*_: object, **__: object) -> None:
            """As by a disk that is full."""

        staging.telling.generation.move = refused  # type: ignore[method-assign]  # of this one
        number = await staging.telling.move()
        await begun(staging, is_new=False)
        assert staging.telling.number == number


async def test_what_was_about_to_go_when_somebody_came_is_leaving_still(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        maker, came = FakeMaker(tmp_path), list[FakeMaker]()
        maker.renew()
        file = await stage(staging, 1)
        assert told(staging, file)
        assert (await evict(staging, file.version))[0] == 0
        await trio.sleep(LATER_S)
        look = staging.telling.generation.look

        async def late() -> Makers | None:
            found = await look()
            if found is not None and found.oldest == maker.number():
                came.append(FakeMaker(tmp_path, "maker-1-00000001"))  # of which the decision below knows nothing
                staging.telling.generation.look = look  # type: ignore[method-assign]  # as it was
            return found

        staging.telling.generation.look = late  # type: ignore[method-assign]  # in the middle of it
        maker.renew()
        await trio.sleep(SOON_S)
        assert came
        assert number_of(file) in staging.telling.leavers
        assert not told(staging, file)
        came[0].renew()
        await trio.sleep(SOON_S)
        assert not object_names(str(tmp_path))


# --- Who asked


async def test_objects_that_leave_are_waited_for_a_moment_and_else_told_of_the_next_time(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker), trio.open_nursery() as nursery:

        async def renews() -> None:
            await trio.sleep(1.5)
            maker.renew()

        for after_s in (0, 2 * LATER_S):
            file = await stage(staging, 1, CHUNK_BYTES)
            assert told(staging, file)
            number = number_of(file)
            nursery.start_soon(renews) if not after_s else None
            gone = await staging.evictions.evict_objects([number])
            assert gone == ({} if after_s else {number: ROOM})
        await renewed(maker)
        assert await staging.evictions.evict_objects([number]) == {number: 0}, "it has gone since"


async def test_what_is_opened_while_somebody_waits_for_it_to_go_is_not_counted(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker), trio.open_nursery() as nursery:
        file = await stage(staging, 1, CHUNK_BYTES)
        assert told(staging, file)

        async def opened() -> None:
            await trio.sleep(0.1)
            staging.files.pin(file)
            maker.renew()

        nursery.start_soon(opened)
        assert await staging.evictions.evict_paths() == (0, 0)
        assert told(staging, file)
        staging.files.unpin(file)


# --- What has become of it meanwhile


@pytest.mark.parametrize("by_name", [True, False])
async def test_what_was_pinned_while_it_was_leaving_goes_where_somebody_has_named_it(
    tmp_path: Path, by_name: bool
) -> None:
    async with offering(tmp_path) as (staging, maker):
        file = await stage(staging, 1)
        assert told(staging, file)
        await staging.reclaimer.evict([(number_of(file), file.version)], by_name=by_name)
        await staging.pinned.pin([number_of(file)])
        await renewed(maker)
        assert bool(object_names(str(tmp_path))) != by_name
        assert not staging.telling.leavers


async def test_what_was_to_go_since_it_was_empty_stays_where_something_has_come(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        file = await stage(staging, 1, CHUNK_BYTES)
        assert told(staging, file)
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        assert number_of(file) in staging.telling.leavers
        assert put(staging, file, 0)
        await staging.committer.wait_committed()
        await renewed(maker)
        assert not staging.telling.leavers
        assert object_names(str(tmp_path)) == {number_of(file)}


async def test_a_chunk_that_nobody_asks_for_again_stays_and_its_file_is_told_again(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        file = await stage(staging, 1, 3 * CHUNK_BYTES)
        assert told(staging, file)
        assert await staging.evictions.evict_chunk(file, 0) == 0
        await trio.sleep(50)
        maker.renew()
        await trio.sleep(SOON_S)
        assert not told(staging, file), "whoever has asked may do so again"
        await trio.sleep(50)
        await staging.telling.move()
        maker.renew()
        await trio.sleep(SOON_S)
        assert told(staging, file)
        assert len(file.present) == 3


async def test_a_chunk_that_was_pinned_while_it_was_looked_who_is_there_stays(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        file = await stage(staging, 1, 3 * CHUNK_BYTES)
        look = staging.telling.generation.look

        async def late() -> Makers | None:
            await staging.pinned.pin([number_of(file)])
            return await look()

        staging.telling.generation.look = late  # type: ignore[method-assign]  # in the middle of it
        assert await staging.evictions.evict_chunk(file, 1) == 0
        assert len(file.present) == 3


async def test_what_has_gone_takes_no_memory(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        file = await stage(staging, 1)
        assert told(staging, file)
        await trio.sleep(LATER_S)
        assert staging.updates._told._blocks
        assert (await evict(staging, file.version))[0] == 1
        assert not staging.updates._told._blocks
        assert not staging.telling._stamps._blocks


@pytest.mark.parametrize("in_use", [True, False])
async def test_after_a_crash_no_holes_are_made_in_what_an_overlay_may_have_open(tmp_path: Path, in_use: bool) -> None:
    async with healthy_staging(tmp_path / "killed") as staging:
        await begun(staging)
        file = await staging.files.get(version_of(1, 3 * CHUNK_BYTES), b"f")
        assert put(staging, file, 0)
        await staging.committer.wait_committed()
        overwrite(object_path(staging, file), CHUNK_BYTES, bytes(CHUNK_BYTES))  # written, and not committed
        shutil.copytree(tmp_path / "killed", tmp_path / "cache")
    if in_use:
        FakeMaker(tmp_path / "cache").renew()
    before = disk_bytes(str(tmp_path / "cache"))
    async with healthy_staging(tmp_path / "cache") as staging:
        await staging.ready.wait()
        assert (disk_bytes(str(tmp_path / "cache")) == before) == in_use
