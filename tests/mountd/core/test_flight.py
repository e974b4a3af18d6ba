"""Single-flight: one fetch for many waiters, whoever of them slots."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.flight import SingleFlight


class Fetch:
    """Counts its starts and ends when told."""

    def __init__(self) -> None:
        self.starts = 0
        self.go = trio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.starts += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return 42


async def test_many_waiters_one_fetch() -> None:
    fetch, results = Fetch(), []
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, int] = SingleFlight(nursery)

        async def wait() -> None:
            results.append(await flights.run("k", fetch))

        for _ in range(5):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert "k" in flights
        assert results == []
        fetch.go.set()
    assert (fetch.starts, results, len(flights)) == (1, [42] * 5, 0)


async def test_a_cancelled_waiter_leaves_and_the_fetch_goes_on() -> None:
    fetch, results = Fetch(), []
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, int] = SingleFlight(nursery)
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                await flights.run("k", fetch)

        async def patient() -> None:
            results.append(await flights.run("k", fetch))

        nursery.start_soon(impatient)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(patient)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        fetch.go.set()
    assert (fetch.starts, results) == (1, [42])


async def test_a_failure_reaches_every_waiter_and_is_not_remembered() -> None:
    fetch, seen = Fetch(), []
    fetch.error = SourceError(errno.EIO, "read")
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, int] = SingleFlight(nursery)

        async def wait() -> None:
            try:
                await flights.run("k", fetch)
            except SourceError as error:
                seen.append(error.errno)

        for _ in range(3):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        fetch.go.set()
        await trio.testing.wait_all_tasks_blocked()
        fetch.error = None
        assert await flights.run("k", fetch) == 42
    assert (seen, fetch.starts) == ([errno.EIO] * 3, 2)


async def test_a_cancelled_fetch_gives_its_waiters_an_error() -> None:
    """At shutdown: an error, never an empty result that would look like the end of a file."""
    fetch = Fetch()
    with pytest.RaisesGroup(pytest.RaisesExc(SourceError, match="stopping")):
        async with trio.open_nursery() as waiting, trio.open_nursery() as nursery:
            flights: SingleFlight[str, int] = SingleFlight(nursery)
            waiting.start_soon(flights.run, "k", fetch)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
