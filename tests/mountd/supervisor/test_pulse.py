"""A daemon's beats as the keeper reads them, with a clock of our own: who hangs, and who is only slow."""

import os
import struct
from collections.abc import Iterator

import pytest

from hfs.mountd.fuse.fuse import Beat
from hfs.mountd.supervisor.pulse import LOOK_S, Process, Pulse

SLEEPS, WORKS, WAITS = 0, 1, 2


class Daemon(Process):
    """What keeps it from running is said here."""

    def __init__(self) -> None:
        super().__init__(os.getpid())
        self.hindered = 0.0
        """The share of its time."""

    def hindered_s(self, passed_s: float) -> float:
        return self.hindered * passed_s


class Watched:
    """A pulse, and the daemon that beats there."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.pulse = Pulse(self.daemon)
        self.loop = Beat(self.pulse.fd)
        self.now_s = 1000.0
        self.turns = 0

    def thread(self, which: int, state: int, unique: int = 0) -> None:
        """A thread goes on, to this state."""
        self.turns += 4
        os.pwrite(self.pulse.fd, struct.pack("=QQ", self.turns | state, unique), 64 * which)

    def hung_after(
        self, seconds: float, *, beats: bool = True, is_asked: bool = False, step_s: float = LOOK_S
    ) -> float:
        """When it was found to hang within this time; infinity: not at all. `beats`: its event loop turns."""
        for look in range(int(seconds / step_s)):
            self.now_s += step_s
            if beats:
                self.loop.turn()
            self.how = self.pulse.looked(self.now_s, is_asked=is_asked)
            if self.how:
                return (look + 1) * step_s
        return float("inf")


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.pulse.close()


def never(found_s: float) -> bool:
    return found_s == float("inf")


def test_a_daemon_that_has_not_begun_or_has_ended_does_not_hang(watched: Watched) -> None:
    assert never(watched.hung_after(100, beats=False, is_asked=True))
    watched.loop.turn()
    watched.thread(1, WORKS)
    watched.loop.end()
    os.pwrite(watched.pulse.fd, bytes(8), 64)
    assert never(watched.hung_after(100, beats=False, is_asked=True)), "requests are left to the next daemon"


def test_an_event_loop_that_stands_still_hangs(watched: Watched) -> None:
    watched.thread(1, SLEEPS)
    assert never(watched.hung_after(100))
    assert 5 < watched.hung_after(100, beats=False) < 8
    assert watched.how == "its event loop stands still"


def test_a_thread_that_works_on_one_request_hangs(watched: Watched) -> None:
    for which in (1, 2, 64):
        watched.thread(which, SLEEPS)
    watched.thread(64, WORKS, unique=77)
    assert 5 < watched.hung_after(100) < 8
    assert watched.how == "a thread that reads requests stands still"
    assert watched.pulse.taken() == [77]


def test_threads_that_wait_for_work_or_for_python_do_not_hang(watched: Watched) -> None:
    """However many requests wait: the source may hang, and with it all that Python answers."""
    watched.thread(1, WAITS)
    watched.thread(2, SLEEPS)
    assert never(watched.hung_after(600, is_asked=True))


def test_requests_that_nobody_takes_are_a_hang(watched: Watched) -> None:
    watched.thread(1, SLEEPS)
    watched.thread(2, SLEEPS)
    assert never(watched.hung_after(600)), "there are none"
    assert 5 < watched.hung_after(100, is_asked=True) < 8
    assert watched.how == "nobody takes its requests"
    assert watched.pulse.taken() == []


def test_a_thread_that_goes_on_does_not_hang(watched: Watched) -> None:
    for _ in range(100):
        watched.thread(1, WORKS)
        assert never(watched.hung_after(5, is_asked=True))
    watched.thread(1, WORKS)
    assert never(watched.hung_after(5))
    watched.thread(1, SLEEPS)
    assert never(watched.hung_after(600))


@pytest.mark.parametrize("away_s", [60.0, 86400.0])
def test_time_in_which_the_keeper_did_not_run_does_not_count(watched: Watched, away_s: float) -> None:
    """Both were stopped: whoever is continued first, and though the keeper has looked a few times before and after."""
    watched.thread(1, WORKS)
    assert never(watched.hung_after(2.5, beats=False))
    watched.now_s += away_s
    assert never(watched.hung_after(2.5, beats=False))
    watched.loop.turn()
    watched.thread(1, SLEEPS)
    assert never(watched.hung_after(600))


def test_where_all_are_slow_only_looks_count(watched: Watched) -> None:
    """Load: the keeper has its turn every five seconds, the daemon every thirty."""
    for _ in range(10):
        watched.loop.turn()
        assert never(watched.hung_after(30, beats=False, step_s=5))


def test_time_in_which_the_daemon_could_not_run_does_not_count(watched: Watched) -> None:
    watched.loop.turn()
    watched.daemon.hindered = 1.0
    assert never(watched.hung_after(50, beats=False))
    watched.loop.turn()
    watched.hung_after(0.5, beats=False)
    assert 50 < watched.hung_after(100, beats=False) < 65, "but not for ever"


def test_what_keeps_a_process_from_running_is_what_it_waited_for() -> None:
    process = Process(os.getpid())
    assert process.state == "R"
    assert process.hindered_s(0.5) == 0.0, "nothing is known at first"
    assert 0.0 <= process.hindered_s(0.5) <= 0.5
    gone = Process(2**22 + 1)
    assert (gone.state, gone.hindered_s(0.5), gone.hindered_s(0.5)) == ("", 0.0, 0.0)
