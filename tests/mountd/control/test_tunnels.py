"""Tunnels: whose they are, how many, what they hold, and when they end; with the real connections behind them at last.

Exchanges are those of this process, which the kernel would name so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from hfs.mountd.control import tunnels
from hfs.mountd.control.control import serve
from hfs.mountd.control.tunnels import MOST_OF_OTHERS, MOST_OF_USER, SILENT_LOOKS, Tunnels
from hfs.mountd.core.caller import Credentials, has_ended
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.wire.protocol import Failure, Join, Reply, Request, Result, Status, Warm, decode_reply, encode
from hfs.mountd.wire.tunnel import BODY_BYTES, CLOSE, END, MORE, OPEN, Answer, Exchange
from tests.conftest import Logs
from tests.support.fake_commands import FakeCommands

UID, GID = os.geteuid(), os.getegid()
THREAD = os.getpid()
FAR = 0x7FFFFFF0  # no process has this number


@dataclass
class Client:
    """The other end: what the kernel would bring of it."""

    tunnels: Tunnels
    uid: int = UID
    gid: int = GID
    thread: int = THREAD
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def ask(self, data: bytes = b"", flags: int = 0, room_bytes: int = BODY_BYTES) -> Answer | int:
        """An Answer, or an errno."""
        asked = Exchange(self.token, data, flags, room_bytes).encode()
        found = self.tunnels.exchange(asked, self.thread, self.uid, self.gid)
        return found if isinstance(found, int) else Answer.decode(found)

    def open(self, data: bytes = b"") -> Answer:
        found = self.ask(data, OPEN)
        assert isinstance(found, Answer), os.strerror(found)
        return found

    async def replies(self) -> list[Reply]:
        """All replies until the daemon has no more to say."""
        data, found = b"", []
        while True:
            answer = self.ask()
            assert isinstance(answer, Answer), os.strerror(answer)
            data += answer.data
            if answer.flags & END:
                break
            await trio.lowlevel.checkpoint()
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(decode_reply(data[4 : 4 + size]))
            data = data[4 + size :]
        return found


class Served:
    """Who serves the tunnels of a test, and what came of each."""

    def __init__(self) -> None:
        self.who: list[tuple[int, int, int, tuple[int, ...] | None]] = []
        self.heard: list[bytes] = []

    async def echo(
        self, stream: trio.SocketStream, process: int, uid: int, gid: int, groups: tuple[int, ...] | None
    ) -> None:
        self.who.append((process, uid, gid, groups))
        heard = b""
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):  # as of a client that leaves with words unheard
                while part := await stream.receive_some():
                    heard += part
                    await stream.send_all(part)
        self.heard.append(heard)

    async def deaf(self, stream: trio.SocketStream, *_who: object) -> None:
        async with stream:
            await trio.sleep_forever()


@contextlib.asynccontextmanager
async def running(
    answer: tunnels.Answering, ended: Callable[[int], bool] = lambda _process: False
) -> AsyncIterator[Tunnels]:
    found = Tunnels(answer, frozenset({0, UID}), ended)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await trio.testing.wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


# -- bytes ------------------------------------------------------------------------------------------------------------


async def test_bytes_go_both_ways_and_the_asker_is_named() -> None:
    served = Served()
    async with running(served.echo) as found:
        client = Client(found)
        assert client.open(b"hello") == Answer(5)
        await trio.testing.wait_all_tasks_blocked()
        assert client.ask() == Answer(0, b"hello")
        assert client.ask(b"more") == Answer(4)
        await trio.testing.wait_all_tasks_blocked()
        assert client.ask(room_bytes=3) == Answer(0, b"mor", MORE)
        assert client.ask(b"last") == Answer(4, b"e")
        assert client.ask(flags=CLOSE) == Answer(0, flags=END)
        await trio.testing.wait_all_tasks_blocked()
        assert client.ask() == errno.EPIPE
        assert len(found) == 0
    assert served.heard == [b"hellomorelast"], "what was said before the end is heard"
    assert served.who == [(os.getpid(), UID, GID, tuple(os.getgroups()))]


async def test_of_a_thread_that_cannot_be_seen_the_groups_are_not_known() -> None:
    served = Served()
    async with running(served.echo) as found:
        Client(found, thread=0, uid=5, gid=6).open()
        Client(found, thread=THREAD, uid=UID + 5, gid=6).open()  # another one's by now
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(served.who) == sorted([(0, 5, 6, None), (os.getpid(), UID + 5, 6, None)])


async def test_what_nobody_reads_is_not_taken_without_end() -> None:
    served = Served()
    async with running(served.deaf) as found:
        client, data = Client(found), b"x" * BODY_BYTES
        client.open()
        await trio.testing.wait_all_tasks_blocked()
        taken = [answer.taken_bytes for answer in (client.ask(data) for _ in range(64)) if isinstance(answer, Answer)]
        assert taken[0] == BODY_BYTES
        assert taken[-1] == 0, "no more than a socket holds"
        assert client.ask(flags=CLOSE) == Answer(0, flags=END)


async def test_what_is_not_fetched_is_not_said_without_end() -> None:
    said = 0

    async def talk(stream: trio.SocketStream, *_who: object) -> None:
        nonlocal said
        async with stream:
            while said < 4_000_000:
                await stream.send_all(b"y" * 1000)
                said += 1000

    async with running(talk) as found:
        client = Client(found)
        client.open()
        await trio.testing.wait_all_tasks_blocked()
        assert said < 1_000_000, "no more than a socket holds"
        got = 0
        while True:
            answer = client.ask()
            assert isinstance(answer, Answer)
            got += len(answer.data)
            if answer.flags & END:
                break
            await trio.testing.wait_all_tasks_blocked()
        assert got == said == 4_000_000
        assert client.ask() == errno.EPIPE


# -- whose, and how many ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uid", "gid"), [(UID + 1, GID), (UID, GID + 1), (0 if UID else 1, 0)])
async def test_a_token_is_good_for_nobody_else(uid: int, gid: int) -> None:
    served = Served()
    async with running(served.echo) as found:
        client = Client(found)
        client.open(b"secret")
        await trio.testing.wait_all_tasks_blocked()
        thief = Client(found, uid, gid, token=client.token)
        assert thief.ask() == thief.ask(b"evict") == thief.ask(flags=CLOSE) == errno.EPIPE
        assert thief.ask(flags=OPEN) == errno.EEXIST
        assert client.ask() == Answer(0, b"secret"), "nothing of it was taken, and it goes on"


async def test_a_token_is_good_for_no_other_process_and_no_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same user and group: what is asked would count as asked by the one who has opened the tunnel."""
    threads = {1: (1, (7,)), 2: (1, (7,)), 3: (1, ()), 4: (4, (7,)), 5: (0, (7,))}

    def credentials_of(thread: int, uid: int, gid: int) -> Credentials | None:
        return Credentials(uid, gid, threads[thread][1]) if thread in threads else None

    monkeypatch.setattr(tunnels, "credentials_of", credentials_of)
    monkeypatch.setattr(tunnels, "process_of", lambda thread: (threads[thread][0], "x") if thread in threads else None)
    served = Served()
    async with running(served.echo) as found:
        client = Client(found, thread=1)
        client.open(b"secret")
        await trio.testing.wait_all_tasks_blocked()
        for thread in (3, 4, 5, 6, 0):
            assert Client(found, thread=thread, token=client.token).ask(b"evict") == errno.EPIPE, thread
        assert Client(found, thread=2, token=client.token).ask() == Answer(0, b"secret"), "a thread of the same process"
        unseen = Client(found, thread=0)
        unseen.open(b"more")
        await trio.testing.wait_all_tasks_blocked()
        assert Client(found, thread=4, token=unseen.token).ask() == errno.EPIPE
        assert unseen.ask() == Answer(0, b"more")


async def test_a_token_that_never_was_and_one_that_is_there() -> None:
    served = Served()
    async with running(served.echo) as found:
        client = Client(found)
        assert client.ask() == client.ask(flags=CLOSE) == errno.EPIPE
        client.open()
        assert client.ask(flags=OPEN) == errno.EEXIST
        assert found.exchange(b"\xff" * 16376, THREAD, UID, GID) == errno.EINVAL
        assert found.exchange(b"", THREAD, UID, GID) == errno.EINVAL
        assert Client(found).open() == Answer(0)
        assert Client(found).ask(b"x", OPEN | CLOSE) == Answer(1, flags=END)


async def test_one_user_takes_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "MOST", MOST_OF_USER + 2)
    served = Served()
    async with running(served.deaf) as found:
        crowd = [Client(found, uid=7, gid=7, thread=0) for _ in range(MOST_OF_USER + 1)]
        answers = [client.ask(flags=OPEN) for client in crowd]
        assert answers[-1] == errno.EUSERS
        assert errno.EUSERS not in answers[:-1]
        Client(found).open()
        Client(found, uid=8).open()
        assert Client(found, uid=9).ask(flags=OPEN) == errno.EUSERS, "there are too many in all"
        assert crowd[0].ask(flags=CLOSE) == Answer(0, flags=END)
        Client(found, uid=9).open()


async def test_all_others_together_leave_room_for_the_owner() -> None:
    """Whoever owns a user namespace has thousands of numbers."""
    served = Served()
    async with running(served.deaf) as found:
        crowd = [Client(found, uid=UID + 100 + number, thread=0) for number in range(MOST_OF_OTHERS + 1)]
        answers = [client.ask(flags=OPEN) for client in crowd]
        assert answers[-1] == errno.EUSERS
        assert errno.EUSERS not in answers[:-1]
        for _ in range(MOST_OF_USER):
            Client(found).open()
        assert Client(found).ask(flags=OPEN) == errno.EUSERS


async def test_without_a_task_that_serves_there_are_none() -> None:
    served = Served()
    found = Tunnels(served.echo, frozenset({0}))
    assert Client(found).ask(flags=OPEN) == errno.ENOTTY
    async with running(served.echo) as found:
        client = Client(found)
        client.open(b"x")
        await trio.testing.wait_all_tasks_blocked()
    assert client.ask() == errno.EPIPE
    assert Client(found).ask(flags=OPEN) == errno.ENOTTY


# -- clients that go without a word -----------------------------------------------------------------------------------


async def test_one_that_does_not_ask_any_more_is_let_go() -> None:
    served = Served()
    async with running(served.echo) as found:
        asks, rests = Client(found), Client(found)
        asks.open()
        rests.open(b"half a wo")
        for _ in range(SILENT_LOOKS):
            await trio.sleep(1)
            assert asks.ask() == Answer(0)
        await trio.sleep(1.5)
        assert rests.ask() == errno.EPIPE
        assert asks.ask() == Answer(0)
        assert served.heard == [b"half a wo"]


async def test_one_whose_process_has_ended_is_let_go_at_once() -> None:
    served, ended = Served(), set[int]()
    async with running(served.echo, ended.__contains__) as found:
        client, unseen = Client(found), Client(found, thread=0)
        client.open()
        unseen.open()
        await trio.sleep(1.5)
        assert len(found) == 2
        ended.update({os.getpid(), 0})
        await trio.sleep(1.5)
        assert client.ask() == errno.EPIPE
        assert unseen.ask() == Answer(0), "nothing is known of its process"


def test_whether_a_process_has_ended() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert not has_ended(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert has_ended(process.pid)
    assert has_ended(process.pid)
    assert not has_ended(os.getpid())
    assert has_ended(FAR)


# -- with real connections behind them --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def daemon(path: Path, commands: FakeCommands, *, others: bool = False) -> AsyncIterator[Tunnels]:
    async with (
        trio.open_nursery() as nursery,
        serve(str(path), commands.all(), nursery, OpenFiles(1024), others=others) as found,
    ):
        await trio.testing.wait_all_tasks_blocked()
        yield found


@pytest.mark.parametrize("uid", [12345, UID + 1])
@pytest.mark.usefixtures("real_clock")
async def test_another_user_is_refused_by_the_gate(tmp_path: Path, uid: int, logs: Logs) -> None:
    """As on the control socket: whoever the kernel names, not whoever a client says it is."""
    logs.expect("was refused")
    commands = FakeCommands()
    async with daemon(tmp_path / "s", commands) as found:
        client = Client(found, uid=uid)
        client.open(encode(Status()))
        (reply,) = await client.replies()
        assert isinstance(reply, Failure)
        assert "only root and the owner" in reply.message
        assert len(found) == 0
    assert commands.calls == []


@pytest.mark.usefixtures("real_clock")
async def test_another_user_where_the_mount_is_for_others(tmp_path: Path) -> None:
    """May ask what is for all, and say what it reads if it is known what it may read; no more."""

    async def said(found: Tunnels, request: Request, thread: int) -> Reply:
        client = Client(found, uid=12345, gid=99, thread=thread)
        client.open(encode(request))
        (reply,) = await client.replies()
        return reply

    async with daemon(tmp_path / "s", FakeCommands(), others=True) as found:
        assert isinstance(await said(found, Status(), 0), Result)
        assert "owner of the mount may ask for warm" in str(await said(found, Warm([b""]), 0))
        assert "which groups you are in" in str(await said(found, Join("0" * 32), 0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tunnels, "credentials_of", lambda _thread, uid, gid: Credentials(uid, gid, (7, 5)))
            assert "no learners here" in str(await said(found, Join("0" * 32), THREAD))
