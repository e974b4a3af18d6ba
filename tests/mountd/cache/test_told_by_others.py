"""What others have told counts as what was told here; and what a look at makers says, which others may overtake.

In virtual time, as tests/mountd/cache/test_told_objects.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from hfs.mountd.cache.generation import Makers
from hfs.mountd.cache.told_objects import ToldObjects
from tests.support.faults import (
    CHUNK_BYTES,
    healthy_staging,
    object_names,
    run,
    stage,
)
from tests.support.makers import LATER_S, NOBODY, SOON_S, FakeMaker, begun, number_of


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


# --- What others have told


def test_what_others_have_told_is_of_the_generation_in_which_they_did(tmp_path: Path) -> None:
    async def main() -> None:
        others = Others()
        async with healthy_staging(tmp_path, overlay_answers=others) as staging:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()
            before, after = [await stage(staging, seed, CHUNK_BYTES) for seed in (1, 2)]
            others.told = [number_of(before)]
            await staging.telling.move()
            maker.renew()
            others.told.append(number_of(after))
            files = [before.version, after.version]
            assert (await staging.evictions.evict(files))[0] == 1, "all have newer ones than the first was told in"
            assert object_names(str(tmp_path)) == others.stopped == {number_of(after)}
            await trio.sleep(LATER_S)
            maker.renew()
            await trio.sleep(SOON_S)
            assert object_names(str(tmp_path)) == others.stopped == set()

    run(main)


def test_where_it_is_not_known_what_was_told_all_was(tmp_path: Path) -> None:
    async def main() -> None:
        others = Others()
        async with healthy_staging(tmp_path, overlay_answers=others) as staging:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()
            file = await stage(staging, 1)
            others.some_are_lost = True
            staging.telling.hear()
            others.some_are_lost = False
            assert (await staging.evictions.evict([file.version]))[0] == 0
            await trio.sleep(LATER_S)
            maker.renew()
            await trio.sleep(SOON_S)
            assert not object_names(str(tmp_path))

    run(main)


def test_others_are_heard_all_the_time_and_looked_for_seldom(tmp_path: Path) -> None:
    async def main() -> None:
        others = Others()
        async with healthy_staging(tmp_path, overlay_answers=others) as staging:
            await begun(staging)
            others.told, looks = [5], staging.telling._looks
            await trio.sleep(60)
            assert others.told == []
            assert staging.telling._looks - looks < 70

    run(main)


def test_before_a_hole_is_made_it_is_heard_what_others_have_told(tmp_path: Path) -> None:
    async def main() -> None:
        others = Others()
        async with healthy_staging(tmp_path, overlay_answers=others) as staging:
            await begun(staging)
            file = await stage(staging, 1)
            FakeMaker(tmp_path).renew()  # since the last look
            assert await staging.telling.may_change(number_of(file))
            others.told = [number_of(file)]
            assert not await staging.telling.may_change(number_of(file))

    run(main)


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


def watching() -> tuple[ToldObjects, Found]:
    found: Any = Found()
    return ToldObjects(found, None), found


def test_a_look_that_was_overtaken_by_another_says_nothing() -> None:
    async def main() -> None:
        telling, found = watching()
        async with trio.open_nursery() as nursery:
            found.slow_s = 1
            nursery.start_soon(telling.look)
            await trio.sleep(0.1)
            found.slow_s, found.makers = 0, Makers(1, 1, 1, 1)
            await telling.look()
        assert telling.makers.files == 1

    run(main)


def test_who_waits_for_a_generation_goes_by_looks_that_began_since(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_an_object_is_used_once_in_a_generation(tmp_path: Path) -> None:
    async def main() -> None:
        telling, _ = watching()
        for _ in range(3):
            assert telling.tell(5)
        assert telling.take_used() == [5]
        assert telling.tell(5)
        assert telling.take_used() == []
        telling.number += 1
        assert telling.tell(5)
        assert telling.take_used() == [5]

    run(main)


def test_a_mount_that_tells_nothing_removes_what_killed_makers_have_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await begun(staging)
            FakeMaker(tmp_path).kill()
        async with healthy_staging(tmp_path) as staging:
            assert staging.telling.makers.files == 1
            file = await stage(staging, 1)
            await staging.telling.clear()
            assert staging.telling.makers.files == 0
            assert (await staging.evictions.evict([file.version]))[0] == 1

    run(main)
