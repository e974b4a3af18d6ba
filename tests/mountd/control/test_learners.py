"""A learner that has left: what it said before is heard to the end."""

from __future__ import annotations

from collections.abc import Callable

import trio

from hfs.mountd.control.learners import serve_learner
from hfs.mountd.control.requester import Requester
from hfs.mountd.core.caller import Credentials
from hfs.mountd.wire.hints import LearnerMessage, Over, Waited
from hfs.mountd.wire.protocol import HEADER_BYTES, Failure, Join, Reply, Result, encode


class Session:
    def __init__(self) -> None:
        self.heard: list[LearnerMessage] = []
        self.left = False

    def refusal(self, size_bytes: int) -> Failure | None:
        return None

    async def receive(self, message: LearnerMessage) -> Result | Failure | None:
        self.heard.append(message)
        return Result() if isinstance(message, Over) else None

    def leave(self) -> None:
        self.left = True

    def join(self, join: Join, pid: int, reader: Credentials | None = None) -> tuple[Session, Result]:
        return self, Result()


async def test_who_takes_no_answer_any_more_is_heard_to_the_end() -> None:
    session, sent = Session(), list[Reply]()
    said = [Over(0), Waited(1, 0.25, 0.5, 0.125, 23), Over(1), Waited(2, 0.5, 0.5, 0.125, 23)]
    frames = [encode(message)[HEADER_BYTES:] for message in said]

    async def next_frame(_refusal: Callable[[int], Failure | None]) -> bytes | None:
        return frames.pop(0) if frames else None

    async def send(reply: Reply) -> None:
        if sent:
            raise trio.BrokenResourceError
        sent.append(reply)

    await serve_learner(session, Join("x"), Requester(1, Credentials(0, 0, ()), True), next_frame=next_frame, send=send)
    assert session.heard == said
    assert session.left
    assert sent == [Result()], "the answer to its joining"
