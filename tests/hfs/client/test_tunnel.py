"""The client's end of a tunnel over a mount that a test plays: bytes, ends, mounts that hang, forks, the last words."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfs.client import control_socket, tunnel
from hfs.client.client import Client
from hfs.client.control_socket import ControlAddress, ControlSocket, DaemonSilent
from hfs.client.tunnel import open_tunnel
from hfs.mountd.wire.tunnel import BODY_BYTES, CLOSE, END, MORE, OPEN, Answer, Exchange
from hfs.mounting.mountinfo import Mount
from tests.layers import ROOT

LIMIT_S = 20.0


class FakeMount:
    """The mount of a daemon, which takes and gives as the test says."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.answers = threading.Event()
        """Clear: an exchange waits."""
        self.answers.set()
        self.refusal = 0
        """An errno that every exchange ends with."""
        self.heard = bytearray()
        self.to_say = bytearray()
        self.ends = False
        """Once all was said."""
        self.opened = self.closed = self.let_go = 0
        self.takes: Callable[[int], int] = lambda offered: offered
        self.gives: Callable[[int], int] = lambda room: room

    def exchange(self, asked: Exchange) -> Answer:
        assert self.answers.wait(LIMIT_S)
        with self.changed:
            if self.refusal:
                raise OSError(self.refusal, os.strerror(self.refusal))
            assert len(asked.data) <= BODY_BYTES
            self.opened += bool(asked.flags & OPEN)
            self.closed += bool(asked.flags & CLOSE)
            taken = self.takes(len(asked.data))
            self.heard += asked.data[:taken]
            part = bytes(self.to_say[: self.gives(asked.room_bytes)])
            del self.to_say[: len(part)]
            flags = MORE if self.to_say else END if self.ends else 0
            self.changed.notify_all()
            return Answer(taken, part, flags)

    def close(self) -> None:
        with self.changed:
            self.let_go += 1
            self.changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LIMIT_S)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hfs-tunnel"]


def is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False


def sockets() -> int:
    """How many this process has."""
    return sum(map(is_socket, os.listdir("/proc/self/fd")))


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMount]:
    """Threads of tunnels end with their test."""
    found = FakeMount()
    monkeypatch.setattr(tunnel, "_Directory", lambda _path: found)
    before = len(os.listdir("/proc/self/fd"))
    yield found
    for thread in threads():
        thread.join(LIMIT_S)
    assert threads() == []
    assert len(os.listdir("/proc/self/fd")) == before


def received(connection: socket.socket) -> bytes:
    """All until the end."""
    connection.settimeout(LIMIT_S)
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return bytes(data)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_bytes_in_their_order_however_few_are_taken(mount: FakeMount, seed: int) -> None:
    chance = random.Random(seed)
    said, told = chance.randbytes(300_000), chance.randbytes(400_000)
    mount.takes = lambda offered: min(offered, chance.choice([0, 1, 5000, offered]))
    mount.gives = lambda room: min(room, chance.choice([0, 1, 7000, room]))
    mount.to_say += told
    with open_tunnel("/m", LIMIT_S) as connection:
        sender = threading.Thread(target=connection.sendall, args=(said,))
        sender.start()
        got = bytearray()
        connection.settimeout(LIMIT_S)
        while len(got) < len(told):
            got += connection.recv(10_000)
        sender.join()
        mount.wait(lambda: len(mount.heard) == len(said))
    assert (mount.heard == said, got == told, mount.opened) == (True, True, 1)
    mount.wait(lambda: mount.closed)


def test_what_was_said_before_the_end_arrives(mount: FakeMount) -> None:
    with open_tunnel("/m", LIMIT_S) as connection:
        connection.sendall(b"q" * 100_000)
        with mount.changed:
            mount.to_say += b"a" * 500_000
            mount.ends = True
        assert received(connection) == b"a" * 500_000
        with pytest.raises(BrokenPipeError):
            connection.sendall(b"anybody there?")
    assert mount.closed == 0


def test_the_last_words_come_before_the_end(mount: FakeMount) -> None:
    mount.takes = lambda offered: min(offered, 1000)
    connection = open_tunnel("/m", LIMIT_S)
    connection.sendall(b"w" * 150_000)
    connection.close()
    mount.wait(lambda: mount.closed)
    assert len(mount.heard) == 150_000


def test_a_daemon_that_takes_nothing_any_more_is_left(mount: FakeMount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "_LAST_WORDS_S", 0.0)
    mount.takes = lambda _offered: 0
    with open_tunnel("/m", LIMIT_S) as connection:
        connection.sendall(b"nobody hears it")
    mount.wait(lambda: mount.closed)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOTCONN, errno.EIO, errno.ENOTTY])
def test_a_tunnel_that_breaks_is_a_connection_that_ends(mount: FakeMount, number: int) -> None:
    """As after a daemon that was replaced."""
    with open_tunnel("/m", LIMIT_S) as connection:
        with mount.changed:
            mount.refusal = number
        assert received(connection) == b""


@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EUSERS, errno.EACCES])
def test_a_refusal_is_told(mount: FakeMount, number: int) -> None:
    mount.refusal = number
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        open_tunnel("/m", LIMIT_S)
    assert caught.value.errno == number


def test_nobody_waits_for_a_mount_that_hangs(mount: FakeMount) -> None:
    mount.answers.clear()
    with pytest.raises(TimeoutError):
        open_tunnel("/m", 0.01)
    mount.answers.set()
    mount.wait(lambda: mount.closed)  # opened too late: it is given up
    assert mount.opened == 1
    with open_tunnel("/m", LIMIT_S) as connection:
        mount.answers.clear()
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while connection.send(b"x" * 65536):  # as much as a socket holds, and never waits
                pass
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    mount.answers.set()
    mount.wait(lambda: mount.closed == 2)


def test_a_forked_child_has_no_part_in_it(mount: FakeMount) -> None:
    before = sockets()
    with open_tunnel("/m", LIMIT_S) as connection:
        read, write = os.pipe()
        held, release = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(release)
                alive = [thread for thread in threads() if thread.is_alive()]
                connection.close()
                os.write(write, f"{len(alive)} threads, {sockets()} sockets".encode())
                os.close(write)
                os.read(held, 1)  # lives on
            finally:
                os._exit(0)
        os.close(write)
        os.close(held)
        assert os.read(read, 100) == b"0 threads, %d sockets" % before
        connection.sendall(b"of the parent")
        mount.wait(lambda: mount.heard == b"of the parent")
        with mount.changed:
            mount.ends = True
        assert received(connection) == b"", "the end is told though the child lives"
        os.close(release)
        os.close(read)
        os.waitpid(pid, 0)


def test_a_child_that_nobody_was_told_of_hides_no_end(mount: FakeMount) -> None:
    """Forked past Python, it holds copies of both ends."""
    with open_tunnel("/m", LIMIT_S) as connection:
        copies = [os.dup(int(name)) for name in os.listdir("/proc/self/fd") if is_socket(name)]
        with mount.changed:
            mount.ends = True
        assert received(connection) == b""
    for copy in copies:
        os.close(copy)


def test_what_a_process_says_last_is_carried(tmp_path: Path) -> None:
    """It ends right after; the daemon hears it, and that it has gone."""
    code = """
import os, sys, time
from hfs.client import tunnel
from hfs.mountd.wire.tunnel import Answer, CLOSE

class Mount:
    def __init__(self, path):
        self.file = open(sys.argv[1], "ab", buffering=0)

    def exchange(self, asked):
        time.sleep(0.002)
        self.file.write(asked.data[:1000] + (b"!" if asked.flags & CLOSE else b""))
        return Answer(len(asked.data[:1000]))

    def close(self):
        pass

tunnel._Directory = Mount
connection = tunnel.open_tunnel("/m", 10)
connection.sendall(b"w" * 20000)
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "heard")], check=True, timeout=40, env={"PYTHONPATH": str(ROOT)}
    )
    assert (tmp_path / "heard").read_bytes() == b"w" * 20000 + b"!"


def test_of_no_mount_at_all(tmp_path: Path) -> None:
    for path, number in ((tmp_path, errno.ENOTTY), (tmp_path / "absent", errno.ENOENT), (__file__, errno.ENOTDIR)):
        with pytest.raises(OSError, match=os.strerror(number)):
            open_tunnel(str(path), LIMIT_S)


# -- where it is used -------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths lie in a mount of hfs at /m."""
    mount = Mount(1, "0:9", "/m", "ro", "fuse.hfs", "hfs#/s")
    monkeypatch.setattr(control_socket.mountinfo, "canonical", lambda path: path)
    monkeypatch.setattr(control_socket.mountinfo, "read", lambda *_: [mount])


def through(how: Callable[[str, float], socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "open_tunnel", how)


@pytest.mark.usefixtures("seen")
def test_a_socket_that_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def opened(directory: str, _limit_s: float) -> socket.socket:
        assert directory == "/m"
        pairs.append(socket.socketpair())
        return pairs[-1][0]

    through(opened, monkeypatch)
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "dead"))
        for name in ("absent", "file", "file/below", "dead"):
            connection = ControlSocket(ControlAddress(str(tmp_path / name), "/m/x"), 1.0)
            assert connection.through_mount
            assert connection.where == "the daemon behind /m"
            assert Client(ControlAddress(str(tmp_path / name), "/m/x")).pid() == 0, "not our own, which it would seem"
        with pytest.raises(DaemonSilent, match="No such file"):
            ControlSocket(str(tmp_path / "absent"), 1.0)  # named by the user: that one, and no other
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@pytest.mark.usefixtures("seen")
def test_no_connection_goes_through_an_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = Mount(2, "0:10", "/m", "ro", "overlay", "hfs#/s")
    monkeypatch.setattr(control_socket.mountinfo, "read", lambda *_: [overlay])
    with pytest.raises(
        DaemonSilent, match="no connection goes through the overlay at /m/x: have /absent seen here too"
    ):
        ControlSocket(ControlAddress("/absent/s", "/m/x"), 1.0)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOTTY, "no daemon answers at /absent/s: No such file or directory; hfs status lists"),
        (errno.EUSERS, "nor through the mount /m: Too many users$"),
        (errno.ETIMEDOUT, "nor through the mount /m: Connection timed out$"),
    ],
)
@pytest.mark.usefixtures("seen")
def test_what_is_said_where_neither_way_leads(number: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_directory: str, _limit_s: float) -> socket.socket:
        raise OSError(number, os.strerror(number))

    through(refused, monkeypatch)
    with pytest.raises(DaemonSilent, match=message):
        ControlSocket(ControlAddress("/absent/s", "/m"), 1.0)
