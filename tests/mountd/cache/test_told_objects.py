"""What overlays were told of stays until nobody may have it open: told, leaving, gone; makers that live, hold on, were
killed, and come at the last moment. Without threads, in virtual time, and with makers that only say that they are."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.cache.generation import Makers
from hfs.mountd.cache.told_objects import ExposedObjects
from hfs.mountd.files import ChangedNames
from hfs.mountd.kernel import XattrAnswers
from tests.support.faults import (
    CHUNK_BYTES,
    disk_bytes,
    evict,
    healthy_staging,
    object_names,
    object_path,
    overwrite,
    put,
    run,
    stage,
    version_of,
)
from tests.support.makers import (
    LATER_S,
    NOBODY,
    ROOM,
    ROOT,
    SOON_S,
    FakeMaker,
    begun,
    number_of,
    offering,
    renewed,
    told,
)


async def test_whoever_is_about_to_make_one_counts_before_there_is_a_look(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        assert not staging.telling.has_makers
        staging.telling.expected_until_s = trio.current_time() + LATER_S
        assert staging.telling.has_makers
        await trio.sleep(LATER_S + 0.1)
        assert not staging.telling.has_makers, "there was none in the end"
        FakeMaker(tmp_path)
        await staging.telling.look()
        assert staging.telling.has_makers


# --- Going


async def test_what_was_told_goes_when_its_generation_has_gone(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        files = [await stage(staging, seed) for seed in (1, 2)]
        before = maker.number()
        assert told(staging, files[0])
        numbers = [number_of(file) for file in files]
        assert (await evict(staging, *[file.version for file in files]))[0] == 1, "what nobody was told of"
        assert object_names(str(tmp_path)) == {numbers[0]}
        assert not told(staging, files[0]), "or it would never go"
        await trio.sleep(LATER_S)
        assert maker.number() == before + 1
        assert object_names(str(tmp_path)) == {numbers[0]}
        maker.tell(before, before + 1)
        await trio.sleep(SOON_S)
        assert object_names(str(tmp_path)) == {numbers[0]}, "somebody works in the old one still"
        maker.tell(before + 1, before + 1)
        await trio.sleep(SOON_S)
        assert not object_names(str(tmp_path))
        assert staging.statistics().room_bytes == 0
        assert not staging.telling.leavers


async def test_what_was_opened_while_it_was_leaving_stays_and_is_told_again(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        file = await stage(staging, 1)
        assert told(staging, file)
        await evict(staging, file.version)
        staging.files.pin(file)
        await renewed(maker)
        assert object_names(str(tmp_path)) == {number_of(file)}
        assert told(staging, file)
        staging.files.unpin(file)


async def test_a_killed_maker_holds_what_it_was_told_until_the_mount_ends(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        killed, maker = FakeMaker(tmp_path, "maker-1-00000001"), FakeMaker(tmp_path)
        killed.renew()
        maker.renew()
        file = await stage(staging, 1)
        assert told(staging, file)
        killed.kill()
        await evict(staging, file.version)
        await renewed(maker)
        assert object_names(str(tmp_path))
        await begun(staging, is_new=False)
        assert staging.telling.makers.files == 2, "the mount goes on"
        maker.end()
        await begun(staging)
        assert staging.telling.makers.files == 0
        await trio.sleep(SOON_S)
        assert not object_names(str(tmp_path))


async def test_a_maker_that_comes_while_an_object_goes_is_told_of_it_no_more(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        file = await stage(staging, 1)
        look = staging.telling.generation.look
        asked: list[bool] = []

        async def late() -> Makers:
            found = await look()  # nobody
            maker = FakeMaker(tmp_path)
            maker.renew()
            asked.append(told(staging, file))
            return found

        staging.telling.generation.look = late  # type: ignore[method-assign]  # in the middle of it
        assert (await evict(staging, file.version))[0] == 1
        staging.telling.generation.look = look  # type: ignore[method-assign]  # as it was
        assert asked == [False]


async def test_after_a_crash_all_counts_as_told(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        file = await stage(staging, 1)
    maker = FakeMaker(tmp_path)
    maker.renew()
    async with healthy_staging(tmp_path) as staging:
        old, new = await staging.files.get(file.version, b"f"), await stage(staging, 2)
        assert (await evict(staging, old.version, new.version))[0] == 1, "that is new"
        await begun(staging, is_new=False)
        await renewed(maker)
        assert not object_names(str(tmp_path))


async def test_no_holes_are_made_in_what_was_told(tmp_path: Path) -> None:
    lost: list[tuple[StagedFile, Sequence[int]]] = []
    async with offering(tmp_path, lost_under_readers=lambda *told: lost.append(told)) as (staging, maker):
        files = [await stage(staging, seed, 3 * CHUNK_BYTES) for seed in (1, 2)]
        assert told(staging, files[0])
        before = disk_bytes(str(tmp_path))
        for file in files:
            staging.files.pin(file)
            overwrite(object_path(staging, file), CHUNK_BYTES, b"rot")
        broken = [checked.path async for checked in staging.checker.check() if checked.broken]
        assert len(broken) == 2
        await staging.reclaimer.wait_idle()
        assert disk_bytes(str(tmp_path)) == before - CHUNK_BYTES, "of what nobody was told of"
        assert lost == [(files[0], [1])], "who has it open waits for the right bytes"
        await trio.sleep(LATER_S)
        assert maker.number() > 1, "who looks it up anew is not told of it"
        assert put(staging, files[0], 1), "the right bytes come over the wrong ones"
        await staging.committer.wait_committed()


async def test_of_what_others_have_changed_a_newer_generation_is_not_told(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        files = [await stage(staging, seed) for seed in (1, 2)]
        before = maker.number()
        os.utime(object_path(staging, files[0]))
        assert not await staging.publisher.is_sound(files[0])
        await trio.sleep(LATER_S)
        assert maker.number() == before, "nobody was told of it"
        assert told(staging, files[1])
        os.utime(object_path(staging, files[1]))
        assert not await staging.publisher.is_sound(files[1])
        await trio.sleep(LATER_S)
        assert maker.number() == before + 1


async def test_a_chunk_of_what_was_told_goes_once_the_generation_has_gone(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker):
        file = await stage(staging, 1, 3 * CHUNK_BYTES)
        assert told(staging, file)
        assert await staging.evictions.evict_chunk(file, 0) == 0
        assert not told(staging, file)
        await renewed(maker)
        assert await staging.evictions.evict_chunk(file, 0) == CHUNK_BYTES
        assert await staging.evictions.evict_chunk(file, 1) == CHUNK_BYTES
        assert len(file.present) == 1


async def test_by_name_is_waited_for_who_makes_overlays_but_not_for_ever(tmp_path: Path) -> None:
    async with offering(tmp_path) as (staging, maker), trio.open_nursery() as nursery:
        for seed in (1, 2):
            assert told(staging, await stage(staging, seed, CHUNK_BYTES))

        async def renewing() -> None:
            before = maker.number()
            while maker.number() == before:
                await trio.sleep(0.01)
            maker.renew()

        nursery.start_soon(renewing)
        begun_s = trio.current_time()
        assert await staging.evictions.evict_paths() == (2, 2 * ROOM)
        assert trio.current_time() < begun_s + SOON_S
        assert told(staging, await stage(staging, 3, CHUNK_BYTES))
        begun_s = trio.current_time()
        assert await staging.evictions.evict_paths() == (0, 0)
        assert trio.current_time() < begun_s + 2


# --- A disk that hangs


async def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """And who knows what is open meanwhile: nothing goes."""
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        maker, telling, sweep = FakeMaker(tmp_path), staging.telling, staging.context.threads.sweep
        maker.renew()
        await telling.look()
        is_well = trio.Event()

        async def hangs(function: Callable[..., object], *args: object) -> object:
            await is_well.wait()
            return await sweep(function, *args)

        staging.context.threads.sweep = hangs  # type: ignore[assignment, method-assign]  # as a thread would
        changed, begun_s = ChangedNames(telling, XattrAnswers()), trio.current_time()
        try:
            await changed.hold()
            async with changed.changing(ROOT):
                assert changed.concerns_overlays, "they were there"
            assert trio.current_time() < begun_s + 10
            assert not telling.may_go(1)
            for _ in range(20):
                await telling.look()
            assert len(telling.generation._calls) <= 8
        finally:
            is_well.set()
        await trio.sleep(LATER_S)
        assert maker.number() == telling.number > 3, "what was asked for is done then"
        maker.renew()
        await telling.look()
        assert telling.may_go(1)


# --- Room


async def test_a_cache_smaller_than_the_data_makes_room_in_batches(tmp_path: Path) -> None:
    capacity = 100 * ROOM
    async with healthy_staging(tmp_path, capacity_bytes=capacity, eviction="lru") as staging:
        await begun(staging)
        maker, renewals = FakeMaker(tmp_path), 0
        maker.renew()
        staged = 0
        for seed in range(1, 401):
            file = await staging.files.get(version_of(seed, CHUNK_BYTES), b"f")
            staged += put(staging, file, 0)
            await staging.committer.wait_committed()
            if file.durable:
                assert told(staging, file)
            await trio.sleep(0.1)
            if maker.number() > staging.telling.makers.newest:
                maker.renew()
                renewals += 1
            assert staging.statistics().room_bytes <= capacity
        assert staged > 380, "what the maker has let go of makes room"
        assert renewals <= 300 // 4, "for each some percent of the cache go, and not one after the other"


async def test_where_an_old_generation_is_held_the_evictor_does_not_spin(tmp_path: Path) -> None:
    async with offering(tmp_path, capacity_bytes=20 * ROOM, eviction="lru") as (staging, maker):
        held, moves = maker.number(), maker.number()
        for seed in range(1, 200):
            file = await staging.files.get(version_of(seed, CHUNK_BYTES), b"f")
            put(staging, file, 0)
            await staging.committer.wait_committed()
            if file.durable and seed < 15:
                assert told(staging, file)
            await trio.sleep(0.5)
            maker.tell(held, maker.number())  # somebody works in the first one all the time
        assert maker.number() - moves <= 25, "a hundred seconds, and nothing is gained by it"
        assert len(staging.telling.leavers) <= 10
        assert set(range(1, 14)) <= {row.version.inode async for row in staging.listing.rows()}, "in use"
        newest = [row.version.inode async for row in staging.listing.rows() if row.version.inode > 190]
        assert newest, "what nobody was told of makes room for what comes"


def test_lru_keeps_what_overlays_use(tmp_path: Path) -> None:
    """The first telling in a generation is a use, and all that is seen of hits."""
    chance = random.Random(1)
    order = chance.choices(range(1, 101), [1 / rank for rank in range(1, 101)], k=500)
    hits: dict[bool, int] = {False: 0, True: 0}

    async def main(overlays: bool) -> None:
        now, cache = 1e9, tmp_path / str(overlays)
        async with healthy_staging(cache, capacity_bytes=50 * ROOM, eviction="lru", clock=lambda: now) as staging:
            await begun(staging)
            maker = FakeMaker(cache) if overlays else None
            looked_up: set[int] = set()
            for seed in order:
                now += 20
                file = await staging.files.get(version_of(seed, CHUNK_BYTES), b"f")
                hits[overlays] += file.durable
                if maker is not None and maker.number() != staging.telling.makers.shown:
                    maker.renew()
                    looked_up.clear()
                if not file.durable:
                    if put(staging, file, 0):
                        await staging.committer.wait_committed()
                elif maker is None:
                    staging.files.pin(file)
                    staging.files.unpin(file)
                elif seed not in looked_up:
                    looked_up.add(seed)
                    told(staging, file)
                await trio.sleep(0.2)

    run(main, False)
    run(main, True)
    assert 0.5 * len(order) < hits[False] < 0.9 * len(order)
    assert hits[True] >= hits[False] - 0.03 * len(order)


# --- What others have told


class Others:
    """Stand for the data plane, which tells by itself."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.some_are_lost = False
        self.stopped: set[int] = set()

    def stop_telling(self, numbers: Sequence[int], /) -> tuple[Sequence[int], bool]:
        self.stopped.update(numbers)
        found, self.told = self.told, []
        return found, self.some_are_lost

    def tell_again(self, numbers: Sequence[int], /) -> None:
        self.stopped.difference_update(numbers)


async def test_what_others_have_told_is_of_the_generation_in_which_they_did(tmp_path: Path) -> None:
    others = Others()
    async with offering(tmp_path, overlay_answers=others) as (staging, maker):
        before, after = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2)]
        others.told = [number_of(before)]
        await staging.telling.move()
        maker.renew()
        others.told.append(number_of(after))
        files = [before.version, after.version]
        assert (await evict(staging, *files))[0] == 1, "all have newer ones than the first was told in"
        assert object_names(str(tmp_path)) == others.stopped == {number_of(after)}
        await renewed(maker)
        assert object_names(str(tmp_path)) == others.stopped == set()


async def test_where_it_is_not_known_what_was_told_all_was(tmp_path: Path) -> None:
    others = Others()
    async with offering(tmp_path, overlay_answers=others) as (staging, maker):
        file = await stage(staging, 1)
        others.some_are_lost = True
        staging.telling.hear()
        others.some_are_lost = False
        assert (await evict(staging, file.version))[0] == 0
        await renewed(maker)
        assert not object_names(str(tmp_path))


async def test_before_a_hole_is_made_it_is_heard_what_others_have_told(tmp_path: Path) -> None:
    others = Others()
    async with healthy_staging(tmp_path, overlay_answers=others) as staging:
        await begun(staging)
        file = await stage(staging, 1)
        FakeMaker(tmp_path).renew()  # since the last look
        assert await staging.telling.may_change(number_of(file))
        others.told = [number_of(file)]
        assert not await staging.telling.may_change(number_of(file))


# --- Makers


class Found:
    """Stands for the directory of makers."""

    def __init__(self, makers: Makers = NOBODY) -> None:
        self.makers = makers
        self.slow_s = 0.0

    async def look(self) -> Makers:
        found = self.makers
        await trio.sleep(self.slow_s)
        return found


def watching() -> tuple[ExposedObjects, Found]:
    found: Any = Found()
    return ExposedObjects(found, None), found


async def test_a_look_that_was_overtaken_by_another_says_nothing() -> None:
    telling, found = watching()
    async with trio.open_nursery() as nursery:
        found.slow_s = 1
        nursery.start_soon(telling.look)
        await trio.sleep(0.1)
        found.slow_s, found.makers = 0, Makers(1, 1, 1, 1)
        await telling.look()
    assert telling.makers.files == 1


async def test_who_waits_for_a_generation_goes_by_looks_that_began_since(tmp_path: Path) -> None:
    telling, found = watching()
    await telling.look()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telling.wait_shown, 2, 60)
        await trio.sleep(1)
        for makers in (Makers(1, 1, 1, 1), Makers(2, 1, 1, 2)):
            found.makers = makers
            await telling.look()
            await trio.sleep(1)
            assert telling.is_watched
        found.makers = Makers(2, 1, 2, 2)
        begun_s = trio.current_time()
        await telling.look()
    assert trio.current_time() == begun_s
    assert not telling.is_watched


async def test_a_mount_that_tells_nothing_removes_what_killed_makers_have_left(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        FakeMaker(tmp_path).kill()
    async with healthy_staging(tmp_path) as staging:
        assert staging.telling.makers.files == 1
        file = await stage(staging, 1)
        await staging.telling.clear()
        assert staging.telling.makers.files == 0
        assert (await evict(staging, file.version))[0] == 1
