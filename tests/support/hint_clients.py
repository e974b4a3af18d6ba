"""Clients of the control socket that may send anything, and the real `serve`, `Learners` and `Recorder` behind it.

For tests/mountd/control/test_control_learners.py and its neighbour of bounds. Not a test module.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from hfs.mountd.control.connection import Report
from hfs.mountd.control.control import serve
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.readers import Recorder
from hfs.mountd.hints.hints import Learners
from hfs.mountd.wire.hints import PART_BYTES, LayoutFrame, LayoutPart, Order, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join, Message, Reply, Result, Status, Touches, decode_reply, encode
from tests.support.fake_commands import FakeCommands

FILES = encode_layout(LayoutFrame(files=b"\0".join(b"f%d" % i for i in range(8))))
OTHERS = encode_layout(LayoutFrame(files=b"a\0b"))


class HintCommands(FakeCommands):
    """The real ones of learners and recordings."""

    def __init__(self) -> None:
        super().__init__()
        self.learners = Learners(8 << 20, Metrics(), trio.to_thread.run_sync, changed=lambda: self.left.set())
        self.recorder = Recorder()
        self.recording = trio.Event()
        self.recorded = trio.Event()
        self.left = trio.Event()

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        return {"hints": await self.learners.status(reader)}

    async def record(self, report: Report) -> Result:
        recording = self.recorder.start()
        self.recording.set()
        try:
            while True:
                await report(Touches(*await recording.take()))
        finally:
            self.recorder.stop(recording)
            self.recorded.set()


class Client:
    """One connection, from a client that may send anything."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    async def say(self, *messages: Message | bytes) -> None:
        for message in messages:
            await self.stream.send_all(message if isinstance(message, bytes) else encode(message))

    async def heard(self) -> Reply | None:
        """The next answer; None: the daemon has closed."""
        while len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:4], "big"):
            try:
                part = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                part = b""
            if not part:
                assert not self._data
                return None
            self._data += part
        end = 4 + int.from_bytes(self._data[:4], "big")
        reply, self._data = decode_reply(self._data[4:end]), self._data[end:]
        return reply

    async def join(self, blob: bytes = FILES, **options: object) -> Result:
        """Join and bring the layout if it is wanted."""
        await self.say(Join(layout_digest(blob), **options))  # type: ignore[arg-type]  # options of Join
        answer = await self.heard()
        assert isinstance(answer, Result), answer
        if answer.detail["layout"] == "wanted":
            await self.say(*layout_parts(blob))
            assert isinstance(await self.heard(), Result)
        return answer


def layout_parts(blob: bytes) -> list[LayoutPart]:
    """As a learner sends a layout."""
    starts = range(0, len(blob), PART_BYTES)
    return [LayoutPart(blob[start : start + PART_BYTES], start + PART_BYTES >= len(blob)) for start in starts]


def order_parts(indices: npt.NDArray[np.int64], epoch: int = 0, *, following: bool = False) -> list[Order]:
    """As a learner sends an order."""
    step = PART_BYTES // 8
    return [
        Order(epoch, indices[start : start + step].tobytes(), start, start + step >= len(indices), following)
        for start in range(0, max(1, len(indices)), step)
    ]


class Daemon:
    def __init__(self, path: str, commands: HintCommands, stack: contextlib.AsyncExitStack) -> None:
        self.path, self.commands, self._stack = path, commands, stack

    async def client(self) -> Client:
        return Client(await self._stack.enter_async_context(await trio.open_unix_socket(self.path)))

    async def lives(self) -> None:
        """Another learner joins, sends an order and is answered; so is a status."""
        other = await self.client()
        await other.join(OTHERS, name="other", process="other")
        await other.say(order([1, 0]))
        assert await other.heard() == Result(detail={"units": 2})
        status = await self.client()
        await status.say(Status())
        answer = await status.heard()
        assert isinstance(answer, Result)
        json.dumps(answer.detail, allow_nan=False)
        await self.leave(other)

    async def leave(self, client: Client) -> None:
        """The client goes, and the daemon has noticed."""
        before = len(self.commands.learners)
        self.commands.left = trio.Event()
        await client.stream.aclose()
        if before:
            while len(self.commands.learners) == before:
                await self.commands.left.wait()
                self.commands.left = trio.Event()


@contextlib.asynccontextmanager
async def daemon(path: Path) -> AsyncIterator[Daemon]:
    commands = HintCommands()
    async with (
        trio.open_nursery() as nursery,
        serve(str(path), commands.all(), nursery, OpenFiles(1024)),
        contextlib.AsyncExitStack() as stack,
    ):
        yield Daemon(str(path), commands, stack)


def order(indices: Sequence[int], epoch: int = 0) -> Order:
    return Order(epoch, np.array(indices, "<i8").tobytes())
