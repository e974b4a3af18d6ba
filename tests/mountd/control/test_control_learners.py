"""Learners' connections over real sockets, with the real `Learners` behind them: rude, broken, slow and many.

Whatever one of them does, the daemon answers the others. No time passes: limits are made short by the test.
"""

import contextlib
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import trio
import trio.testing

from hfs.mountd.control import connection, control
from hfs.mountd.core.caller import Credentials
from hfs.mountd.wire.hints import (
    MAX_PART_FRAME_BYTES,
    At,
    LayoutPart,
    LearnerMessage,
    Order,
    Over,
    Waited,
    layout_digest,
)
from hfs.mountd.wire.protocol import HEADER_BYTES, Failure, Join, Reply, Result, Status, encode
from tests.conftest import Logs
from tests.support.hint_clients import FILES, OTHERS, daemon, order

pytestmark = pytest.mark.usefixtures("real_clock")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def test_a_learner_that_says_nothing_is_waited_for_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between messages there is no limit: an epoch may take a day. Also before a layout that is wanted."""
    async with daemon(tmp_path / "s") as served:
        silent, wanted = await served.client(), await served.client()
        await silent.join()
        await wanted.say(Join(layout_digest(b"x"), name="wanted"))
        assert await wanted.heard() == Result(detail={"layout": "wanted"})
        monkeypatch.setattr(connection, "REQUEST_S", 0.0)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
        assert len(served.commands.learners) == 2
        monkeypatch.undo()
        await silent.say(order([3, 1]))
        assert await silent.heard() == Result(detail={"units": 2})
        await served.lives()


RUDE = {
    "a header of 10 GB": ((10 << 30).to_bytes(5, "big")[-4:], "is not allowed"),
    "the longest header": (b"\xff\xff\xff\xff", "is not allowed"),
    "an empty frame": (b"\0\0\0\0", "is not allowed"),
    "garbage": (frame(b"\xc1\xff\0garbage"), "means nothing"),
    "another language": (b"GET / HTTP/1.1\r\n\r\n", "is not allowed"),
    "an unknown type": (frame(msgspec.msgpack.encode({"type": "dance", "x": 1})), "means nothing"),
    "no type": (frame(msgspec.msgpack.encode([1, 2])), "means nothing"),
    "a request": (encode(Status()), "means nothing"),
    "a second join": (encode(Join("0" * 32)), "means nothing"),
    "a position that is no number": (frame(msgspec.msgpack.encode({"type": "at", "position": "5"})), "means nothing"),
    "a position beyond all numbers": (frame(msgspec.msgpack.encode({"type": "at", "position": 2.5})), "means nothing"),
    "nests": (frame(b"\x91" * 100_000), "means nothing"),
}


@pytest.mark.parametrize("name", RUDE)
async def test_who_does_not_speak_the_language_is_let_go(tmp_path: Path, name: str, logs: Logs) -> None:
    logs.expect("was let go")
    sent, why = RUDE[name]
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        await client.say(order([1, 2, 3]))
        assert isinstance(await client.heard(), Result)
        await client.say(sent)
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert why in answer.message
        assert await client.heard() is None
        assert len(served.commands.learners) == 0
        await served.lives()


@pytest.mark.parametrize("sent", [b"\0", b"\0\0\1", frame(bytes(500))[:300], MAX_PART_FRAME_BYTES.to_bytes(4, "big")])
@pytest.mark.parametrize("closes", [True, False])
async def test_half_a_frame(
    tmp_path: Path, sent: bytes, closes: bool, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        if closes:
            await client.say(sent)
            await served.leave(client)
        else:
            logs.expect("did not arrive within")
            monkeypatch.setattr(connection, "REQUEST_S", 0.0)
            await client.say(sent)
            answer = await client.heard()
            assert isinstance(answer, Failure)
            assert await client.heard() is None
            monkeypatch.undo()
        assert len(served.commands.learners) == 0
        await served.lives()


async def test_a_message_that_is_too_long_is_passed_over(tmp_path: Path, logs: Logs) -> None:
    """To look at it would take the event loop longer than a moment."""
    logs.expect("parts have")
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        await client.say(frame(bytes(MAX_PART_FRAME_BYTES + 1)), order([1]))
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert await client.heard() == Result(detail={"units": 1})
        await served.lives()


async def test_who_leaves_in_the_middle_of_a_layout_leaves_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.say(Join(layout_digest(FILES)), LayoutPart(FILES[:20], False))
        assert await client.heard() == Result(detail={"layout": "wanted"})
        await served.leave(client)
        assert not served.commands.learners.plans
        await served.lives()
        again = await served.client()
        assert (await again.join()).detail == {"layout": "wanted"}


async def test_messages_out_of_their_order(tmp_path: Path, logs: Logs) -> None:
    """Each is refused or passed over; the connection goes on."""
    logs.expect("is not followed")
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.say(Join(layout_digest(FILES)), At(5), Over(3), Waited(1, 1.0, 1.0, 1.0), order([1]))
        assert await client.heard() == Result(detail={"layout": "wanted"})
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert "before its layout" in answer.message
        await client.say(LayoutPart(FILES, True), LayoutPart(b"more", True), LayoutPart(b"more", False))
        assert [await client.heard(), await client.heard()] == [Result(), Result()]
        await client.say(Order(0, bytes(16), start=7))
        answer = await client.heard()
        assert isinstance(answer, Failure)
        assert "begins at 7" in answer.message
        await client.say(Order(1, bytes(16), last=False), At(1), Order(2, bytes(16), start=2))
        assert await client.heard() == Result(detail={"units": 4})
        await client.say(Over(77), order([2, 1], 1), order([1, 2], 0))  # backwards
        assert [await client.heard(), await client.heard()] == [Result(detail={"units": 2})] * 2
        await served.lives()


async def test_an_order_for_another_layout(tmp_path: Path, logs: Logs) -> None:
    logs.expect("names sample 7 of 2")
    logs.expect("not the one that was announced")
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join(OTHERS)
        await client.say(order([0, 7]))
        answer = await client.heard()
        assert isinstance(answer, Failure)
        await client.say(order([1, 0]))
        assert await client.heard() == Result(detail={"units": 2})
        wrong = await served.client()
        await wrong.say(Join(layout_digest(b"another")), LayoutPart(OTHERS, True))
        assert await wrong.heard() == Result(detail={"layout": "wanted"})
        answer = await wrong.heard()
        assert isinstance(answer, Failure)
        assert "not the one that was announced" in answer.message


async def test_three_hundred_connections(tmp_path: Path) -> None:
    """As many learners as there may be, the others refused; commands are answered besides, and places come free."""
    async with daemon(tmp_path / "s") as served:
        clients = []
        answers = []
        for rank in range(300):
            client = await served.client()
            clients.append(client)
            await client.say(Join(layout_digest(FILES), rank=rank, world=300, process=str(rank)))
            answers.append(await client.heard())
        assert [isinstance(answer, Result) for answer in answers] == [True] * 256 + [False] * 44
        assert "256 learners have joined" in answers[-1].message  # type: ignore[union-attr]  # the last answer is a Failure
        status = await served.client()
        await status.say(Status())
        answer = await status.heard()
        assert isinstance(answer, Result)
        assert len(answer.detail["hints"]["learners"]) == 256
        await served.leave(clients[0])
        await served.lives()


async def test_connections_that_do_not_join_take_no_place_from_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 4)
    async with daemon(tmp_path / "s") as served:
        learners = []
        for rank in range(20):
            learners.append(await served.client())
            await learners[-1].join(rank=rank, world=20, process=str(rank))
        silent = [await served.client() for _ in range(4)]
        refused = await served.client()
        answer = await refused.heard()
        assert isinstance(answer, Failure)
        await learners[7].say(order([1, 2]))
        assert await learners[7].heard() == Result(detail={"units": 2})
        for client in silent:
            await client.stream.aclose()
        await refused.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await served.lives()


@pytest.mark.slow
async def test_a_learner_that_floods(tmp_path: Path) -> None:
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        await client.say(order(range(8)))
        assert isinstance(await client.heard(), Result)
        flood = encode(At(3)) * 10_000 + encode(Waited(0, 1.0, 1.0, 1.0)) * 10_000 + encode(At(5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.say, flood)
            await served.lives()
        await client.say(order([1, 0], 1))
        assert await client.heard() == Result(detail={"units": 2})


async def test_a_learner_that_reads_no_answer_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(tmp_path / "s") as served:
        client = await served.client()
        await client.join()
        monkeypatch.setattr(connection, "SEND_S", 0.0)
        with contextlib.suppress(trio.BrokenResourceError):
            while len(served.commands.learners):
                await client.say(order([1]))
        monkeypatch.undo()
        await served.lives()


async def test_who_takes_no_answer_any_more_is_heard_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, sent = [], list[Reply]()
    said = [Over(0), Waited(1, 0.25, 0.5, 0.125, 23), Over(1), Waited(2, 0.5, 0.5, 0.125, 23)]
    frames = [encode(message)[HEADER_BYTES:] for message in said]

    async def receive(message: LearnerMessage) -> Result | None:
        heard.append(message)
        return Result() if isinstance(message, Over) else None

    async def next_frame(_refusal: object) -> bytes | None:
        return frames.pop(0) if frames else None

    async def send(reply: Reply) -> None:
        if sent:
            raise trio.BrokenResourceError
        sent.append(reply)

    learner, session = connection.ControlConnection(trio.testing.memory_stream_pair()[0]), Mock(receive=receive)
    monkeypatch.setattr(learner, "next_frame", next_frame)
    monkeypatch.setattr(learner, "send", send)
    learners = Mock(join=lambda *_: (session, Result()))
    await learner.follow(learners, Join("x"), connection.Requester(1, Credentials(0, 0, ()), is_owner=True))
    assert heard == said
    session.leave.assert_called_once_with()
    assert sent == [Result()], "the answer to its joining"
