"""Keepers are looked for in directories of their users alone, and those of another user are waited for a moment; one
that is just ending is told from one that is busy."""

import fcntl
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.core import socket_places
from hfs.mounting import keeper, processes
from hfs.mounting.keeper import FoundKeeper, MountReference

UID = os.geteuid()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hfs-", dir="/tmp") as made:
        monkeypatch.setattr(socket_places, "directories_of", lambda _uid, _environ=None: [made])
        yield Path(made)


class Keepers:
    """Listeners in a directory, by what they say; None: nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.asked = 0

    def add(self, path: Path, says: bytes | None) -> None:
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(64)
        if says is not None:
            thread = threading.Thread(target=self._serve, args=(listener, says), daemon=True)
            thread.start()
            self._stack.callback(thread.join)
            self._stack.callback(listener.shutdown, socket.SHUT_RDWR)

    def _serve(self, listener: socket.socket, says: bytes) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.asked += 1
            with client:
                client.recv(65536)
                client.sendall(says)


@pytest.fixture
def keepers() -> Iterator[Keepers]:
    with ExitStack() as stack:
        yield Keepers(stack)


def told(**more: Any) -> bytes:
    return json.dumps({"pid": 1, "device": "0:7", "mountpoint": "/m", "held_by": [], **more}).encode() + b"\n"


def found() -> list[str]:
    return [str(kept.status["mountpoint"]) for kept in keeper.ours()]


def test_a_directory_that_others_write_to_is_not_looked_into(place: Path, keepers: Keepers) -> None:
    keepers.add(place / "a.keeper", told())
    assert found() == ["/m"]
    place.chmod(0o777)
    assert found() == []
    assert list(keeper.of_user(UID + 1)) == []
    assert keepers.asked == 1


def test_a_link_is_not_followed(place: Path, keepers: Keepers) -> None:
    """It may lead to any listener of ours that says nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
        keepers.add(Path(elsewhere) / "silent", None)
        for number in range(50):
            (place / f"{number}.keeper").symlink_to(f"{elsewhere}/silent")
        keepers.add(place / "z.keeper", told())
        assert found() == ["/m"]


@pytest.mark.parametrize(
    "says", [b"", b"[]\n", b"[" * 10000, told(held_by=[7]), told(device=[1]), told(config={"a": "A" * 100_000})]
)
def test_what_makes_no_sense_hides_nobody(place: Path, keepers: Keepers, says: bytes) -> None:
    keepers.add(place / "a.keeper", says)
    keepers.add(place / "b.keeper", told())
    assert found() == ["/m"]
    assert keepers.asked == 2


def test_all_of_another_user_are_waited_for_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many say nothing. That they are another's is what we are told; the files are ours."""
    for number in range(20):
        (place / f"{number}.keeper").touch()
    now_s = 0.0
    limits: list[float] = []

    def asked(path: str, owner: int, request: dict[str, Any], limit_s: float) -> tuple[int, dict[str, Any]]:
        nonlocal now_s
        limits.append(limit_s)
        now_s += limit_s / 2 if len(limits) == 1 else limit_s
        raise TimeoutError

    monkeypatch.setattr(keeper, "ask", asked)
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(os, "geteuid", lambda: UID + 1)
    assert list(keeper.of_user(UID)) == []
    assert limits == [keeper._OTHERS_S, keeper._OTHERS_S / 2], "the rest is not asked"


def test_an_answer_that_comes_by_the_byte_has_a_limit(place: Path, keepers: Keepers) -> None:
    """Not one for each byte of it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "a.keeper"))
        listener.listen()
        done = threading.Event()

        def drip() -> None:
            client, _ = listener.accept()
            with client:
                while not done.wait(0.01):
                    try:
                        client.send(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):
            keeper.ask(str(place / "a.keeper"), UID, {"ask": "status"}, 0.2)
        done.set()
        thread.join()


def test_a_keeper_that_does_not_listen_any_more_has_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of a process that was killed are closed before it counts as ended. Whoever asks then whether to take
    the mount away waits for that: nobody else does, and another keeper is to go on."""
    wait_gone = processes.wait_gone
    users = os.memfd_create("users")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as dying:

        def wait(descriptor: int, limit_s: float) -> bool:
            if limit_s:
                dying.kill()
            return wait_gone(descriptor, limit_s)

        monkeypatch.setattr(processes, "wait_gone", wait)
        kept = FoundKeeper(str(place / "a.keeper"), UID, dying.pid, {})
        held = MountReference(kept, os.pidfd_open(dying.pid), {"device": "0:7"}, [os.dup(users)])
        assert held.leave() is None
        with open(f"/proc/self/fd/{users}", "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # we hold it still
        held.close()
    os.close(users)


def test_a_keeper_that_hangs_up_is_no_answer(place: Path, keepers: Keepers) -> None:
    keepers.add(place / "a.keeper", b"")
    with pytest.raises(ConnectionResetError):
        keeper.ask(str(place / "a.keeper"), UID, {"ask": "leave"})
