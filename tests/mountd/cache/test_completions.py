"""Objects that somebody else has written: entered in the index, once, also where a StagedFile of the version is about.

Without threads, in virtual time; the one who writes them is a fake that keeps what it was granted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import xxhash

from hfs.mountd.cache import Cache, Completion, StagedFile, Stamp
from hfs.mountd.kernel import KnownObject
from hfs.policies.geometry import Extent
from tests.support.faults import check_contents, contents, healthy_staging, object_names, stage, version_of

SIZE = 5000


class Maker:
    """Writes objects when it is told to."""

    def __init__(self) -> None:
        self.numbers = range(0)
        self.room_bytes = 0

    def store_in(self, directory_fd: int, overhead_bytes: int) -> None:
        pass

    def grant(self, numbers: range) -> range:
        before, self.numbers = self.numbers, numbers
        return before

    def grant_room(self, size_bytes: int) -> None:
        self.room_bytes += size_bytes

    def granted(self) -> tuple[int, int]:
        return len(self.numbers), self.room_bytes

    def know(self, objects: Iterable[KnownObject]) -> None:
        pass

    def write(self, staging: Cache, seed: int) -> Completion:
        """The object of the test file with this seed."""
        number, self.numbers = self.numbers[0], self.numbers[1:]
        data = contents(seed, 0, SIZE)
        path = Path(staging.context.disk.path(number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        found = path.stat()
        stamp = Stamp(found.st_ino, found.st_ctime_ns)
        self.room_bytes -= found.st_blocks * 512 + 4096
        return Completion(version_of(seed, SIZE), b"f%d" % seed, number, stamp, xxhash.xxh3_64_intdigest(data))


@asynccontextmanager
async def filling(path: Path) -> AsyncIterator[tuple[Cache, Maker]]:
    """A cache, and who writes objects of it and may begin."""
    maker = Maker()
    async with healthy_staging(path, maker=maker) as staging:
        while not maker.numbers or not maker.room_bytes:
            staging.completions.grant_nowait()
            await trio.sleep(0.1)
        yield staging, maker


async def check_staged(staging: Cache, file: StagedFile, seed: int, number: int) -> None:
    await staging.committer.wait_committed()
    assert (file.object_id, file.complete, file.unsettled, file.has_row) == (number, True, 0, True)
    check_contents(seed, 0, await staging.reader.read(file, Extent(0, SIZE)))


@pytest.mark.parametrize("asked", ["before", "after", "meanwhile", "meanwhile with others"])
async def test_it_is_staged_for_whoever_asks(tmp_path: Path, asked: str) -> None:
    async with filling(tmp_path) as (staging, maker):
        before = await staging.files.get(version_of(7, SIZE), b"f7") if asked == "before" else None
        assert before is None or not before.complete
        completion = maker.write(staging, 7)
        staging.completions.enter([completion])
        if asked == "after":
            await staging.committer.wait_committed()
        if asked == "meanwhile with others":
            await staging.files.load([version_of(6, SIZE), version_of(7, SIZE)])
        file = before or await staging.files.get(version_of(7, SIZE), b"f7")
        assert file.complete, "nobody waits for the index"
        assert file.has_row == (asked == "after")
        await check_staged(staging, file, 7, completion.number)
    async with healthy_staging(tmp_path) as staging:
        await check_staged(staging, await staging.files.get(version_of(7, SIZE)), 7, completion.number)


async def test_of_two_objects_of_a_version_one_stays(tmp_path: Path) -> None:
    async with filling(tmp_path) as (staging, maker):
        staged = await stage(staging, 8, SIZE)
        twice = [maker.write(staging, 7), maker.write(staging, 7), maker.write(staging, 8)]
        staging.completions.enter(twice)
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        file = await staging.files.get(version_of(7, SIZE))
        await check_staged(staging, file, 7, twice[0].number)
        assert staged.object_id not in (None, twice[2].number)
        assert object_names(os.fspath(tmp_path)) == {staged.object_id, twice[0].number}


async def test_one_that_was_asked_for_is_evicted_as_any(tmp_path: Path) -> None:
    async with filling(tmp_path) as (staging, maker):
        file = await staging.files.get(version_of(7, SIZE), b"f7")
        staging.completions.enter([maker.write(staging, 7)])
        await staging.committer.wait_committed()
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        assert not object_names(os.fspath(tmp_path))
        assert not file.complete
        staging.completions.close()
        assert staging.context.room.used_bytes == 0
