"""A mount in use: by this process and by a command of it, by locks on a file that a keeper has given. Real locks and
processes; the keeper is played.
"""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from hfs.mounting.keeper import HeldMount


class Kept:
    """A keeper."""

    def __init__(self, *, lets_go: bool = True) -> None:
        self._lets_go = lets_go

    def leave(self) -> bool:
        return self._lets_go


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("users")
    yield descriptor
    os.close(descriptor)


def opened(file: int) -> int:
    return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)


def held(file: int, *, lets_go: bool = True) -> HeldMount:
    kept: Any = Kept(lets_go=lets_go)
    return HeldMount(kept, None, None, [opened(file)])


def is_used(file: int) -> bool:
    """As the keeper sees it."""
    descriptor = opened(file)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def command_of(mount: HeldMount) -> "subprocess.Popen[bytes]":
    """It runs until it is told to end."""
    starts = mount.command_starts
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False, preexec_fn=starts)  # noqa: PLW1509 - as hfs run


def test_the_last_has_it_alone_until_it_is_done(file: int) -> None:
    one, other = held(file), held(file)
    assert one.leave() is False
    one.close()
    assert other.leave() is True
    with pytest.raises(BlockingIOError):
        held(file)
    other.close()
    assert not is_used(file)


def test_where_a_keeper_lets_nobody_take_it_away_others_join(file: int) -> None:
    one = held(file, lets_go=False)
    assert one.leave() is False
    held(file).close()
    one.close()


def test_a_command_uses_it_when_this_process_was_killed(file: int) -> None:
    """Also when another keeper has gone on with the mount meanwhile."""
    before = held(file)
    with command_of(before) as command:
        after = held(file)
        after.follow(before)
        for descriptor in (*after.descriptors, after._for_command):  # as the kernel does
            os.close(descriptor)
        assert is_used(file)
        command.communicate()
    assert not is_used(file)


def test_what_a_command_has_left_behind_does_not_use_it(file: int) -> None:
    mount = held(file)
    with command_of(mount) as left:
        assert is_used(file)
        assert mount.leave() is True
        mount.close()
        assert not is_used(file)
        left.communicate()
