"""Memory that fetching holds is bounded: what is kept in case it is wanted goes first, and pushes wait for room."""

from __future__ import annotations

import trio
import trio.testing

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.limits import Memory
from hfs.mountd.fetch import PagePusher, Push
from hfs.mountd.fetch.chunks.held import ChunkMemory
from hfs.mountd.namespace import Node
from hfs.policies.geometry import Extent
from tests.support.small_parts import CHUNK, SIZE, parts_of, tree

VERSION = Version("f" * 16, 1, 4 * CHUNK, 1, 1)


async def test_a_reader_gets_the_memory_of_what_is_only_kept_for_a_while() -> None:
    for soon in (False, True):
        buffers = Buffers(4 * CHUNK, CHUNK)
        held = ChunkMemory(buffers, time_limit_s=1)
        taken = [await buffers.take(CHUNK, urgent=True) for _ in range(4)]
        held.keep((VERSION, 0), taken.pop(), soon=soon)
        assert held.chunk(VERSION, 0) is not None
        assert not buffers.fits_nowait(CHUNK)
        assert len(await held.take_urgent(CHUNK)) == CHUNK
        assert held.chunk(VERSION, 0) is None


async def test_pushes_wait_until_the_kernel_has_taken_enough() -> None:
    may_end = trio.Event()

    class Slow:
        async def push(self, node: Node, offset: int, data: memoryview) -> bool:
            await may_end.wait()
            return True

        async def push_whole(self, node: Node, data: memoryview) -> bool:
            raise AssertionError

    async with parts_of(tree()) as parts, trio.open_nursery() as nursery:
        node = await parts.namespace.lookups.resolve(b"d/0")
        parts.namespace.holds.referenced(node)
        pusher = PagePusher(
            Slow(),
            parts.staging,  # type: ignore[arg-type]  # a fake
            Memory(trio.current_time),
            nursery,
            is_recorded=lambda: False,
            buffer_bytes=4 * SIZE,
        )
        pusher.start_nowait(node, Extent(0, SIZE), memoryview(bytes(SIZE)), Push.WHOLE)
        nursery.start_soon(pusher.wait_room, SIZE)
        await trio.testing.wait_all_tasks_blocked()
        waiting = len(nursery.child_tasks)
        may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (waiting, len(nursery.child_tasks)) == (2, 0)
