"""Places in the source: a part of it that hangs leaves threads to the rest. Virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hfs.mountd.source.places import Hanging, Permit, Permits


def places(count: int = 4, most: int = 16, slow_s: float = 1.0) -> Permits:
    return Permits(count, Hanging(most), slow_s=slow_s)


async def enters(pool: Permits, directory: bytes, limit_s: float = 0) -> Permit | None:
    with trio.move_on_after(limit_s):
        return await pool.enter(directory)
    return None


async def test_so_many_at_a_time() -> None:
    pool = places()
    held = [await pool.enter(b"a") for _ in range(4)]
    start = trio.current_time()

    async def slots() -> None:
        await trio.sleep(0.5)
        pool.leave(held[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots)
        await pool.enter(b"a")
    assert trio.current_time() - start == pytest.approx(0.5)
    assert (pool.running, pool.waiting) == (4, 0)


async def test_calls_that_hang_leave_their_places_to_others() -> None:
    """All places are taken by calls of one directory that hangs: a second later the others go on."""
    pool = places()
    for _ in range(4):
        await pool.enter(b"hung")
    start = trio.current_time()
    for number in range(20):
        pool.leave(await pool.enter(b"healthy/%d" % number))
    assert trio.current_time() - start == pytest.approx(1.0)


async def test_who_asks_where_calls_hang_waits_and_does_not_hold_up_the_others() -> None:
    pool = places(count=4, most=16)
    hung: list[Permit] = []
    done: list[int] = []

    async def asks(number: int) -> None:
        if number % 2:
            hung.append(await pool.enter(b"hung"))
        else:
            place = await pool.enter(b"healthy")
            await trio.sleep(0.01)
            pool.leave(place)
            done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(asks, number)
        await trio.sleep(8)
        assert len(done) == 100
        assert len(hung) <= 8 + 4 + 2  # what its directory may have, those that hang no second yet, and tries
        for _ in range(len(hung), 101):
            while hung:
                pool.leave(hung.pop())
            await trio.sleep(6)
    assert (pool.running, pool.waiting) == (len(hung), 0)


async def test_a_directory_that_was_healed_is_asked_again_though_its_calls_never_return() -> None:
    pool = places(count=4, most=16)
    for _ in range(12):
        assert await enters(pool, b"hung", 6) is not None
        await trio.sleep(1)
    start = trio.current_time()
    pool.leave(await pool.enter(b"hung"))
    assert trio.current_time() - start <= 6


async def test_given_up_it_takes_no_place() -> None:
    pool = places(count=1)
    held = await pool.enter(b"a")
    assert await enters(pool, b"a", 0.1) is None
    assert pool.waiting == 0
    pool.leave(held)
    assert await enters(pool, b"a") is not None


async def test_a_place_given_to_a_call_that_is_given_up_in_the_same_moment_goes_to_the_next() -> None:
    pool = places(count=1)
    held = await pool.enter(b"a")
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def waits() -> None:
            with scope:
                place = await pool.enter(b"a")
                try:
                    await trio.sleep_forever()
                finally:
                    pool.leave(place)

        nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        pool.leave(held)
        scope.cancel()
    assert pool.running == 0


async def test_past_the_bound_nobody_gets_a_place_of_one_that_hangs() -> None:
    pool = places(count=2, most=4)
    for _ in range(6):
        assert await enters(pool, b"", 10) is not None
    assert await enters(pool, b"", 60) is None
    assert (pool.running, pool.waiting) == (6, 0)


async def test_a_pool_that_nobody_waits_for_takes_no_more_than_it_has() -> None:
    pool = places(count=2, slow_s=float("inf"))
    for _ in range(2):
        await pool.enter(b"hung")
    assert await enters(pool, b"healthy", 1000) is None


async def test_calls_that_nobody_waits_behind_hang_too() -> None:
    pool = places(slow_s=1.0)
    held = await pool.enter(b"a")
    assert pool.hanging(5.0) == 0
    await trio.sleep(6)
    assert pool.hanging(5.0) == 1
    pool.hangs(held)
    assert pool.hanging(5.0) == 1
    pool.leave(held)
    assert pool.hanging(5.0) == 0
