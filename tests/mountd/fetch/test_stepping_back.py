"""Readers of other mounts go before what is fetched ahead: told and heard in virtual time, and what follows from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import OwnWaits, SteppingBack, WhatYields
from hfs.mountd.fetch.chunks.fetcher import FetchTurns
from hfs.mountd.ledger import NeighbourWaits
from hfs.policies.prefetch.yielding import FLOOR, Waits
from tests.conftest import Logs
from tests.support.fake_source import FakeSource
from tests.support.small_parts import SIZE, parts_of


class Daemon:
    """One with a neighbour, of which `theirs` and `of_the_disk` is heard."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.is_alone = self.is_fetching = False
        self.theirs = self.of_the_disk = nothing = Waits(0, 0, 0)
        self.own = OwnWaits(nothing, nothing)
        self.told: list[OwnWaits] = []
        self.error: OSError | None = None
        self.hangs: trio.Event | None = None
        self.fetches: list[float] = []
        self.stages: list[float] = []
        what = WhatYields(lambda: self.is_fetching, self.fetches.append, self.stages.append)
        self.stepping_back = SteppingBack(self._exchange, what, lambda: self.own, self.metrics, self._in_thread)

    @property
    def share(self) -> float:
        """Of what could be fetched ahead."""
        return self.fetches[-1] if self.fetches else 1.0

    def _exchange(self, source: Waits, disk: Waits) -> dict[str, NeighbourWaits] | None:
        self.told.append(OwnWaits(source, disk))
        if self.error is not None:
            raise self.error
        return None if self.is_alone else {"other": NeighbourWaits(self.theirs, self.of_the_disk)}

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if self.hangs is not None:
            await self.hangs.wait()
        return function(*args)


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(daemon.stepping_back.run)
        yield
        nursery.cancel_scope.cancel()


async def test_less_is_fetched_ahead_while_a_neighbours_reader_waits_and_all_again_afterwards() -> None:
    daemon = Daemon()
    daemon.is_fetching = True
    async with running(daemon):
        await trio.sleep(1)
        assert daemon.fetches == []
        daemon.theirs = Waits(0, 0, 1)
        await trio.sleep(0.1)
        assert daemon.share == FLOOR
        assert daemon.metrics["prefetch_yields"] == 1
        told = len(daemon.fetches)
        await trio.sleep(0.2)
        assert len(daemon.fetches) > told, "a turn that was given back is taken by somebody else soon"
        daemon.theirs = Waits(1, 10**9, 0)
        await trio.sleep(2)
        assert daemon.share == 1
        assert 0.2e9 < daemon.metrics["prefetch_yielded_ns"] < 1.5e9


async def test_readers_that_wait_for_the_disk_hold_back_what_is_written_and_fetched() -> None:
    daemon = Daemon()
    daemon.is_fetching = True
    async with running(daemon):
        daemon.theirs = Waits(0, 0, 1)
        await trio.sleep(0.1)
        assert daemon.share == FLOOR
        assert daemon.stages == [], "whoever waits for the source has nothing of the disk"
        daemon.theirs = Waits(1, 10**6, 0)
        await trio.sleep(2)
        assert daemon.share == 1
        daemon.of_the_disk = Waits(0, 0, 1)
        await trio.sleep(0.1)
        assert daemon.share == FLOOR
        assert daemon.stages == [FLOOR]
        assert daemon.metrics["staging_yields"] == 1
        daemon.of_the_disk = Waits(1, 10**6, 0)
        await trio.sleep(2)
        assert daemon.share == daemon.stages[-1] == 1


async def test_who_reads_nothing_tells_nothing_and_hears_nothing() -> None:
    daemon = Daemon()
    daemon.theirs = Waits(0, 0, 1)
    async with running(daemon):
        await trio.sleep(60)
        assert daemon.told == []
        daemon.own = OwnWaits(Waits(1, 5, 0), Waits(0, 0, 0))
        await trio.sleep(0.5)
        assert daemon.told[0] == ((1, 5, 0), (0, 0, 0))
        daemon.own = OwnWaits(Waits(1, 5, 0), Waits(0, 0, 1))
        await trio.sleep(0.5)
        assert daemon.told[-1] == ((1, 5, 0), (0, 0, 1)), "who reads what is staged wants the disk"


async def test_a_daemon_that_begins_anew_is_heard_from_its_beginning() -> None:
    daemon = Daemon()
    daemon.is_fetching = True
    daemon.theirs = Waits(1000, 10**12, 0)
    async with running(daemon):
        await trio.sleep(1)
        assert daemon.share == 1, "what was before we came is nothing new"
        daemon.theirs = Waits(3, 10**7, 0)
        await trio.sleep(1)
        assert daemon.share == 1
        daemon.theirs = Waits(4, 2 * 10**7, 0)
        await trio.sleep(0.1)
        assert daemon.share == FLOOR


async def test_a_ledger_that_fails_costs_nothing_but_fairness(logs: Logs) -> None:
    """It is told once."""
    logs.expect("goes on as if it was alone")
    daemon = Daemon()
    daemon.is_fetching = True
    daemon.theirs = Waits(0, 0, 1)
    async with running(daemon):
        await trio.sleep(0.2)
        assert daemon.share == FLOOR
        daemon.error = OSError(5, "Input/output error")
        await trio.sleep(5)
        assert daemon.share == 1
        assert len(logs.records) == 1


async def test_a_cache_disk_that_hangs_does_not_hold_the_source_back() -> None:
    daemon = Daemon()
    daemon.is_fetching = True
    daemon.theirs = Waits(0, 0, 1)
    async with running(daemon):
        await trio.sleep(0.2)
        assert daemon.share == FLOOR
        daemon.hangs = trio.Event()
        await trio.sleep(5)
        assert daemon.share == 1
        daemon.hangs.set()
        daemon.hangs = None
        daemon.theirs = Waits(0, 0, 0)
        await trio.sleep(100)
        daemon.theirs = Waits(0, 0, 1)
        await trio.sleep(0.1)
        assert daemon.share == FLOOR


async def test_no_more_are_fetched_ahead_at_a_time_than_there_are_turns_and_readers_need_none() -> None:
    source = FakeSource()
    source.directory(b"d", 3)
    for number in range(65):
        source.file(f"d/{number}".encode(), 10 + number, SIZE)
    async with parts_of(source) as parts, trio.open_nursery() as nursery:
        parts.fetch.fetcher.turns.set_limit(1)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, parts.fetch.fetcher.turns.taken)
                await trio.sleep(0.001)

        nursery.start_soon(watch)
        async with trio.open_nursery() as ahead:
            for begin in range(0, 64, 16):
                ahead.start_soon(parts.stage, *(f"d/{number}".encode() for number in range(begin, begin + 16)))
            await trio.sleep(0.001)
            assert await parts.demand(b"d/64")
            assert parts.fetch.fetcher.turns.taken == 1, "it came before the others were done"
        assert most == 1
        assert sorted(parts.read()) == sorted(b"d/%d" % i for i in range(65))
        nursery.cancel_scope.cancel()


async def test_a_fetch_that_is_cancelled_gives_its_turn_back() -> None:
    turns = FetchTurns()
    turns.set_limit(1)
    with trio.move_on_after(1):
        async with turns.turn():
            with trio.move_on_after(0.5):
                async with turns.turn():
                    pytest.fail("there was one")
            await trio.sleep_forever()
    assert turns.taken == 0
    async with turns.turn():
        assert turns.taken == 1
