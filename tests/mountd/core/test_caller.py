"""What /proc says of a thread: made up for what dies, real for what lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from signal import SIGABRT, SIGALRM, SIGINT, SIGKILL, SIGQUIT, SIGTERM

import pytest

from hfs.mountd.core import caller
from hfs.mountd.core.caller import credentials_of, has_ended, is_dying, numbers_are_foreign, process_of


def mask(*signals: int) -> bytes:
    return b"%016x" % sum(1 << (number - 1) for number in signals)


@pytest.mark.parametrize(
    ("fields", "dying"),
    [
        ({}, False),
        ({b"SigPnd": mask(SIGKILL)}, True),
        ({b"ShdPnd": mask(SIGKILL, SIGALRM)}, True),
        ({b"ShdPnd": mask(SIGALRM, SIGINT, SIGTERM)}, False),  # without a handler they come with SIGKILL
        ({b"ShdPnd": mask(SIGQUIT)}, True),
        ({b"SigPnd": mask(SIGABRT)}, True),
        ({b"ShdPnd": mask(SIGQUIT), b"SigCgt": mask(SIGQUIT)}, False),
        ({b"ShdPnd": mask(SIGQUIT), b"SigIgn": mask(SIGQUIT)}, False),
        ({b"ShdPnd": mask(SIGQUIT), b"SigBlk": mask(SIGQUIT)}, False),
        ({b"ShdPnd": mask(SIGQUIT), b"TracerPid": b"12"}, False),
    ],
)
def test_dying_is_who_will_never_see_an_answer(
    monkeypatch: pytest.MonkeyPatch, fields: dict[bytes, bytes], dying: bool
) -> None:
    status = {b"TracerPid": b"0", **{name: mask() for name in (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn", b"SigCgt")}}
    monkeypatch.setattr(caller, "_status", lambda thread: status | fields)
    assert is_dying(1) is dying


def test_who_is_gone_is_dying_and_who_is_hidden_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc mounted hidepid=2 a process of another user looks gone."""
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    gone.wait()
    assert is_dying(gone.pid)

    def hidden(thread: int) -> dict[bytes, bytes]:
        raise FileNotFoundError

    monkeypatch.setattr(caller, "_status", hidden)
    assert not is_dying(os.getpid())


def test_the_process_of_a_thread() -> None:
    found: list[object] = []
    thread = threading.Thread(
        target=lambda: found.extend((process_of(threading.get_native_id()), is_dying(threading.get_native_id())))
    )
    thread.start()
    thread.join()
    assert found == [(os.getpid(), Path("/proc/self/comm").read_text().rstrip("\n")), False]
    assert process_of(2**30) is None


def test_numbers_of_another_namespace_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has that number here: neither that it is dying nor who it is."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert is_dying(gone.pid)
    monkeypatch.setattr(caller._Sight, "is_ours", True)  # undone at the end
    numbers_are_foreign()
    assert not is_dying(gone.pid)
    assert process_of(os.getpid()) == (0, "(another pid namespace)")
    assert credentials_of(os.getpid(), os.geteuid(), os.getegid()) is None
    assert has_ended(gone.pid)  # of a process that a socket has told
