"""Large staged files that are read through the page cache of the mount: when all of them is brought there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from hfs.mountd.cache.objects.file import recall
from hfs.mountd.files import PageFill
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.kernel import ReadProgress
from tests.support.fake_plane import FakePlane
from tests.support.read_parts import CHUNK, Parts, read_once

STEP = CHUNK // 2
SIZE = 2 * CHUNK


class Memory:
    room = True

    def has_room(self, _size: int) -> bool:
        return self.room


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfs.mountd.files.delegations.SMALL_BYTES", SIZE - 1)
    monkeypatch.setattr("hfs.mountd.files.residency._LEAST_BYTES", CHUNK)
    monkeypatch.setattr("hfs.mountd.files.residency._STEP_BYTES", STEP)


@asynccontextmanager
async def filling(memory: Memory) -> AsyncIterator[tuple[FakePlane, Parts, FileHandle]]:
    plane = FakePlane()
    async with read_once(plane, push=True) as (parts, handle), trio.open_nursery() as nursery:
        await trio.testing.wait_all_tasks_blocked()
        parts.pushed.clear()  # neighbours of its first read
        fakes: Any = (plane, parts.delegations, parts.staging, parts.pusher, memory)
        nursery.start_soon(PageFill(*fakes).run)
        yield plane, parts, handle
        nursery.cancel_scope.cancel()


def steps(*numbers: int) -> list[tuple[bytes, int, int]]:
    return [(b"large", number * STEP, STEP) for number in numbers]


async def test_who_has_read_a_part_finds_the_rest_in_memory() -> None:
    async with filling(Memory()) as (plane, parts, handle):
        plane.progresses[handle.node.id] = ReadProgress(CHUNK - 1, STEP)
        await trio.sleep(1)
        assert not parts.pushed, "not enough yet"
        plane.progresses[handle.node.id] = ReadProgress(CHUNK, 2 * STEP + 5)
        await trio.sleep(1)
        assert parts.pushed == steps(2, 3, 0, 1), "from where its reader is"
        plane.progresses[handle.node.id] = ReadProgress(CHUNK + SIZE - 1, 0)
        await trio.sleep(1)
        assert len(parts.pushed) == 4
        plane.progresses[handle.node.id] = ReadProgress(CHUNK + SIZE, 0)
        await trio.sleep(1)
        assert parts.pushed == steps(2, 3, 0, 1, 0, 1, 2, 3), "the kernel has let go of it"


async def test_nothing_is_pushed_while_there_is_no_room() -> None:
    memory = Memory()
    memory.room = False
    async with filling(memory) as (plane, parts, handle):
        plane.progresses[handle.node.id] = ReadProgress(SIZE, 0)
        await trio.sleep(1)
        assert not parts.pushed
        memory.room = True
        await trio.sleep(1)
        assert parts.pushed == steps(0, 1, 2, 3)


async def test_small_files_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfs.mountd.files.delegations.SMALL_BYTES", SIZE)
    async with filling(Memory()) as (plane, parts, handle):
        plane.progresses[handle.node.id] = ReadProgress(SIZE, 0)
        await trio.sleep(1)
        assert plane.reads
        assert not parts.pushed


@pytest.mark.parametrize("why", ["recalled", "no room", "a read fails"])
async def test_it_ends_when_reads_come_to_us(why: str) -> None:
    memory = Memory()
    async with filling(memory) as (plane, parts, handle):
        push = parts.pusher.push

        async def once(*args: Any) -> bool:
            if why == "recalled":
                recall(handle.file)
            elif why == "no room":
                memory.room = False
            else:
                parts.staging.broken = True
            return await push(*args)

        parts.pusher.push = once  # type: ignore[method-assign]  # of this one
        plane.progresses[handle.node.id] = ReadProgress(SIZE, 0)
        await trio.sleep(1)
        assert parts.pushed == steps(0)
