"""The control socket, with real sockets and a fake daemon behind it: good clients, bad ones, slow ones, too many.

No time passes but the clock's own: limits are made short by the test or met at once.
"""

import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from hfs.mountd.control import connection, control
from hfs.mountd.control.connection import ControlConnection, Report
from hfs.mountd.control.control import control_socket, serve, socket_path
from hfs.mountd.core import socket_places
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.core.socket_places import SocketPeer, prefix_of
from hfs.mountd.wire.protocol import (
    Check,
    Evict,
    Failure,
    Join,
    List,
    PathFault,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Result,
    Row,
    Rows,
    Status,
    Warm,
    decode_reply,
    encode,
)
from tests.support.fake_commands import FakeCommands

pytestmark = pytest.mark.usefixtures("real_clock")


def config(path: Path | None, mountpoint: str = "/m") -> Config:
    return Config(source="/s", mountpoint=mountpoint, cache="/c", control=None if path is None else str(path))


@contextlib.asynccontextmanager
async def served(path: Path | None, commands: FakeCommands) -> AsyncIterator[str]:
    place = socket_path(config(path))
    async with trio.open_nursery() as nursery, serve(place, commands.all(), nursery, OpenFiles(1024)):
        yield place


async def replies(stream: trio.SocketStream) -> list[Reply]:
    """All replies until the daemon closes."""
    data = b""
    # Closing with something unread is a reset to the other end, after what was sent to it.
    with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
        while part := await stream.receive_some(65536):
            data += part
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_reply(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


async def ask(path: str | Path, frame: bytes) -> list[Reply]:
    stream = await trio.open_unix_socket(path)
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(frame)
        return await replies(stream)


async def test_each_request_reaches_its_command(tmp_path: Path) -> None:
    commands = FakeCommands()
    async with served(tmp_path / "s", commands) as path:
        assert await ask(path, encode(Status())) == [Result(detail={"pid": 5, "path": "caf\\udce9"})]
        for request in (
            Warm([b"a", b"\xff"], 3),
            Evict([], all=True),
            Check([b"c"], against_source=True),
            List([]),
        ):
            assert await ask(path, encode(request)) == [Result()]
    assert commands.calls == [
        ("status",),
        ("warm", [b"a", b"\xff"], 3),
        ("evict", [], True),
        ("check", [b"c"], True),
        ("list", []),
    ]


async def test_the_socket_is_private_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with served(path, FakeCommands()) as place:
        assert place == str(path)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not path.exists()
    async with served(path, FakeCommands()):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


async def test_progress_rows_and_faults_arrive_once(tmp_path: Path) -> None:
    async def work(report: Report) -> Result:
        for n in range(100):
            await report(Progress(files=n, faults=[PathFault(b"p%d" % n, "gone")]))
        await report(Rows([Row(b"x", 1, 1, complete=True)]))
        await report(Rows([Row(b"y", 1, 1, complete=True)]))
        return Result(files=100, failed=101, faults=[PathFault(b"last", "gone")], detail={"k": 1})

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        got = await ask(path, encode(Warm([])))
    progress = [reply for reply in got if isinstance(reply, Progress)]
    assert 1 <= len(progress) < 100
    assert [reply.rows[0].path for reply in got if isinstance(reply, Rows)] == [b"x", b"y"]
    last = got[-1]
    assert isinstance(last, Result)
    assert (last.files, last.failed, last.detail) == (100, 101, {"k": 1})
    named = [fault.path for reply in (*progress, last) for fault in reply.faults]
    assert named == [*(b"p%d" % n for n in range(100)), b"last"]


@pytest.mark.parametrize(
    ("frame", "message", "code"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes", 2),
        (b"\0\0\0\0", "a frame of 0 bytes", 2),
        (b"\0\0\0\1\xc1", "means nothing", 2),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of", 2),
        (b"\0\0\0\x0b" + msgspec.msgpack.encode({"type": "x"})[:11].ljust(11, b"\0"), "means nothing", 2),
    ],
)
async def test_a_bad_frame_is_told_and_closed(tmp_path: Path, frame: bytes, message: str, code: int) -> None:
    commands = FakeCommands()
    async with served(tmp_path / "s", commands) as path:
        (reply,) = await ask(path, frame)
        assert isinstance(reply, Failure)
        assert (message in reply.message, reply.code) == (True, code)
        assert await ask(path, encode(Status()))  # it lives
    assert commands.calls == [("status",)]


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (ConfigError("no such path"), Failure("no such path", 2)),
        (MountError("no"), Failure("no", 1)),
        (OSError(5, "Input/output error"), Failure("[Errno 5] Input/output error", 1)),
        (ExceptionGroup("nursery", [MountError("wrapped")]), Failure("wrapped", 1)),
    ],
)
async def test_what_a_command_raises_is_told(tmp_path: Path, error: Exception, reply: Failure) -> None:
    async def work(report: Report) -> Result:
        raise error

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        assert await ask(path, encode(Check([]))) == [reply]


async def test_a_defect_is_logged_and_told(tmp_path: Path, logs: Any) -> None:
    logs.expect("control: check failed")

    async def work(report: Report) -> Result:
        raise ZeroDivisionError("defect")

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        (reply,) = await ask(path, encode(Check([])))
        assert isinstance(reply, Failure)
        assert "ZeroDivisionError" in reply.message
        assert await ask(path, encode(Status()))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Warm([b""], -1), "Expected `int` >= 0 - at `$.jobs`"),
        (Warm([b""], 1025), "Expected `int` <= 1024 - at `$.jobs`"),
        (Warm([b""], 2**63), "Expected `int` <= 1024 - at `$.jobs`"),
        (Warm(["text"], 1), "Expected `bytes`, got `str`"),  # type: ignore[list-item]  # what a client may send
        (Evict([b"a"], 1), "Expected `bool`, got `int`"),  # type: ignore[arg-type]  # wrong on purpose
        (Check({}, False), "Expected `array`, got `object`"),  # type: ignore[arg-type]  # wrong on purpose
        (Join("0" * 32, rank=-1), "Expected `int` >= 0 - at `$.rank`"),
        (Join("0" * 32, world=0), "Expected `int` >= 1 - at `$.world`"),
        (Join("0" * 32, rank=5, world=2**40), "at `$.world`"),
    ],
)
async def test_numbers_out_of_range_do_nothing_and_say_why(tmp_path: Path, request_: Request, why: str) -> None:
    """A warm with fewer than no jobs would never end; one with a thousand million would take all memory."""
    commands = FakeCommands()
    async with served(tmp_path / "s", commands) as path:
        (reply,) = await ask(path, encode(request_))
        assert isinstance(reply, Failure)
        assert why in reply.message
        assert reply.code == 2
        assert commands.calls == []
        assert await ask(path, encode(Status()))


async def test_an_answer_that_cannot_be_sent_is_a_failure(tmp_path: Path) -> None:
    async def work(report: Report) -> Result:
        return Result(detail={"object": object()})

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        (reply,) = await ask(path, encode(Check([])))
        assert isinstance(reply, Failure)
        assert "cannot be sent" in reply.message


async def test_a_client_that_leaves_cancels_its_command(tmp_path: Path) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def work(report: Report) -> Result:
        started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise
        raise AssertionError

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        stream = await trio.open_unix_socket(path)
        await stream.send_all(encode(Warm([])))
        await started.wait()
        await stream.aclose()
        await cancelled.wait()
        assert await ask(path, encode(Status()))


async def test_a_client_that_speaks_out_of_turn_is_cut_off(tmp_path: Path) -> None:
    async def work(report: Report) -> Result:
        await trio.sleep_forever()
        raise AssertionError

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        assert await ask(path, encode(Warm([])) + encode(Status())) == []


@pytest.mark.parametrize("part", [b"", b"\0\0", encode(Status())[:-1]])
async def test_a_slow_request_is_told_and_a_client_without_one_is_let_go(
    tmp_path: Path, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path / "s", FakeCommands()) as path:
        stream = await trio.open_unix_socket(path)
        await stream.send_all(part)
        await stream.aclose()
        monkeypatch.setattr(connection, "REQUEST_S", 0.0)
        (reply,) = await ask(path, part)
        assert isinstance(reply, Failure)
        assert "did not arrive" in reply.message


async def test_a_client_that_stops_reading_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SEND_S", 0.0)
    ended = trio.Event()

    async def work(report: Report) -> Result:
        try:
            while True:
                await report(Rows([Row(bytes(65536), 1, 1, complete=True)]))
        finally:
            ended.set()

    async with served(tmp_path / "s", FakeCommands(work)) as path:
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(encode(List([])))
            await ended.wait()
        monkeypatch.undo()
        assert await ask(path, encode(Status()))


async def test_too_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 2)

    async def work(report: Report) -> Result:
        await report(Progress())
        await trio.sleep_forever()
        raise AssertionError

    async with served(tmp_path / "s", FakeCommands(work)) as path, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            stream = await stack.enter_async_context(await trio.open_unix_socket(path))
            await stream.send_all(encode(Warm([])))
            assert await stream.receive_some()
        (reply,) = await ask(path, encode(Status()))
        assert isinstance(reply, Failure)
        assert f"2 commands of user {os.getuid()} are running" in reply.message
        await stack.aclose()
        while not isinstance((await ask(path, encode(Status())))[0], Result):
            await trio.lowlevel.checkpoint()


async def test_a_user_who_takes_all_connections_has_taken_only_his_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 3)
    who = [12345]
    monkeypatch.setattr(connection, "socket_peer", lambda _connection: SocketPeer(1, who[0], 100))
    monkeypatch.setattr(connection, "socket_peer_groups", lambda _connection: ())
    path = socket_path(config(tmp_path / "s"))
    async with contextlib.AsyncExitStack() as stack, trio.open_nursery() as nursery:
        silent = contextlib.AsyncExitStack()
        await stack.enter_async_context(silent)
        commands = FakeCommands().all()
        async with serve(path, commands, nursery, OpenFiles(1024), others=True):
            for _ in range(5):
                await silent.enter_async_context(await trio.open_unix_socket(path))
            await trio.testing.wait_all_tasks_blocked()
            (reply,) = await ask(path, encode(Status()))
            assert isinstance(reply, Failure)
            assert "3 commands of user 12345" in reply.message
            for uid in (12346, 0, 12347):
                who[0] = uid
                assert isinstance((await ask(path, encode(Status())))[0], Result)
            await silent.aclose()
            await trio.testing.wait_all_tasks_blocked()
            who[0] = 12345
            assert isinstance((await ask(path, encode(Status())))[0], Result)


async def test_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Any) -> None:
    logs.expect("was refused")
    # What the kernel would say of a process of user 12345.
    monkeypatch.setattr(connection, "socket_peer", lambda _connection: SocketPeer(1, 12345, 12345))
    commands = FakeCommands()
    async with served(tmp_path / "s", commands) as path:
        (reply,) = await ask(path, b"")
        assert isinstance(reply, Failure)
        assert "only root and the owner" in reply.message
    assert commands.calls == []


def bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    return listener


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    bound(tmp_path / "s").close()
    async with served(tmp_path / "s", FakeCommands()) as path:
        assert await ask(path, encode(Status()))


def error_of(path: Path) -> str:
    with pytest.raises(MountError) as caught, control_socket(str(path), 1):
        raise AssertionError("it was served")
    return str(caught.value)


def test_places_where_no_socket_can_be(tmp_path: Path) -> None:
    with bound(tmp_path / "live") as live:
        live.listen()
        assert f"in use by process {os.getpid()}" in error_of(tmp_path / "live")
    (tmp_path / "file").write_text("mine")
    assert "something else" in error_of(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert "No such file" in error_of(tmp_path / "absent" / "s")
    assert "Not a directory" in error_of(tmp_path / "file" / "s")
    assert all("--control PATH" in error_of(path) for path in (tmp_path / "file", tmp_path / "absent" / "s"))


async def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "hfs"
    home.mkdir(mode=0o700)
    unsafe = tmp_path / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    monkeypatch.setattr(
        socket_places, "directories_of", lambda _uid: [str(tmp_path / "no" / "x"), str(unsafe), str(home)]
    )
    dead, other = home / f"{prefix_of('/m')}00.sock", home / f"{prefix_of('/n')}00.sock"
    bound(dead).close()
    bound(other).close()
    async with served(None, FakeCommands()) as path, served(None, FakeCommands()) as second:
        assert path != second
        assert os.path.dirname(path) == str(home)
        assert os.path.basename(path).startswith(prefix_of("/m"))
        assert await ask(path, encode(Status()))
        assert await ask(second, encode(Status()))
        assert not dead.exists()
    assert os.listdir(home) == [other.name]
    monkeypatch.setattr(socket_places, "_STARTING_S", -1.0)  # it has become old
    async with served(None, FakeCommands()) as path:
        assert os.listdir(home) == [os.path.basename(path)]


async def test_the_last_resort_is_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid: ["/proc/hfs"])
    monkeypatch.setattr(socket_places, "_TMP", tempfile.mkdtemp(prefix="hfs-", dir="/tmp"))
    async with served(None, FakeCommands()) as path:
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert await ask(path, encode(Status()))
    os.rmdir(os.path.dirname(path))
    os.rmdir(socket_places._TMP)


async def test_a_request_of_other_users_is_short() -> None:
    """They could hold as much memory as they have connections."""
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all((100_000).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="too long for this user"):
        await ControlConnection(ours).receive(65536)
