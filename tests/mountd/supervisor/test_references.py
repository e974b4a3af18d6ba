"""Who holds a mount, and when it goes: virtual time, and sessions that are real processes."""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.references import References


class FakeLoop(Loop):
    """Time passes by `pass_s`; descriptors are only remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, Callable[[], None]] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._now_s = 0.0

    def watch(self, what: object, call: Callable[[], None]) -> None:
        assert isinstance(what, int)
        self.watched[what] = call

    def ignore(self, what: object) -> None:
        assert isinstance(what, int)
        self.watched.pop(what, None)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append((self._now_s + seconds, call))

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds
        due = [call for when_s, call in self._due if when_s <= self._now_s]
        self._due = [timer for timer in self._due if timer[0] > self._now_s]
        for call in due:
            call()


class Kept:
    """References of one mount, and how often it was ended."""

    def __init__(self, *, permanent: bool, session: int = 0, linger_s: float = 0.0) -> None:
        self.loop = FakeLoop()
        self.ends = 0
        self.references = References(self.loop, self._end, permanent=permanent, session=session, linger_s=linger_s)

    def _end(self) -> None:
        self.ends += 1


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
    kept.references.answers()
    first = kept.references.hold(5, "train", 0.0)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    kept.references.release(first)
    kept.loop.pass_s(0)
    assert kept.ends == 1
    assert kept.references.ending


def test_a_mount_that_its_command_never_comes_for_ends() -> None:
    kept = Kept(permanent=False)
    kept.references.answers()
    kept.loop.pass_s(100)
    assert kept.ends == 1


def test_the_last_of_several_ends_it_and_knows() -> None:
    kept = Kept(permanent=False)
    first, second = kept.references.hold(5, "a", 0.0), kept.references.hold(6, "b", 0.0)
    assert [held["pid"] for held in kept.references.told()] == [5, 6]
    assert not kept.references.is_last(first)
    kept.references.release(first)
    kept.loop.pass_s(0)
    assert kept.ends == 0
    assert kept.references.is_last(second)
    assert kept.references.ending  # nobody may come now
    kept.references.release(second)  # killed before it had taken the mount away
    kept.loop.pass_s(0)
    assert kept.ends == 1


def test_it_lingers_for_the_next() -> None:
    kept = Kept(permanent=False)
    first = kept.references.hold(5, "a", 60.0)
    assert not kept.references.is_last(first)
    kept.references.release(first)
    kept.loop.pass_s(50)
    second = kept.references.hold(6, "b", 60.0)
    kept.loop.pass_s(50)
    assert kept.ends == 0
    kept.references.release(second)
    kept.loop.pass_s(60)
    assert kept.ends == 1


def test_an_old_look_does_not_end_what_lingers() -> None:
    """Of a command that came for its mount at once, and was short; and of an earlier one."""
    kept = Kept(permanent=False)
    kept.references.answers()
    first = kept.references.hold(5, "a", 600.0)
    kept.references.release(first)
    kept.loop.pass_s(500)
    assert kept.ends == 0
    kept.references.release(kept.references.hold(6, "b", 600.0))
    kept.loop.pass_s(500)
    assert kept.ends == 0
    kept.loop.pass_s(100)
    assert kept.ends == 1


def test_a_lazy_unmount_lets_nobody_in_any_more(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    kept.references.hold(5, "a", 0.0)
    assert kept.references.unmount(sessions[1], lazy=True) == []
    kept.loop.pass_s(100)
    assert kept.references.ending


def test_a_mount_that_was_made_to_stay_stays_until_somebody_unmounts(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    first = kept.references.hold(5, "a", 0.0)
    assert not kept.references.is_last(first)
    kept.references.release(first)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert kept.references.unmount(sessions[0], lazy=False) == []
    assert kept.references.ending


def test_where_nobody_joined_any_session_may_unmount(sessions: list[int]) -> None:
    assert Kept(permanent=True, session=sessions[0]).references.unmount(sessions[1], lazy=False) == []


def test_sessions_that_joined_hold_it_until_they_end(sessions: list[int]) -> None:
    """Tasks of a job array, each with `hfs mount` and `hfs umount`."""
    kept = Kept(permanent=True, session=sessions[0])
    kept.references.hold_session(sessions[1], "hfs mount")
    kept.references.hold_session(sessions[1], "hfs mount")  # the same once more
    kept.references.hold_session(sessions[2], "hfs mount")
    assert [held["pid"] for held in kept.references.unmount(sessions[0], lazy=False)] == [sessions[1], sessions[2]]
    ended = kept.loop.watched[min(kept.loop.watched)]
    ended()  # the session of the second has ended
    kept.loop.pass_s(0)
    assert kept.ends == 0
    assert kept.references.unmount(sessions[2], lazy=False) == []
    kept.references.close()


def test_who_joined_does_not_take_it_from_its_maker(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    kept.references.hold_session(sessions[1], "hfs mount")
    held = kept.references.unmount(sessions[1], lazy=False)
    assert held == [{"pid": sessions[0], "command": "hfs mount", "session": True}]
    (ended,) = kept.loop.watched.values()
    ended()
    kept.loop.pass_s(0)
    assert kept.ends == 1
    assert kept.loop.watched == {}


def test_an_unmount_that_did_not_happen_changes_nothing(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=sessions[0])
    assert kept.references.unmount(sessions[0], lazy=False) == []
    kept.loop.pass_s(100)
    assert not kept.references.ending
    assert not kept.references.is_last(kept.references.hold(5, "a", 0.0))


def test_a_session_that_cannot_be_seen_holds_it_until_somebody_unmounts() -> None:
    kept = Kept(permanent=False)
    kept.references.hold_session(1 << 30, "hfs mount")
    kept.references.release(kept.references.hold(5, "a", 0.0))
    kept.loop.pass_s(100)
    assert kept.ends == 0


def test_descriptors_are_given_back(sessions: list[int]) -> None:
    kept = Kept(permanent=True, session=0)
    before = len(os.listdir("/proc/self/fd"))
    for session in sessions:
        kept.references.hold_session(session, "hfs mount")
    kept.references.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_command_holds_the_mount_when_its_hfs_run_was_killed(sessions: list[int]) -> None:
    kept = Kept(permanent=False)
    reference = kept.references.hold(7, "of the test", 0.0)
    pidfd = os.pidfd_open(sessions[0])
    reference.take_command(pidfd)
    kept.references.gone(reference)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert [told["pid"] for told in kept.references.told()] == [sessions[0]]
    kept.loop.watched[pidfd]()  # it has ended
    kept.loop.pass_s(0)
    assert (kept.ends, kept.references.told()) == (1, [])


def test_a_session_that_nobody_sees_holds_it_until_somebody_unmounts() -> None:
    """Of another pid namespace than the keeper's."""
    kept = Kept(permanent=False)
    command = kept.references.hold(5, "a", 0.0)
    kept.references.hold_session(0, "hfs mount")
    kept.references.release(command)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    assert kept.references.unmount(0, lazy=False) == []


def test_a_mount_of_jobs_goes_with_the_last() -> None:
    kept = Kept(permanent=False)
    kept.references.answers()
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
    kept.references.answers()
    kept.references.hold_job("7")
    assert kept.references.release_job("7") == (True, False)
    kept.loop.pass_s(59)
    train = kept.references.hold(5, "train", 0.0)
    kept.references.hold_job("8")
    assert kept.references.release_job("8") == (True, False)
    kept.loop.pass_s(100)
    assert kept.ends == 0
    kept.references.release(train)
    kept.loop.pass_s(0)
    assert kept.ends == 1


def test_jobs_that_join_a_permanent_mount_leave_it() -> None:
    kept = Kept(permanent=True, session=1)
    kept.references.hold_job("7")
    assert kept.references.release_job("7") == (True, False)
    kept.loop.pass_s(100)
    assert kept.ends == 0
