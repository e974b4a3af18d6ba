"""A mount in use whose keeper was killed: what the next keeper is told. No mount, no keeper: both are played."""

import os
from typing import Any

import pytest

from hfs.mountd.core.config import Config
from hfs.mounting import using
from hfs.mounting.using import UsedMount


class Kept:
    pid = os.getpid()


class Held:
    """Of one keeper, which is there or not."""

    def __init__(self, *, alive: bool) -> None:
        self.alive = alive
        self.commands: list[int] = []
        self.closed = False

    def has_keeper(self) -> bool:
        return self.alive

    def command(self, pid: int) -> None:
        self.commands.append(pid)

    def close(self) -> None:
        self.closed = True


def test_the_next_keeper_is_told_of_the_command_which_may_outlive_us(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Held(alive=False), Held(alive=True)
    monkeypatch.setattr(using, "inherit", lambda *_: (Kept(), after))
    monkeypatch.setattr(using.processes, "open_pid", lambda _pid: None)
    kept: Any = Kept()
    held: Any = before
    used = UsedMount(
        "/data",
        "/data",
        "0:1",
        kept,
        held,
        Config(source="/s", mountpoint="/data", cache="/c"),
        "train",
        is_joined=False,
    )
    used.command_started(4711)
    said = used.look()
    assert said is not None
    assert "goes on" in said
    assert (before.closed, after.commands) == (True, [4711])
    assert used.look() is None
    assert used.held is after
