"""What learners' connections may make the daemon hold: bounded, over real sockets with the real `Learners` behind.

Whatever one of them does, the daemon answers the others.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.files import readers as readers_file
from hfs.mountd.hints import plan_registry
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.wire.hints import At, LayoutFrame, LayoutPart, Order, Waited, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Failure, Join, Message, Record, Result, Touches, encode
from tests.conftest import Logs
from tests.support.hint_clients import daemon, layout_parts, order, order_parts
from tests.support.hinted_orders import shown

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_times_that_are_none_are_not_taken(tmp_path: Path) -> None:
    """What is shown to people and as JSON are finite numbers."""
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        await client.say(order([1, 2]))
        assert isinstance(await client.heard(), Result)
        for wrong in (math.nan, math.inf, -math.inf, -1.0, 1e300):
            await client.say(Waited(0, wrong, 1.0, 1.0, 5), Waited(0, 1.0, wrong, 1.0), Waited(0, 1.0, 1.0, wrong))
        await client.say(Waited(0, 1.0, 2.0, 3.0, -4), order([1], 1))
        assert isinstance(await client.heard(), Result)
        (learner,) = (await shown(served.commands.learners))["learners"]
        assert [(each["exposed_s"], each["batches"]) for each in learner["epochs"]] == [(0.0, 0), (0.0, 0)]
        await served.lives()


@pytest.mark.parametrize("field", ["layout", "name", "job", "process"])
async def test_names_are_short(tmp_path: Path, field: str) -> None:
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.say(Join(**{"layout": "0" * 32, field: "x" * 10_000}))  # type: ignore[arg-type]  # the field is a parameter
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert field in answer.message
        assert await client.heard() is None
        await served.lives()


async def test_a_defect_ends_one_connection(tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.expect("was let go")
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        with monkeypatch.context() as broken:
            broken.setattr(HintSession, "reached", lambda *_: 1 // 0)
            await client.say(At(1))
            answer = await client.heard()
        assert isinstance(answer, Failure)
        assert "its log says more" in answer.message
        assert await client.heard() is None
        assert len(served.commands.learners) == 0
        await served.lives()


def extents(count: int, size: int, file_size: int, files: int = 1) -> bytes:
    return encode_layout(
        LayoutFrame(
            files=b"\0".join(b"f%d" % i for i in range(files)),
            extents=np.zeros(count, "<i4").tobytes(),
            offsets=np.zeros(count, "<i8").tobytes(),
            sizes=np.full(count, size, "<i8").tobytes(),
            starts=np.array([0, count], "<i8").tobytes(),
            file_sizes=np.full(files, file_size, "<i8").tobytes(),
        )
    )


HUGE: dict[str, Callable[[], bytes]] = {
    "a file of 4 EiB": lambda: extents(1, 1, 1 << 62),
    "files that overflow together": lambda: extents(1, 1, 1 << 62, files=1 << 20),
    "a billion chunks": lambda: extents(1, 1, 1 << 53),
}


@pytest.mark.parametrize("name", HUGE)
async def test_layouts_whose_plan_would_need_too_much_memory(tmp_path: Path, name: str, logs: Logs) -> None:
    logs.expect("is not followed")
    blob = HUGE[name]()
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.say(Join(layout_digest(blob)), *layout_parts(blob))
        assert await client.heard() == Result(detail={"layout": "wanted"})
        assert isinstance(await client.heard(), Failure)
        assert not served.commands.learners.plans
        await served.lives()


async def test_an_order_whose_samples_are_millions_of_extents(tmp_path: Path, logs: Logs) -> None:
    """A million times a sample of a million extents: counted before anything of that size is made."""
    logs.expect("is not followed")
    blob = extents(1_000_000, 1, 10)
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join(blob)
        await client.say(*order_parts(np.zeros(1_000_000, np.int64)))
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert "more than the" in answer.message
        await client.say(order([0]))
        assert isinstance(await client.heard(), Result)
        await served.lives()


@pytest.mark.parametrize("what", ["layouts", "orders"])
async def test_what_learners_have_sent_in_part_is_bounded_over_all(
    tmp_path: Path, what: str, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.expect("is not followed")
    monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", 1 << 20)

    def part(number: int, size: int, *, last: bool) -> tuple[Message, ...]:
        if what == "layouts":
            blob = bytes(size) if not last else encode_layout(LayoutFrame(files=b"f" * size))
            return Join(layout_digest(blob), name=str(number)), LayoutPart(blob, last)
        return (Order(0, bytes(size // 16 * 8), last=last),)

    async with daemon(tmp_path / "s") as served:
        clients = [await served.client() for _ in range(10)]
        for number, client in enumerate(clients):
            if what == "orders":
                await client.join(rank=number, world=10)
            await client.say(*part(number, 100_000, last=False))
            await trio.testing.wait_all_tasks_blocked()
        refused = await served.client()
        if what == "orders":
            await refused.join(name="refused")
        await refused.say(*part(99, 300_000, last=True))
        answer = await refused.heard()
        while isinstance(answer, Result):
            answer = await refused.heard()
        assert isinstance(answer, Failure)
        assert "more than the" in answer.message
        for client in clients:
            await served.leave(client)
        again = await served.client()
        if what == "orders":
            await again.join(name="again")
        await again.say(*part(100, 300_000, last=True))
        for _ in range(2 if what == "layouts" else 1):
            assert isinstance(await again.heard(), Result)


async def test_a_recording_that_is_not_read_is_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers_file, "_MAX_WAITING", 1000)
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.say(Record())
        await served.commands.recording.wait()
        root = Node(attributes(0o40755), None, None, b"")
        node = Node(attributes(0o100644), None, root, b"x" * 200)
        sent = 0
        for _ in range(60):  # more than the socket takes
            for _ in range(200):
                served.commands.recorder.touched(node, sent, 10, 0)
                sent += 1
            await trio.testing.wait_all_tasks_blocked()
        await served.lives()
        await trio.testing.wait_all_tasks_blocked()
        heard = lost = 0
        while heard + lost < sent:
            part = await client.heard()
            assert isinstance(part, Touches)
            assert [touch.offset for touch in part.touches] == sorted(touch.offset for touch in part.touches)
            heard += len(part.touches)
            lost += part.lost
        assert lost > 0
        assert heard + lost == sent
        await client.stream.aclose()
        await served.commands.recorded.wait()
        assert not served.commands.recorder.active


def attributes(mode: int) -> Attributes:
    return Attributes(mode, *[0] * 11)


async def test_a_message_counts_from_its_first_byte(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that announces much, sends it but for the end, holds no more than what is kept of hints."""
    logs.expect("is not followed")
    monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", 1 << 20)
    frame = encode(order([0] * 62_500))
    async with daemon(tmp_path / "s") as served:
        crowd = [await served.client() for _ in range(3)]
        for number, client in enumerate(crowd):
            await client.join(rank=number, world=3)
            await client.say(frame[:-1])
            await trio.testing.wait_all_tasks_blocked()
        await crowd[2].say(frame[-1:])
        answer = await crowd[2].heard()
        assert isinstance(answer, Failure)
        assert "more than the" in answer.message
        for client in crowd[:2]:
            await served.leave(client)
        await crowd[2].say(order([0]))
        assert isinstance(await crowd[2].heard(), Result), "it is followed from the next order on"
        await served.lives()
