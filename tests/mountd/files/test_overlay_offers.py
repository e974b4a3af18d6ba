"""What overlays are told of files that Python knows, to whom, whether they are offered, and how often renewed.

In virtual time, over a real cache without threads. Through real mounts: tests/fuse/test_overlay.py."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.files import ChangedNames, Overlays, overlays
from hfs.mountd.namespace.nodes.node import Node
from tests.support.faults import CHUNK_BYTES, evict, healthy_staging, object_path, stage
from tests.support.makers import ROOT, FakeMaker

UID = os.geteuid()
METACOPY, REDIRECT = "trusted.overlay.metacopy", "user.overlay.redirect"


class Answers:
    """Stands for the data plane."""

    def __init__(self) -> None:
        self.tells: list[bool] = []
        self.looks_given_up = 0

    def tell_overlays(self, on: bool) -> None:
        self.tells.append(on)

    def hold_overlays(self, on: bool) -> None:
        """Names have not changed."""

    def give_up_looks(self) -> None:
        self.looks_given_up += 1


class Mount:
    def __init__(self, staging: Cache, nursery: trio.Nursery, *, is_wanted: bool = True) -> None:
        self.staging = staging
        self.answers: Any = Answers()
        self.missing: str | None = None
        self.changed = ChangedNames(staging.telling, self.answers)
        pages: Any = SimpleNamespace(let_go=trio.lowlevel.checkpoint)
        self.overlays = Overlays(
            staging, self.answers, self.changed, pages, lambda: self.missing, nursery, is_wanted=is_wanted
        )

    @property
    def number(self) -> int:
        return int(Path(self.staging.telling.generation.number).read_text())

    async def told(self, file: StagedFile | None, *names: str, uid: int = UID) -> list[bytes | None]:
        """As the overlay asks, of a node of this file's version."""
        node = Node(ROOT, None if file is None else file.version, None, b"f")
        node.id = 0 if file is None else file.version.inode
        return [await self.overlays.value(node, name, uid) for name in names]


@asynccontextmanager
async def serving(cache: Path, **how: Any) -> AsyncIterator[Mount]:
    async with healthy_staging(cache, **how) as staging, trio.open_nursery() as nursery:
        mount = Mount(staging, nursery)
        await mount.overlays.begin(ROOT, "", is_new=True)
        yield mount
        nursery.cancel_scope.cancel()


def place_of(mount: Mount, file: StagedFile) -> bytes:
    """Below the layer of data."""
    return b"/" + os.fsencode(
        os.path.relpath(object_path(mount.staging, file), mount.staging.telling.generation.objects)
    )


# --- Telling


async def test_a_staged_file_says_where_it_lies_to_who_has_our_rights(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount:
        file = await stage(mount.staging, 1)
        assert await mount.told(file, METACOPY, REDIRECT) == [b"", place_of(mount, file)]
        assert await mount.told(file, METACOPY, REDIRECT, uid=UID + 1) == [None, None]
        assert await mount.told(file, "user.overlay.opaque", "trusted.overlay.origin") == [None, None]
        assert await mount.told(None, METACOPY, REDIRECT) == [None, None], "a directory"
        assert mount.overlays.is_asked(METACOPY)
        assert not mount.overlays.is_asked("user.x")
        mount.overlays.stop()
        assert mount.overlays.is_asked(METACOPY)
        assert await mount.told(file, REDIRECT, METACOPY) == [place_of(mount, file), None]
        assert await mount.told(await stage(mount.staging, 2), METACOPY, REDIRECT) == [None, None]


async def test_who_has_heard_of_one_that_is_to_go_finds_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount:
        FakeMaker(tmp_path).renew()
        file, other = await stage(mount.staging, 1), await stage(mount.staging, 2)
        place = place_of(mount, file)
        assert await mount.told(file, METACOPY) == [b""]
        assert (await evict(mount.staging, file.version))[0] == 0
        assert await mount.told(file, METACOPY, REDIRECT) == [None, place], "its look-up would fail"
        os.utime(object_path(mount.staging, file))
        assert await mount.told(file, REDIRECT, METACOPY, REDIRECT) == [place, None, None]
        assert await mount.told(other, METACOPY) == [b""]
        assert (await evict(mount.staging, other.version))[0] == 0, "that was told by its number"


async def test_what_was_promised_takes_a_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "_PROMISES", 2)
    async with serving(tmp_path) as mount:
        files = [await stage(mount.staging, seed, CHUNK_BYTES) for seed in range(1, 6)]
        for file in files:
            assert await mount.told(file, METACOPY) == [b""]
        assert len(mount.overlays._promised) == 2
        assert await mount.told(files[0], REDIRECT) == [place_of(mount, files[0])]


async def test_what_is_asked_while_names_change_waits(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount:
        FakeMaker(tmp_path).renew()
        begun_s = trio.current_time()
        await mount.overlays.wait()
        await mount.changed.hold(0.5)
        await mount.overlays.wait()
        assert trio.current_time() == begun_s + 0.5


# --- Offering


async def test_somebody_has_one_or_is_about_to_make_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount:
        assert not mount.overlays.has_makers
        offered = mount.overlays.describe()
        assert offered is not None
        assert offered["makers_now"] == 0
        mount.overlays.makers_may_come()
        assert mount.overlays.has_makers
        await trio.sleep(4)
        assert not mount.overlays.has_makers
        FakeMaker(tmp_path).renew()
        await mount.staging.telling.look()
        assert mount.overlays.has_makers
        mount.overlays.stop()
        assert mount.overlays.describe() is None


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_mount_that_offers_none_clears_up_at_its_beginning(tmp_path: Path, is_new: bool) -> None:
    async with serving(tmp_path):
        FakeMaker(tmp_path).kill()
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        mount = Mount(staging, nursery)
        mount.missing = "it is not wanted"
        await mount.overlays.begin(ROOT, "", is_new=is_new)
        assert staging.telling.makers.files == (0 if is_new else 1)
        assert mount.answers.tells == []
        assert mount.overlays.describe() is None


async def test_where_none_are_wanted_none_are_offered_later(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        mount = Mount(staging, nursery, is_wanted=False)
        await mount.overlays.begin(ROOT, "", is_new=True)
        nursery.start_soon(mount.overlays.run)
        await stage(staging, 1)
        await trio.sleep(10)
        assert mount.answers.tells == []
        assert not mount.overlays.is_asked(METACOPY), "it is the source's"
        nursery.cancel_scope.cancel()


def test_without_a_disk_there_are_none() -> None:
    nobody: Any = None
    cache: Any = SimpleNamespace(telling=None, context=SimpleNamespace(disk=SimpleNamespace(directory=-1)))
    without = Overlays(cache, nobody, nobody, nobody, lambda: "not asked", nobody, is_wanted=True)
    assert without.missing == "there is no cache on a disk"


async def test_where_the_directory_cannot_be_made_that_is_said(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        (tmp_path / "overlays").touch()
        mount = Mount(staging, nursery)
        await mount.overlays.begin(ROOT, "", is_new=True)
        assert mount.overlays.missing is not None
        assert "cannot be written to" in mount.overlays.missing
        assert mount.answers.tells == []


# --- Renewing


async def test_what_was_staged_is_worth_a_new_one_once_that_is_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.overlays.run)
        await trio.sleep(20)
        assert mount.number == 1, "nothing is new"
        for seed in range(1, 9):
            await stage(mount.staging, seed)
            await trio.sleep(2)
        assert mount.number == 1
        await trio.sleep(3)
        assert mount.number == 2
        await trio.sleep(60)
        assert mount.number == 2
        assert mount.answers.looks_given_up > 90
        assert mount.answers.tells == [True, True]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("pace_s", "moved"), [(1, [11, 24, 40, 60]), (0.5, [21])], ids=["by a quarter and ten chunks", "not too often"]
)
async def test_while_much_is_staged_a_new_one_is_worth_it_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace_s: float, moved: list[int]
) -> None:
    monkeypatch.setattr(overlays, "_LEAST_BYTES", 10 * CHUNK_BYTES)
    async with serving(tmp_path, capacity_bytes=400 * CHUNK_BYTES) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.overlays.run)
        moved_at = []
        for seed in range(1, moved[-1] + 1):
            before = mount.number
            await stage(mount.staging, seed, CHUNK_BYTES)
            await trio.sleep(pace_s)
            if mount.number != before:
                moved_at.append(seed)
        assert moved_at == moved
        nursery.cancel_scope.cancel()


async def test_what_stands_in_their_way_for_a_while_ends_the_telling_and_the_overlays(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.overlays.run)
        mount.missing = "somebody records"
        await trio.sleep(1.5)
        assert (mount.number, mount.answers.tells, mount.overlays.describe()) == (2, [True, False], None)
        await stage(mount.staging, 1)
        await trio.sleep(5)
        assert mount.number == 2, "who has none needs no new one"
        mount.missing = None
        await trio.sleep(1.5)
        assert (mount.number, mount.answers.tells) == (3, [True, False, True])
        assert mount.overlays.describe() is not None
        nursery.cancel_scope.cancel()


async def test_whether_somebody_has_one_is_looked_at_all_the_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as mount, trio.open_nursery() as nursery:
        nursery.start_soon(mount.overlays.run)
        maker = FakeMaker(tmp_path)
        maker.renew()
        await trio.sleep(2)
        assert mount.overlays.has_makers
        maker.end()
        await trio.sleep(2)
        assert not mount.overlays.has_makers
        nursery.cancel_scope.cancel()
