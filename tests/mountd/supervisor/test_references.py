"""Who holds a mount, and when it goes: virtual time, real locks, and sessions that are real processes."""

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.references import References


@dataclass(order=True)
class _Timer:
    when_s: float
    call: Callable[[], None] = field(compare=False)


class FakeLoop(Loop):
    """Time passes by `pass_s`; descriptors are only remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, Callable[[], object]] = {}
        self._due: list[_Timer] = []
        self._now_s = 0.0

    def watch(self, what: object, call: Callable[[], object]) -> None:
        assert isinstance(what, int)
        self.watched[what] = call

    def ignore(self, what: object) -> None:
        assert isinstance(what, int)
        self.watched.pop(what, None)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append(_Timer(self._now_s + seconds, call))

    def pass_s(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while due := sorted(timer for timer in self._due if timer.when_s <= until_s):
            self._now_s = due[0].when_s
            self._due.remove(due[0])
            due[0].call()
        self._now_s = until_s


class Kept:
    """References of one mount that answers, and how often it was ended."""

    def __init__(self, *, permanent: bool, session: int = 0, linger_s: float = 0.0, inherited: int = -1) -> None:
        self.loop = FakeLoop()
        self.ends = 0
        self.references = References(
            self.loop, self._end, permanent=permanent, session=session, linger_s=linger_s, inherited=inherited
        )
        self.references.answers()

    def _end(self) -> None:
        self.ends += 1

    def hold(self, linger_s: float = 0.0) -> int:
        """A command joins. Raises BlockingIOError: it cannot."""
        descriptor = self.references.hold(linger_s)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return descriptor


def is_alone(descriptor: int) -> bool:
    """As a command finds out that slots."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def sessions() -> Iterator[list[int]]:
    """Leaders of three sessions."""
    processes = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(3)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def test_a_mount_of_one_command_ends_with_it() -> None:
    kept = Kept(permanent=False)
    first = kept.hold()
    kept.loop.pass_s(100)
    assert kept.ends == 0
    os.close(first)
    kept.loop.pass_s(0.5)
    assert kept.ends == 1
    assert kept.references.ending
    with pytest.raises(BlockingIOError):
        kept.hold()


def test_the_last_of_several_takes_it_away_and_nobody_comes_meanwhile() -> None:
    kept = Kept(permanent=False)
    first, second = kept.hold(), kept.hold()
    assert not is_alone(first)
    os.close(first)
    kept.loop.pass_s(1)
    assert kept.ends == 0
    assert is_alone(second)
    assert kept.references.leave()
    assert kept.references.ending
    with pytest.raises(BlockingIOError):
        kept.hold()
    kept.loop.pass_s(100)
    assert kept.ends == 0
    os.close(second)  # killed before it had taken the mount away
    kept.loop.pass_s(0.5)
    assert kept.ends == 1


def test_it_lingers_for_the_next() -> None:
    kept = Kept(permanent=False)
    first = kept.hold(60.0)
    assert is_alone(first)
    assert not kept.references.leave()
    os.close(first)
    kept.loop.pass_s(50)
    second = kept.hold(60.0)
    kept.loop.pass_s(50)
    assert kept.ends == 0
    os.close(second)
    kept.loop.pass_s(59)
    assert kept.ends == 0
    kept.loop.pass_s(1)
    assert kept.ends == 1


def test_it_lingers_after_a_command_that_came_and_went_between_two_looks() -> None:
    kept = Kept(permanent=False)
    os.close(kept.hold(600.0))
    kept.loop.pass_s(500)
    os.close(kept.hold(600.0))
    kept.loop.pass_s(500)
    assert kept.ends == 0
    kept.loop.pass_s(100)
    assert kept.ends == 1


def test_another_keeper_knows_who_uses_it() -> None:
    """Of a mount whose keeper was killed: who has joined need not say so again."""
    first = Kept(permanent=False)
    one, other = first.hold(), first.hold()
    first.references.close()
    second = Kept(permanent=False, inherited=os.dup(one))
    assert [told["pid"] for told in second.references.told()] == []  # locks of this process itself
    assert not is_alone(one)
    os.close(one)
    second.loop.pass_s(100)
    assert second.ends == 0
    os.close(other)
    second.loop.pass_s(0.5)
    assert second.ends == 1


def test_a_lazy_unmount_lets_nobody_in_any_more(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    kept.hold()
    assert kept.references.unmount(sessions[1], lazy=True) == []
    kept.loop.pass_s(100)
    assert kept.references.ending


def test_a_mount_that_was_made_to_stay_stays_until_somebody_unmounts(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    first = kept.hold()
    assert is_alone(first)
    assert not kept.references.leave()
    os.close(first)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert kept.references.unmount(sessions[0], lazy=False) == []
    assert kept.references.ending
    with pytest.raises(BlockingIOError):  # also of one that has just asked
        kept.hold()


def test_sessions_that_joined_hold_it_until_they_end(sessions: list[int]) -> None:
    """Tasks of a job array, each with `hfs mount` and `hfs umount`."""
    kept = Kept(permanent=True, session=sessions[0])
    kept.references.hold_session(sessions[1])
    kept.references.hold_session(sessions[1])  # the same once more
    kept.references.hold_session(sessions[2])
    assert [held["pid"] for held in kept.references.unmount(sessions[0], lazy=False)] == [sessions[1], sessions[2]]
    ended = kept.loop.watched[min(kept.loop.watched)]
    ended()  # the session of the second has ended
    kept.loop.pass_s(0)
    assert kept.ends == 0
    assert kept.references.unmount(sessions[2], lazy=False) == []
    kept.references.close()


def test_who_joined_does_not_take_it_from_its_maker(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    kept.references.hold_session(sessions[1])
    held = kept.references.unmount(sessions[1], lazy=False)
    assert held == [{"pid": sessions[0], "command": "hfs mount", "session": True}]
    (ended,) = kept.loop.watched.values()
    ended()
    kept.loop.pass_s(0.5)
    assert kept.ends == 1
    assert kept.loop.watched == {}


def test_an_unmount_that_did_not_happen_changes_nothing(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    assert kept.references.unmount(sessions[0], lazy=False) == []
    kept.loop.pass_s(100)
    assert not kept.references.ending
    assert is_alone(kept.hold())
    assert not kept.references.leave()
    assert kept.ends == 0


def test_a_session_that_nobody_sees_holds_it_until_somebody_unmounts() -> None:
    """Of another pid namespace than the keeper's."""
    kept = Kept(permanent=False)
    command = kept.hold()
    kept.references.hold_session(0)
    os.close(command)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert kept.references.unmount(0, lazy=False) == []


def test_a_mount_of_jobs_goes_with_the_last() -> None:
    kept = Kept(permanent=False)
    for job in ("7", "8", "7"):
        kept.references.hold_job(job)
    assert kept.references.told() == [
        {"pid": 0, "command": "hfs mount", "session": False, "job": "7"},
        {"pid": 0, "command": "hfs mount", "session": False, "job": "8"},
    ]
    assert kept.references.release_job("9") == (False, False)
    assert kept.references.release_job("7") == (True, False)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert kept.references.release_job("8") == (True, True)
    kept.loop.pass_s(0)
    assert kept.ends == 1


def test_a_mount_of_jobs_lingers_and_is_held_by_others() -> None:
    kept = Kept(permanent=False, linger_s=60.0)
    kept.references.hold_job("7")
    assert kept.references.release_job("7") == (True, False)
    kept.loop.pass_s(59)
    train = kept.hold()
    kept.references.hold_job("8")
    assert kept.references.release_job("8") == (True, False)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    os.close(train)
    kept.loop.pass_s(0.5)
    assert kept.ends == 1


def test_jobs_that_join_a_permanent_mount_leave_it() -> None:
    kept = Kept(permanent=True, session=1)
    kept.references.hold_job("7")
    assert kept.references.release_job("7") == (True, False)
    kept.loop.pass_s(100)
    assert kept.ends == 0
