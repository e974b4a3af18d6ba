"""Attributes that one mount of a source that never changes keeps for the next; objects that are read ahead then."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache.index import Folder
from hfs.mountd.cache.kept_attributes import StoredAttributes
from hfs.mountd.cache.objects.reads import right_objects
from hfs.mountd.core.attributes import Attributes, attributes_of
from tests.conftest import Logs
from tests.support.faults import CHUNK_BYTES, Operations, evict, fail, healthy_staging, put, version_of

SOURCE = "00000000000000aa"
DEVICE = 33
DIRECTORY = Attributes(0o40755, 7, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3, DEVICE)
ROOM = 1 << 20


def attributes(seed: int, size: int) -> Attributes:
    return Attributes(0o100644, seed, 1, 5, 6, 0, size, 8, 4096, 1, 1, 1, DEVICE)


async def stage(staging: Cache, seed: int, size: int = 3000) -> StagedFile:
    """A whole file, noted as an open would."""
    file = await staging.files.get(version_of(seed, size), b"d/%d" % seed)
    for index in range(file.present.count):
        assert put(staging, file, index)
    staging.attributes.note(file, DIRECTORY, b"%d" % seed, attributes(seed, size))
    await staging.committer.wait_committed()
    return file


def kept_of(staging: Cache) -> StoredAttributes:
    kept = staging.attributes.of_source(SOURCE, DEVICE)
    assert kept is not None
    return kept


def rows(staging: Cache) -> int:
    """How many the index has."""
    return int(staging.context.index.database.reader.execute("SELECT count(*) FROM attributes").fetchone()[0])


async def names(kept: StoredAttributes, directory: Attributes = DIRECTORY) -> dict[bytes, Attributes | None]:
    found: dict[bytes, Attributes | None] = {}
    last = b""
    while (page := await kept.page(directory, last)) is not None:
        found |= {name: attributes_of(page.seen, index) for index, name in enumerate(page.names)}
        last = page.last_name
    return found


async def test_a_later_mount_has_what_was_seen_of_files_that_are_whole(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept_of(staging)
        for seed in (1, 2, 3):
            await stage(staging, seed)
        part = await staging.files.get(version_of(4, CHUNK_BYTES * 2))
        assert put(staging, part, 0)
        staging.attributes.note(part, DIRECTORY, b"4", attributes(4, CHUNK_BYTES * 2))
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        assert await names(kept) == {b"%d" % seed: attributes(seed, 3000) for seed in (1, 2, 3)}
        assert await names(kept, DIRECTORY._replace(mtime_ns=99)) == {}
        assert kept.named_nowait(DIRECTORY, b"2") == attributes(2, 3000)
        assert kept.named_nowait(DIRECTORY, b"4") is None


async def test_other_attributes_than_those_of_the_version_are_not_kept(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        file = await stage(staging, 1)
        await staging.attributes.flush()
        others = [attributes(2, 10), attributes(6, 11), attributes(7, 10)._replace(nlink=2)]
        for seed, wrong in enumerate(others, 5):
            other = await staging.files.get(version_of(seed, 10), b"d/%d" % seed)
            assert put(staging, other, 0)
            staging.attributes.note(other, DIRECTORY, b"%d" % seed, wrong)
        staging.attributes.note(file, DIRECTORY, b"twice", attributes(1, 3000))
        await staging.committer.wait_committed()
        await staging.attributes.flush()
        assert list(await names(kept)) == [b"1"]


async def test_a_mount_that_believes_nothing_forgets_it(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        identity = kept_of(staging).identity
        await stage(staging, 1)
    async with healthy_staging(tmp_path, attributes="forgotten") as staging:
        assert staging.attributes.of_source(SOURCE, DEVICE) is None
        assert staging.context.index.attributes.identity_nowait() != identity, "before anybody sees a change"
        await trio.sleep(1)
        assert rows(staging) == 0
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        assert kept.identity != identity, "nor would a row that was left be found"
        assert await names(kept) == {}


async def test_a_command_without_a_mount_leaves_it(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept_of(staging)
        await stage(staging, 1)
    async with healthy_staging(tmp_path) as staging:
        await trio.sleep(20)
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        assert list(await names(kept_of(staging))) == [b"1"]


async def test_what_an_evicted_file_leaves_goes(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        await stage(staging, 1)
        await staging.attributes.flush()
        await names(kept)
        await stage(staging, 2)
        await staging.attributes.flush()
        assert rows(staging) == 2
        await evict(staging, version_of(1, 3000), version_of(2, 3000))
        assert await names(kept) == {}
        assert rows(staging) == 0


@pytest.mark.parametrize("at_once", [1, 2])
async def test_files_that_go_while_they_are_noted_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Between two writes anything may happen to those that are still to be written."""
    monkeypatch.setattr("hfs.mountd.cache.kept_attributes._AT_ONCE", 1)
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        for seed in (1, 2, 3):
            await stage(staging, seed)
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(staging.attributes.flush)
            await evict(staging, version_of(2, 3000), version_of(3, 3000))
        assert list(await names(kept)) == [b"1"]


async def test_an_index_that_fails_costs_only_what_was_kept(tmp_path: Path, logs: Logs) -> None:
    logs.expect("serving from the source")
    operations = Operations(0, fail)
    async with healthy_staging(tmp_path, attributes="kept", operations=operations) as staging:
        kept = kept_of(staging)
        await stage(staging, 1)
        operations.act_after(1, for_ever=True)
        await staging.attributes.flush()
        assert await kept.page(DIRECTORY, b"") is None
        assert kept.named_nowait(DIRECTORY, b"1") is None
        assert staging.attributes.of_source(SOURCE, DEVICE) is None
        operations.act_no_more()
        assert staging.context.metrics["staging_errors"] == 4


# -- objects that are read ahead ---------------------------------------------------------------------------------------


class Answers:
    """Who answers reads: objects by number, and what was said of them."""

    def __init__(self) -> None:
        self.objects: dict[int, tuple[int, int, int]] = {}
        self.ever: list[int] = []

    def put_object(self, number: int, *described: Any) -> bool:
        self.objects[number] = described
        self.ever.append(number)
        return True

    def take_object(self, number: int) -> None:
        self.objects.pop(number, None)


async def test_objects_are_read_ahead_once_files_are_read_without_being_opened(tmp_path: Path) -> None:
    answers = Answers()
    async with healthy_staging(tmp_path, attributes="kept", answers=answers) as staging:
        kept = kept_of(staging)
        files = [await stage(staging, seed, size) for seed, size in ((1, 3000), (2, 5000), (3, CHUNK_BYTES + 1))]
        await staging.attributes.flush()
        await names(kept)
        await trio.sleep(10)
        assert not answers.objects
        staging.ahead.begin(ROOM)
        await trio.sleep(1)
        found = [os.stat(staging.context.disk.path(file.object_id or 0)) for file in files[:2]]
        expected = {
            file.object_id: (st.st_ino, st.st_ctime_ns, st.st_size) for file, st in zip(files, found, strict=False)
        }
        assert answers.objects == expected, "those of one chunk"
        staging.reclaim_queue.give_up(files[0], [0])
        assert list(answers.objects) == [files[1].object_id], "before anything is punched"
        await evict(staging, files[1].version)
        assert not answers.objects


async def test_what_is_damaged_or_changes_meanwhile_is_not_answered_with(tmp_path: Path) -> None:
    answers = Answers()
    async with healthy_staging(tmp_path, attributes="kept", answers=answers) as staging:
        kept = kept_of(staging)
        files = [await stage(staging, seed) for seed in (1, 2, 3)]
        await staging.attributes.flush()
        path = staging.context.disk.path(files[0].object_id or 0)
        with open(path, "r+b") as damaged:
            damaged.write(b"?")
        look = staging.context.threads.look

        async def given_up_meanwhile(function: Any, *args: Any) -> Any:
            found = await look(function, *args)
            staging.reclaim_queue.give_up(files[1], [0])
            return found

        staging.context.threads.look = given_up_meanwhile  # type: ignore[method-assign]  # of this one
        await names(kept)
        staging.ahead.begin(ROOM)
        await trio.sleep(1)
        assert answers.ever == [files[2].object_id]


async def test_rot_that_no_stamp_tells_of_is_found(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        context = staging.context
        numbers = [(await stage(staging, seed)).object_id or 0 for seed in (1, 2)]
        right, rotten = context.index.reader.rows(numbers)
        assert right_objects(context.disk, [right, replace(rotten, checksum=1)]) == [right]


async def test_no_more_is_read_ahead_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfs.mountd.cache.kept_attributes._OBJECTS", 1)
    answers = Answers()
    async with healthy_staging(tmp_path, attributes="kept", answers=answers) as staging:
        kept = kept_of(staging)
        for seed in range(1, 6):
            await stage(staging, seed)
        await staging.attributes.flush()
        await names(kept)
        staging.ahead.begin(2 * 4096 + 1)
        await trio.sleep(1)
        assert len(answers.objects) == 3


async def test_what_is_said_to_have_changed_is_found_by_no_name_any_more(tmp_path: Path) -> None:
    """Also by later mounts."""
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept_of(staging)
        files = [await stage(staging, seed) for seed in (1, 2, 3)]
        await staging.attributes.flush()
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        assert set(await names(kept)) == {b"1", b"2", b"3"}
        async with kept.forgetting_below(b"d/1"):
            assert not await names(kept), "nothing is believed meanwhile"
            assert kept.named_nowait(DIRECTORY, b"2") is None
            staging.attributes.note(files[1], DIRECTORY, b"2", attributes(2, 3000))
        assert set(await names(kept)) == {b"2", b"3"}
        assert kept.named_nowait(DIRECTORY, b"1") is None
    async with healthy_staging(tmp_path, attributes="kept") as staging:
        kept = kept_of(staging)
        assert set(await names(kept)) == {b"2", b"3"}
        file = await staging.files.get(version_of(1, 3000), b"d/1")
        staging.attributes.note(file, DIRECTORY, b"1", attributes(1, 3000))
        await staging.attributes.flush()
        assert set(await names(kept)) == {b"1", b"2", b"3"}, "it was seen again"
        async with kept.forgetting_below(b""):
            pass
        assert not await names(kept)


# -- rows of the index, and what proves them ---------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"inode": 8}, {"mtime_ns": 9}, {"ctime_ns": 9}])
def test_a_row_is_proven_by_its_directory_as_it_was(changed: dict[str, Any]) -> None:
    here, there = (Folder.of(5, SOURCE, directory) for directory in (DIRECTORY, DIRECTORY._replace(**changed)))
    row = here.row(1, b"a", b"seen")
    assert here.number != there.number
    assert here.proves(row)
    assert not there.proves(row._replace(folder=there.number, directory=there.directory))
    for wrong in ({"object_id": 2}, {"name": b"b"}, {"seen": b"seem"}, {"folder": 1}):
        assert not here.proves(row._replace(**wrong))


def test_other_sources_and_file_systems_have_other_directories() -> None:
    folders = [Folder.of(5, "aa", DIRECTORY), Folder.of(5, "bb", DIRECTORY), Folder.of(6, "aa", DIRECTORY)]
    folders.append(Folder.of(5, "a", DIRECTORY._replace(file_system="a")))
    assert len({one.number for one in folders}) == 4
