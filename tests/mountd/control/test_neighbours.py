"""Asking another daemon of the root for room: who listens where its record says, and what comes back."""

import os
import socket
import threading
from pathlib import Path

import pytest
import trio

from hfs.mountd.control import NeighbourDaemons
from hfs.mountd.wire.protocol import HEADER_BYTES, Result, Yield, decode_request, encode
from tests.conftest import Logs

pytestmark = pytest.mark.usefixtures("real_clock")


def neighbours() -> NeighbourDaemons:
    return NeighbourDaemons(trio.to_thread.run_sync)


async def asked(path: Path) -> tuple[int | None, list[bytes]]:
    """What comes of asking for 7 bytes at a socket of ours, and what its daemon, which gives 5, has heard."""
    heard: list[bytes] = []
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(os.fspath(path))
    listener.listen(1)

    async def answer() -> None:
        connection, _ = await listener.accept()
        async with trio.SocketStream(connection) as stream:
            heard.append(bytes(await stream.receive_some(1000)))
            if heard[0]:
                await stream.send_all(encode(Result(bytes=5)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        given = await neighbours().ask_to_yield(os.fsencode(path), 7)
    listener.close()
    return given, heard


async def test_a_daemon_of_ours_is_asked(tmp_path: Path) -> None:
    given, (request,) = await asked(tmp_path / "s")
    assert given == 5
    assert decode_request(request[HEADER_BYTES:]) == Yield(7)


async def test_nothing_is_said_to_whoever_else_listens_there(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.expect("is no socket of ours")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert await asked(tmp_path / "s") == (0, [b""])


async def test_where_nobody_listens(tmp_path: Path) -> None:
    assert await neighbours().ask_to_yield(os.fsencode(tmp_path / "s"), 7) is None


async def test_the_event_loop_goes_on_while_the_way_to_a_socket_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lead through our own mount, where only the loop answers."""
    begun, answered = threading.Event(), threading.Event()
    connect = socket.socket.connect

    def going(connection: socket.socket, path: str) -> None:
        begun.set()
        assert answered.wait(1)
        connect(connection, path)

    monkeypatch.setattr(socket.socket, "connect", going)
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
            answered.set()

        nursery.start_soon(answer)
        assert (await asked(tmp_path / "s"))[0] == 5


async def test_while_one_way_does_not_end_no_other_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is left behind, however often others are asked."""
    answered, gone = threading.Event(), 0

    def going(_connection: socket.socket, _path: str) -> None:
        nonlocal gone
        gone += 1
        answered.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", going)
    asking = neighbours()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.ask_to_yield, b"/s", 7)
        while not gone:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [await asking.ask_to_yield(b"/s", 7) for _ in range(3)] == [0, 0, 0]
    assert gone == 1
    answered.set()
    while await asking.ask_to_yield(b"/s", 7) is not None:  # it has come back: another one goes
        await trio.lowlevel.checkpoint()
