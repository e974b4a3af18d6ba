"""Asking another daemon of the root for room: who listens where its record says, and what comes back."""

import os
from pathlib import Path

import trio

from hfs.mountd.control import ask_to_yield
from hfs.mountd.wire.protocol import HEADER_BYTES, Result, Yield, decode_request, encode
from tests.conftest import Logs


async def asked(path: Path, owner: int) -> tuple[int | None, list[bytes]]:
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
        given = await ask_to_yield(os.fsencode(path), owner, 7)
    listener.close()
    return given, heard


async def test_a_daemon_of_its_owner_is_asked(tmp_path: Path) -> None:
    given, (request,) = await asked(tmp_path / "s", os.geteuid())
    assert given == 5
    assert decode_request(request[HEADER_BYTES:]) == Yield(7)


async def test_nothing_is_said_to_whoever_else_listens_there(tmp_path: Path, logs: Logs) -> None:
    """A record of another user's may name any socket, of root's too."""
    logs.expect("is no socket of user")
    assert await asked(tmp_path / "s", os.geteuid() + 1) == (0, [b""])


async def test_where_nobody_listens(tmp_path: Path) -> None:
    assert await ask_to_yield(os.fsencode(tmp_path / "s"), os.geteuid(), 7) is None
