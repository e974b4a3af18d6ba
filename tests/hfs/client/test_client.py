"""The client against the real control socket, and against daemons that are gone, silent or talk nonsense."""

import os
import socket
import threading
from pathlib import Path

import pytest

from hfs.client import client as module
from hfs.client.client import Client, DaemonSilent, Refused, find_socket, known_sockets
from hfs.client.control_socket import ControlAddress, DaemonEnded
from hfs.mountd.core import socket_places
from hfs.mountd.core.socket_places import prefix_of
from hfs.mountd.wire.protocol import MAX_FRAME_BYTES, Failure, PathFault, Progress, ProtocolError, Result, Rows, encode
from hfs.mounting.mountinfo import parse
from tests.hfs.daemon import FakeCommands, serving, speaking


def test_all_requests(tmp_path: Path) -> None:
    commands = FakeCommands("/m")
    with serving(tmp_path / "s", commands):
        client = Client(str(tmp_path / "s"))
        assert client.status()["pid"] == 4711
        assert client.pid() == os.getpid()
        assert client.directory() == commands.nodes
        news: list[Progress | Rows] = []
        assert client.warm([b"a", b"bad"], 4, news.append) == Result(
            1, 10, 1, faults=[PathFault(b"bad", "no such file")]
        )
        assert isinstance(news[0], Progress)
        assert client.check([], against_source=True) == Result(2, 30)
        assert client.evict([], everything=True) == Result(2, 30)
        rows: list[Progress | Rows] = []
        assert client.list([b"x"], rows.append).files == 3
        assert [row.path for part in rows if isinstance(part, Rows) for row in part.rows] == [b"a", b"d/b", b""]
        with pytest.raises(Refused, match="no such thing") as caught:
            client.check([b"usage"])
        assert caught.value.code == 2
    assert commands.calls == [
        ("warm", [b"a", b"bad"], 4),
        ("check", [], True),
        ("evict", [], True),
        ("list", [b"x"]),
        ("check", [b"usage"], False),
    ]


def test_an_exception_in_news_ends_the_request(tmp_path: Path) -> None:
    def news(_part: object) -> None:
        raise KeyboardInterrupt

    with serving(tmp_path / "s", FakeCommands("/m")):
        client = Client(str(tmp_path / "s"))
        with pytest.raises(KeyboardInterrupt):
            client.list([], news)
        assert client.status()["pid"] == 4711


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (b"", "ended before it answered"),
        (b"\0\0\0\x05ab", "ended before it answered"),
        (b"\0\0\0\0", "cannot be understood"),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "cannot be understood"),
        (b"\0\0\0\1\xc1", "cannot be understood"),
        (encode(Progress()), "ended before it answered"),
    ],
)
def test_a_daemon_that_talks_nonsense(tmp_path: Path, words: bytes, message: str) -> None:
    times = 2 if message.startswith("ended") else 1
    with speaking(tmp_path / "s", *[words] * times), pytest.raises(DaemonSilent, match=message):
        Client(str(tmp_path / "s")).status()


def test_a_daemon_that_ends_leaves_a_question_to_the_next_and_nothing_that_changes_anything(tmp_path: Path) -> None:
    with speaking(tmp_path / "s", b"", encode(Result(detail={"nodes": []}))):
        assert Client(str(tmp_path / "s")).cluster() == []
    with speaking(tmp_path / "t", b""), pytest.raises(DaemonEnded, match="ended before it answered"):
        Client(str(tmp_path / "t")).evict([b"x"])


def test_a_refusal_before_the_request_was_read(tmp_path: Path) -> None:
    """What the daemon does with one connection too many: the client is still sending when it is told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(encode(Failure("too many", 1)))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(Refused, match="too many"):
            Client(str(tmp_path / "s")).warm([b"x" * 1000] * 5000)
        thread.join()


def test_a_daemon_that_is_gone_or_hangs(tmp_path: Path) -> None:
    with pytest.raises(DaemonSilent, match="No such file"):
        Client(str(tmp_path / "absent")).status()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(DaemonSilent, match="Connection refused"):
            Client(str(tmp_path / "s")).status()
        listener.listen()
        with pytest.raises(DaemonSilent, match="does not answer"):
            Client(str(tmp_path / "s")).status(limit_s=0.05)


def test_a_request_too_long_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="in parts"):
        Client(str(tmp_path / "absent")).warm([bytes(MAX_FRAME_BYTES)])


def test_what_is_no_mount_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaemonSilent, match="not in a mount of hfs; hfs status lists"):
        find_socket(str(tmp_path))

    def hang(*_arguments: object, **_options: object) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(module.probe, "xattr", hang)
    with pytest.raises(DaemonSilent, match="does not answer within 10 s"):
        find_socket(str(tmp_path))


def test_sockets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hfs").mkdir(mode=0o700)
    name = f"{prefix_of('/m')}1234.sock"
    for file in (name, f"{prefix_of('/n')}1234.sock", f"{prefix_of('/m')}1234.other"):
        (tmp_path / "hfs" / file).write_text("")
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    me = os.geteuid()
    monkeypatch.setattr(socket_places, "directories_of", lambda _uid, _environ: [f"{tmp_path}/hfs"])  # root has its own
    assert known_sockets("/m", me, environ) == [f"{tmp_path}/hfs/{name}"]
    # Where anybody may have made it: not another's, nor one that others can write to, nor a link.
    assert known_sockets("/m", me + 1, environ) == []
    (tmp_path / "hfs").chmod(0o770)
    assert known_sockets("/m", me, environ) == []
    (tmp_path / "hfs").chmod(0o700)
    (tmp_path / "hfs").rename(tmp_path / "real")
    (tmp_path / "hfs").symlink_to("real")
    assert known_sockets("/m", me, environ) == []


def test_a_mount_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may not look into it, but its daemon's socket has its name, below the other user's directory."""

    def forbid(*_arguments: object, **_options: object) -> bytes:
        raise PermissionError

    asked: list[tuple[object, ...]] = []

    def known(*arguments: object) -> list[str]:
        asked.append(arguments)
        return ["/run/user/7/hfs/x.sock"][: len(asked) - 1]

    table = parse("1 0 0:1 / /m ro - fuse.hfs hfs#/s ro,user_id=7")
    monkeypatch.setattr(module.probe, "xattr", forbid)
    monkeypatch.setattr(module.mountinfo, "mounts", lambda: table)
    monkeypatch.setattr(module, "known_sockets", known)
    with pytest.raises(DaemonSilent, match="another user"):
        find_socket("/m")
    assert find_socket("/m") == ControlAddress("/run/user/7/hfs/x.sock", "/m", 7)
    expected = None if os.geteuid() == 7 else {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert asked == [("/m", 7, expected)] * 2
