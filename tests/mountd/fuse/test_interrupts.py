"""Requests whose reader is killed, or only disturbed, in virtual time."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import Interrupted, SourceError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse.boundary import Interrupts

REQUEST = TOKEN, THREAD = 7, 4711


class Threads:
    """Stands for /proc: whether the thread is dying, and when that was looked at."""

    def __init__(self, *, dying: bool) -> None:
        self.dying = dying
        self.looks_s: list[float] = []

    def is_dying(self, thread: int) -> bool:
        assert thread == THREAD
        self.looks_s.append(trio.current_time())
        return self.dying


async def test_who_is_killed_later_is_found() -> None:
    threads = Threads(dying=False)
    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery, Metrics(), threads.is_dying)
        nursery.start_soon(_after, 2.0, setattr, threads, "dying", True)
        start_s = trio.current_time()
        with pytest.raises(Interrupted):
            await _interrupted(interrupts, trio.sleep_forever)
        assert trio.current_time() - start_s == pytest.approx(2.5)


@pytest.mark.parametrize("request_", [(0, THREAD), (TOKEN, 0)], ids=["what is staged", "another pid namespace"])
async def test_who_cannot_be_told_is_left_to_wait(request_: tuple[int, int]) -> None:
    threads = Threads(dying=True)
    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery, Metrics(), threads.is_dying)
        with interrupts.waiting(request_):
            interrupts.interrupted(request_[0])
            await trio.sleep(10)
    assert threads.looks_s == []


async def test_an_answer_that_comes_all_the_same_is_given() -> None:
    """An open that was done counts: the kernel takes the handle, and releases it."""
    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery, Metrics(), Threads(dying=True).is_dying)
        with interrupts.waiting(REQUEST):
            interrupts.interrupted(TOKEN)
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            answer = 5
    assert answer == 5


@pytest.mark.parametrize("pieces", [1, 2])
async def test_what_fails_on_the_way_out_is_not_told(pieces: int) -> None:
    """Alone, or beside a piece that was ended: as a group it would be an error that no rule foresees."""

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise SourceError(errno.EIO, "read")

    async def all_pieces() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(fail)
            if pieces == 2:
                inner.start_soon(trio.sleep_forever)

    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery, Metrics(), Threads(dying=True).is_dying)
        with pytest.raises(Interrupted):
            await _interrupted(interrupts, all_pieces)


async def _interrupted(interrupts: Interrupts, function: Callable[[], Awaitable[None]]) -> None:
    with interrupts.waiting(REQUEST):
        interrupts.interrupted(TOKEN)
        await function()


async def _after(delay_s: float, function: object, *args: object) -> None:
    await trio.sleep(delay_s)
    assert callable(function)
    function(*args)
