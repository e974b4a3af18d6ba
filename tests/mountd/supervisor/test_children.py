"""When a daemon counts as ended, which nothing is begun before: real processes stand in its place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hfs.mountd.supervisor import children as module
from hfs.mountd.supervisor.children import Children
from hfs.mountd.supervisor.daemons import Daemon, Program
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop

PROGRAM = Program(["sh", "-c", "exec >&-; read x"], "/", {"PATH": os.defpath}, {})
"""It closes what it would answer on, and goes on."""


class Waits(Loop):
    """Nothing comes by itself; `pass_by` is the time that all of it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def after(self, seconds: float, call: Any) -> None:
        self.calls.append(call)

    def pass_by(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def ended() -> list[Daemon]:
    return []


@pytest.fixture
def loop() -> Waits:
    return Waits()


@pytest.fixture
def daemon(loop: Waits, ended: list[Daemon], monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """It has closed its output, and does not end by a signal."""
    children = Children(loop, Log(None, None, "text"), lambda *_: None, ended.append)
    monkeypatch.setattr(Daemon, "signal", lambda *_: None)
    made = children.start(PROGRAM)
    try:
        while not loop.calls:
            loop.turn()
        yield made
    finally:
        os.kill(made.pid, 9)
        os.waitpid(made.pid, 0)


def test_one_that_only_waits_for_a_processor_has_not_ended(
    daemon: Daemon, loop: Waits, ended: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "is_running", lambda: True)
    for _ in range(3):
        loop.pass_by()
        assert ended == []
    monkeypatch.setattr(daemon, "is_running", lambda: False)  # a thread of it waits in the kernel
    loop.pass_by()
    assert ended == [daemon]


def test_it_is_waited_for_a_while(
    daemon: Daemon, loop: Waits, ended: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "is_running", lambda: True)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float("inf")))
    loop.pass_by()
    assert ended == [daemon]


def test_what_computes_runs_and_what_waits_does_not() -> None:
    script = "input()\nprint(flush=True)\nwhile True: pass"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    daemon, ends = Daemon.to_be_forked(PROGRAM)
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        daemon.is_process(process.pid)
        while daemon.is_running():  # until it has come to its input
            os.sched_yield()
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.stdout.readline()
        assert daemon.is_running()
        process.kill()
    daemon.close()
    for descriptor in ends:
        os.close(descriptor)
