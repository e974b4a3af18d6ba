"""What is leaving, from the side of who asked for it; and what others have told, which counts as what was told here.

In virtual time, as tests/mountd/cache/test_told_objects.py."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from hfs.mountd.cache import leavers
from hfs.mountd.cache.makers import Makers
from tests.support.faults import (
    CHUNK_BYTES,
    disk_bytes,
    healthy_staging,
    object_names,
    object_path,
    overwrite,
    put,
    run,
    stage,
    version_of,
)
from tests.support.makers import FakeMaker, begun, number_of, told

ROOM = CHUNK_BYTES + 4096
SOON_S, LATER_S = 0.5, 3.0


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
            others.told = [number_of(after)]
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


def test_a_look_that_was_overtaken_by_another_says_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
            await begun(staging)
            look = staging.telling.generation.look

            async def slow() -> Makers:
                found = await look()
                await trio.sleep(1)
                return found

            staging.telling.generation.look = slow  # type: ignore[method-assign]  # the first alone
            nursery.start_soon(staging.telling.look)
            await trio.sleep(0.1)
            staging.telling.generation.look = look  # type: ignore[method-assign]  # as it was
            FakeMaker(tmp_path).renew()
            await staging.telling.look()
            await trio.sleep(2)
            assert staging.telling.makers.files == 1

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


# --- Who asked


def test_objects_that_leave_are_waited_for_a_moment_and_else_told_of_the_next_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()

            async def renewed() -> None:
                await trio.sleep(1.5)
                maker.renew()

            for after_s in (0, 2 * LATER_S):
                file = await stage(staging, 1, CHUNK_BYTES)
                assert told(staging, file)
                number = number_of(file)
                nursery.start_soon(renewed) if not after_s else None
                gone = await staging.evictions.evict_objects([number])
                assert gone == ({} if after_s else {number: ROOM})
            await trio.sleep(LATER_S)
            maker.renew()
            await trio.sleep(SOON_S)
            assert await staging.evictions.evict_objects([number]) == {number: 0}, "it has gone since"
            assert await staging.evictions.evict_objects([number]) == {}, "that was told"

    run(main)


def test_what_is_opened_while_somebody_waits_for_it_to_go_is_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()
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

    run(main)


def test_of_what_has_gone_by_itself_not_all_is_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leavers, "_MOST_DEPARTED", 3)

    async def main() -> None:
        gone = leavers.Leavers()
        gone.departed(range(10))
        assert gone.take_departed(range(10)) == [7, 8, 9]

    run(main)


# --- What has become of it meanwhile


@pytest.mark.parametrize("by_name", [True, False])
def test_what_was_pinned_while_it_was_leaving_goes_where_somebody_has_named_it(tmp_path: Path, by_name: bool) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()
            file = await stage(staging, 1)
            assert told(staging, file)
            await staging.reclaimer.evict([(number_of(file), file.version)], by_name=by_name)
            await staging.pinned.pin([number_of(file)])
            await trio.sleep(LATER_S)
            maker.renew()
            await trio.sleep(SOON_S)
            assert bool(object_names(str(tmp_path))) != by_name
            assert not staging.telling.leavers

    run(main)


def test_a_chunk_that_nobody_asks_for_again_stays_and_its_file_is_told_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await begun(staging)
            maker = FakeMaker(tmp_path)
            maker.renew()
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

    run(main)


def test_a_file_of_which_a_chunk_has_gone_is_told_again_once_it_is_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await begun(staging)
            FakeMaker(tmp_path).renew()
            file = await stage(staging, 1, 3 * CHUNK_BYTES)
            assert await staging.evictions.evict_chunk(file, 1) == CHUNK_BYTES
            assert put(staging, file, 1)
            await staging.committer.wait_committed()
            assert told(staging, file)

    run(main)


def test_what_has_gone_takes_no_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            await begun(staging)
            file = await stage(staging, 1)
            assert told(staging, file)
            await trio.sleep(LATER_S)
            assert staging.updates._told._blocks
            assert (await staging.evictions.evict([file.version]))[0] == 1
            assert not staging.updates._told._blocks
            assert not staging.telling._stamps._blocks

    run(main)


@pytest.mark.parametrize("in_use", [True, False])
def test_after_a_crash_no_holes_are_made_in_what_an_overlay_may_have_open(tmp_path: Path, in_use: bool) -> None:
    async def main() -> None:
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

    run(main)
