"""Read slots of a job: so many reads of a file on all nodes together, in its order, and nothing stops them for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.asking import REST_S, SilentPeers
from hfs.mountd.peers.messages import SlotDone, SlotGranted, SlotPending, SlotRequest, decode
from hfs.mountd.peers.read_slots import HELD_S, ReadSlots
from hfs.policies.cluster.placement import NOBODY
from tests.support.examples import examples
from tests.support.fake_transport import FakeNetwork, FakeTransport

SILENCE_S = 10.0


class SlotMessages:
    """Hands what a node hears to its read slots."""

    def __init__(self, slots: ReadSlots) -> None:
        self._slots = slots
        self.lost = slots.lost

    def received(self, sender: int, data: bytes) -> None:
        message = decode(data)
        assert isinstance(message, SlotRequest | SlotPending | SlotGranted | SlotDone)
        self._slots.heard(sender, message)


class Nodes:
    """`count` of them in virtual time. The path of a file ends with the number of its coordinator: b"f0"."""

    def __init__(self, nursery: trio.Nursery, count: int, most: int) -> None:
        self.network = FakeNetwork(nursery, count)
        self.metrics = [Metrics() for _ in range(count)]
        self.silent = [SilentPeers() for _ in self.metrics]
        self.slots = [
            self._node(end, metrics, silent, nursery, most)
            for end, metrics, silent in zip(self.network.nodes, self.metrics, self.silent, strict=True)
        ]
        self.began: list[tuple[int, int]] = []
        self._reading: Counter[int] = Counter()
        self.most_at_once = 0

    @staticmethod
    def _node(end: FakeTransport, metrics: Metrics, silent: SilentPeers, nursery: trio.Nursery, most: int) -> ReadSlots:
        def owner(path: bytes, _index: int) -> int:
            return NOBODY if path.endswith(b"?") else int(path[-1:])

        slots = ReadSlots(end, owner, nursery, metrics, silent, most=most, silence_s=SILENCE_S, patience_s=2)
        end.listen(SlotMessages(slots))
        return slots

    async def read(self, node: int, index: int, *, path: bytes = b"f1", urgent: bool = False, for_s: float = 1) -> None:
        """Chunk `index`, by one node."""
        async with self.slots[node].held(path, index, urgent=urgent):
            self.began.append((node, index))
            self._reading[node] += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await trio.sleep(for_s)
            finally:
                self._reading[node] -= 1

    @property
    def at_once(self) -> int:
        """Reads under way on nodes that live."""
        return sum(count for node, count in self._reading.items() if node not in self.network.dead)

    def rest(self) -> None:
        """Nothing is wanted, held or kept any more."""
        assert [len(slots) for slots in self.slots] == [0] * len(self.slots)


@asynccontextmanager
async def nodes_of(count: int = 3, most: int = 2) -> AsyncIterator[Nodes]:
    async with trio.open_nursery() as nursery:
        yield Nodes(nursery, count, most)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("most", [1, 2])
async def test_so_many_of_all_nodes_at_once(most: int) -> None:
    async with nodes_of(most=most) as nodes:
        async with trio.open_nursery() as readers:
            for index in range(7):
                readers.start_soon(nodes.read, index % 3, index)
        assert nodes.most_at_once == most
        await trio.sleep(1)
        nodes.rest()


async def test_in_the_order_of_the_file() -> None:
    async with nodes_of(most=1) as nodes:
        async with trio.open_nursery() as readers:
            readers.start_soon(nodes.read, 0, 4)
            await trio.sleep(0.5)
            for index in (9, 2, 11, 7, 0, 5):
                readers.start_soon(nodes.read, index % 3, index)
        assert [index for _, index in nodes.began] == [4, 5, 7, 9, 11, 0, 2]


async def test_readers_go_first() -> None:
    async with nodes_of(most=1) as nodes:
        async with trio.open_nursery() as readers:
            readers.start_soon(nodes.read, 0, 0)
            await trio.sleep(0.5)
            for index in (1, 2):
                readers.start_soon(nodes.read, 2, index)
            readers.start_soon(lambda: nodes.read(0, 7, urgent=True))
        assert nodes.began == [(0, 0), (0, 7), (2, 1), (2, 2)]


async def test_files_do_not_wait_for_each_other() -> None:
    async with nodes_of(most=1) as nodes:
        start_s = trio.current_time()
        async with trio.open_nursery() as readers:
            for path in (b"a0", b"b0", b"a1", b"a?"):
                readers.start_soon(lambda path: nodes.read(2, 0, path=path), path)
        assert trio.current_time() - start_s < 1.1


async def test_a_long_queue_is_waited_for() -> None:
    """As long as its coordinator says that the slot comes."""
    async with nodes_of(most=1) as nodes:
        async with trio.open_nursery() as readers:
            for index in range(3):
                readers.start_soon(lambda index: nodes.read(0, index, for_s=2 * SILENCE_S), index)
        assert nodes.most_at_once == 1
        assert sum(metrics["peer_faults"] for metrics in nodes.metrics) == 0


async def test_a_lost_holder_blocks_nobody() -> None:
    async with nodes_of(most=1) as nodes, trio.open_nursery() as readers:
        readers.start_soon(lambda: nodes.read(2, 0, for_s=1000))
        await trio.sleep(1)
        readers.start_soon(lambda: nodes.read(2, 1, for_s=1000))  # it waits, and is lost with it
        readers.start_soon(nodes.read, 0, 3)
        await trio.sleep(1)
        nodes.network.kill(2)
        await trio.sleep(0.1)
        assert nodes.began == [(2, 0), (0, 3)]
        readers.cancel_scope.cancel()


async def test_a_holder_that_hangs_blocks_for_a_while() -> None:
    async with nodes_of(most=1) as nodes:
        nodes.network.fault = lambda sender, _to, message: (
            None if sender == 2 and isinstance(decode(message), SlotDone) else message
        )
        await nodes.read(2, 0)
        start_s = trio.current_time()
        await nodes.read(0, 1)
        assert trio.current_time() - start_s == pytest.approx(HELD_S, abs=3)
        await trio.sleep(1)
        nodes.network.release()  # what it says in the end takes nobody's slot away
        async with trio.open_nursery() as readers:
            for index in range(3):
                readers.start_soon(nodes.read, 0, index)
        assert nodes.at_once == 0
        assert nodes.most_at_once == 1


async def test_a_lost_coordinator_blocks_nobody() -> None:
    async with nodes_of(most=1) as nodes, trio.open_nursery() as readers:
        readers.start_soon(lambda: nodes.read(0, 0, for_s=1000))
        readers.start_soon(lambda: nodes.read(2, 1, for_s=1000))
        await trio.sleep(1)
        assert nodes.at_once == 1
        nodes.network.kill(1)
        await trio.sleep(0.1)
        assert nodes.at_once == 2
        readers.cancel_scope.cancel()


async def test_a_coordinator_that_hangs_is_asked_once_in_a_while() -> None:
    async with nodes_of(most=1) as nodes:
        nodes.network.fault = lambda _sender, to, message: None if to == 1 else message
        start_s = trio.current_time()
        async with trio.open_nursery() as readers:
            readers.start_soon(nodes.read, 0, 0)
            await trio.sleep(SILENCE_S / 2)
            readers.start_soon(nodes.read, 0, 1)  # it does not wait for a silence of its own
        assert trio.current_time() - start_s == pytest.approx(SILENCE_S + 1)
        start_s = trio.current_time()
        await nodes.read(0, 2)
        assert trio.current_time() - start_s == pytest.approx(1)
        assert nodes.metrics[0]["peer_faults"] == 1
        nodes.network.fault = lambda _sender, _to, message: message
        await trio.sleep(REST_S)
        await nodes.read(0, 3)
        await trio.sleep(1)
        assert len(nodes.slots[1]) == 0


async def test_a_coordinator_that_was_silent_when_asked_for_bytes_is_not_asked_for_slots() -> None:
    async with nodes_of(most=1) as nodes:
        nodes.network.fault = lambda _sender, to, message: None if to == 1 else message
        assert nodes.silent[0].hangs(1) == REST_S
        start_s = trio.current_time()
        await nodes.read(0, 0)
        assert trio.current_time() - start_s == pytest.approx(1)
        assert nodes.metrics[0]["peer_faults"] == 0


async def test_who_gives_up_leaves_his_place() -> None:
    async with nodes_of(most=1) as nodes:
        async with trio.open_nursery() as readers:
            readers.start_soon(nodes.read, 0, 0)
            await trio.sleep(0.5)
            with trio.move_on_after(0.1):
                await nodes.read(2, 1)
        await nodes.read(2, 2)
        assert [index for _, index in nodes.began] == [0, 2]
        await trio.sleep(1)
        nodes.rest()


@settings(max_examples=examples(60))
@given(
    most=st.integers(1, 3),
    reads=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans(), st.floats(0, 5), st.floats(0.1, 20)), max_size=20
    ),
    dies=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.floats(0, 20))),
)
def test_all_read_and_never_too_many(
    most: int, reads: list[tuple[int, int, bool, float, float]], dies: tuple[int, float] | None
) -> None:
    async def run() -> None:
        async with nodes_of(4, most) as nodes:
            done: list[int] = []
            lives = [trio.CancelScope() for _ in reads]

            async def one(number: int, node: int, index: int, urgent: bool, after_s: float, for_s: float) -> None:
                with lives[number]:
                    await trio.sleep(after_s)
                    await nodes.read(node, index, urgent=urgent, for_s=for_s)
                    done.append(number)

            async with trio.open_nursery() as readers:
                for number, read in enumerate(reads):
                    readers.start_soon(one, number, *read)
                if dies is not None:
                    await trio.sleep(dies[1])
                    for read, life in zip(reads, lives, strict=True):
                        if read[0] == dies[0]:
                            life.cancel()
                    nodes.network.kill(dies[0])
            alive = [number for number, read in enumerate(reads) if dies is None or read[0] != dies[0]]
            assert set(alive) <= set(done)
            if dies is None or dies[0] != 1:  # with its coordinator the order is lost, not the reads
                assert nodes.most_at_once <= most
            await trio.sleep(1)
            for number, slots in enumerate(nodes.slots):
                assert number == (dies or (None,))[0] or len(slots) == 0

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)
