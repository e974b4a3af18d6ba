"""The byte budget of chunk buffers: held while a slice lives, demand before prefetch, pages used again."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from hfs.mountd.core.buffers import PAGE_BYTES, Buffers
from hfs.mountd.core.errors import SourceError

CHUNK = 1 << 20


async def test_a_slice_keeps_the_buffer_and_its_death_returns_it() -> None:
    buffers = Buffers(4 * CHUNK, CHUNK)
    view = await buffers.take(CHUNK, urgent=True)
    part = view[10:20].toreadonly()
    del view
    assert buffers.used_bytes == CHUNK
    del part
    assert buffers.used_bytes == 0


async def test_large_buffers_are_page_aligned_and_used_again() -> None:
    import numpy as np

    buffers = Buffers(4 * CHUNK, CHUNK)
    first = await buffers.take(CHUNK, urgent=True)
    address = np.frombuffer(first, np.uint8).ctypes.data
    assert address % PAGE_BYTES == 0
    del first
    second = await buffers.take(CHUNK, urgent=True)
    assert np.frombuffer(second, np.uint8).ctypes.data == address
    other = await buffers.take(CHUNK, urgent=False)
    assert np.frombuffer(other, np.uint8).ctypes.data != address
    assert buffers.used_bytes == 2 * CHUNK


async def test_small_buffers_are_page_aligned_and_cost_their_pages() -> None:
    import numpy as np

    buffers = Buffers(4 * CHUNK, CHUNK)
    view = await buffers.take(5000, urgent=True)
    assert np.frombuffer(view, np.uint8).ctypes.data % PAGE_BYTES == 0
    assert (len(view), buffers.used_bytes) == (5000, 2 * PAGE_BYTES)


async def test_prefetch_gets_half_and_demand_all() -> None:
    buffers = Buffers(4 * CHUNK, CHUNK)
    held = [await buffers.take(CHUNK, urgent=False) for _ in range(2)]
    with trio.move_on_after(1) as limit:
        await buffers.take(CHUNK, urgent=False)
    assert limit.cancelled_caught
    held += [await buffers.take(CHUNK, urgent=True) for _ in range(2)]
    assert buffers.used_bytes == 4 * CHUNK
    assert buffers.waiting == 0


async def test_a_return_wakes_demand_before_prefetch() -> None:
    buffers = Buffers(2 * CHUNK, CHUNK)
    held = [await buffers.take(CHUNK, urgent=True) for _ in range(2)]
    order: list[str] = []

    async def take(name: str, urgent: bool) -> None:
        view = await buffers.take(CHUNK, urgent=urgent)
        order.append(name)
        del view

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "prefetch", False)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, "demand", True)
        await trio.testing.wait_all_tasks_blocked()
        held.clear()
    assert order == ["demand", "prefetch"]


async def test_a_return_from_another_thread_wakes(real_clock: None) -> None:
    buffers = Buffers(2 * CHUNK, CHUNK)
    held = [await buffers.take(CHUNK, urgent=True) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: buffers.take(CHUNK, urgent=True))
        await trio.testing.wait_all_tasks_blocked()
        thread = threading.Thread(target=held.clear)
        thread.start()
        await trio.to_thread.run_sync(thread.join)
    assert buffers.used_bytes <= 2 * CHUNK


async def test_a_cancelled_waiter_takes_nothing() -> None:
    buffers = Buffers(2 * CHUNK, CHUNK)
    held = [await buffers.take(CHUNK, urgent=True) for _ in range(2)]
    with trio.move_on_after(1):
        await buffers.take(CHUNK, urgent=True)
    assert buffers.waiting == 0
    held.clear()
    assert buffers.used_bytes == 0


async def test_memory_of_reads_that_hang_is_written_off() -> None:
    buffers = Buffers(4 << 20, 1 << 20)
    hung = [await buffers.take(1 << 20, urgent=True) for _ in range(4)]
    begin = trio.current_time()
    fresh = [await buffers.take(1 << 20, urgent=True) for _ in range(4)]
    assert 10 <= trio.current_time() - begin < 12
    with trio.move_on_after(100) as waiting:
        await buffers.take(1 << 20, urgent=True)
    assert waiting.cancelled_caught  # once more the budget, and no more
    fresh.clear()
    assert buffers.used_bytes == 0
    hung.clear()
    assert buffers.used_bytes == 0
    begin = trio.current_time()
    again = [await buffers.take(1 << 20, urgent=True) for _ in range(4)]
    assert trio.current_time() == begin
    assert buffers.used_bytes == sum(map(len, again))


async def test_a_waiter_that_gives_up_when_its_turn_has_come_passes_it_on() -> None:
    buffers = Buffers(2 * CHUNK, CHUNK)
    held = [await buffers.take(CHUNK, urgent=True) for _ in range(2)]

    async with trio.open_nursery() as nursery:
        first, start_s = trio.CancelScope(), trio.current_time()

        async def give_up() -> None:
            with first:
                await buffers.take(CHUNK, urgent=True)

        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(_take, buffers)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        held.pop()  # wakes the first, which has gone
    assert trio.current_time() == start_s


async def _take(buffers: Buffers) -> None:
    await buffers.take(CHUNK, urgent=True)


@pytest.mark.parametrize("size", [CHUNK, 4096])
async def test_without_memory_a_read_hears_so_and_holds_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Past the limit of this process (RLIMIT_AS, overcommit): the mount goes on."""
    buffers = Buffers(4 * CHUNK, CHUNK)

    def refuses(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as scarce:
        scarce.setattr("hfs.mountd.core.buffers.mmap.mmap", refuses)
        scarce.setattr("hfs.mountd.core.buffers.np.empty", refuses)
        with pytest.raises(SourceError, match="no memory"):
            await buffers.take(size, urgent=True)
    assert buffers.used_bytes == 0
    assert len(await buffers.take(size, urgent=True)) == size
