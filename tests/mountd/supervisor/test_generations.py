"""Generations of an overlay without any: what the maker's file says, what goes, and what hangs. A directory stands for
each, whose removal is its end; children and inotify are real."""

import contextlib
import errno
import fcntl
import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfs.mountd.supervisor import generations as module
from hfs.mountd.supervisor.generations import MOST, MOST_NEEDED, NUMBERS, Generations
from hfs.mountd.supervisor.overlay import Layers

# Of a process with threads, as a worker of the tests has: the child only works on files (Python 3.12).
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Place:
    """Where they lie, and the directory by which maker and daemon meet."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.roots = folder / "roots"
        self.makers = folder / "overlays"
        for made in (self.roots, self.makers):
            made.mkdir()
        self.fault: OSError | None = None
        self.hangs, self.halfway = folder / "hangs", folder / "halfway"
        self.is_shut = False
        """The root of what is made may not be read."""
        self.move(1)
        self.layers = Layers("/objects", "hfs#x", "/top", str(self.makers / "number"), str(self.makers))
        monkeypatch.setattr(module.overlay, "put", self._put)
        monkeypatch.setattr(module.overlay, "take_away", self._take_away)

    def move(self, number: int) -> None:
        (self.makers / "next").write_text(str(number))
        (self.makers / "next").rename(self.makers / "number")

    def _put(self, layers: Layers, _place: str, made: Callable[[str, int], object]) -> None:
        """In a child."""
        if self.fault is not None:
            raise self.fault
        root = self.roots / str(layers.number_now())
        root.mkdir()
        made("/nowhere" if self.is_shut else str(root), layers.number_now())
        while self.hangs.exists():
            self.halfway.touch()
            signal.pause()

    def _take_away(self, _place: str, *, lazily: bool = True) -> None:
        """All go that nobody uses: a file in one is a user."""
        for root in self.roots.iterdir():
            with contextlib.suppress(OSError):
                root.rmdir()
        if not lazily and any(self.roots.iterdir()):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def goes(self, number: int) -> None:
        (self.roots / str(number)).rmdir()

    @property
    def said(self) -> tuple[int, int]:
        """By the only maker's file."""
        return NUMBERS.unpack(self.file.read_bytes())

    @property
    def file(self) -> Path:
        (found,) = self.makers.glob("maker-*")
        return found

    def is_locked(self) -> bool:
        with self.file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def made(place: Place) -> Iterator[Generations]:
    generations = Generations(place.layers, "/data")
    yield generations
    generations.end()


def look_until(generations: Generations, condition: Callable[[], bool]) -> list[str]:
    """What is said meanwhile. The limit of the test ends it else."""
    said = []
    while not condition():
        line = generations.look()
        said += [line] if line is not None else []
        threading.Event().wait(0.002)
    return said


def renewed(generations: Generations, place: Place, number: int) -> None:
    place.move(number)
    look_until(generations, lambda: place.said[1] == number)


def test_the_file_is_there_before_anything_is_made_and_goes_at_the_end(place: Place) -> None:
    place.move(7)
    before = os.listdir("/proc/self/fd")
    made = Generations(place.layers, "/data")
    assert (place.said, place.is_locked(), list(place.roots.iterdir())) == ((7, 7), True, [])
    assert place.file.name.startswith(f"maker-{os.getpid()}-")
    look_until(made, lambda: made.is_made)
    assert [root.name for root in place.roots.iterdir()] == ["7"]
    assert made.end()
    assert [path.name for path in place.makers.iterdir()] == ["number"]
    assert os.listdir("/proc/self/fd") == before


def test_the_oldest_is_told_until_it_has_gone(place: Place, made: Generations) -> None:
    look_until(made, lambda: made.is_made)
    renewed(made, place, 2)
    renewed(made, place, 5)
    assert place.said == (1, 5)
    place.goes(2)
    made.look()
    assert place.said == (1, 5)
    place.goes(1)
    assert select.select([made.descriptor], [], [], 0)[0], "the end of one wakes who waits"
    made.look()
    assert place.said == (5, 5)


def test_the_first_may_be_put_in_place_by_who_is_to_see_it(place: Place) -> None:
    place.move(3)
    made = Generations(place.layers, "/data")
    made.began(made.put_first(), [])
    made.look()
    assert (made.is_made, place.said, [root.name for root in place.roots.iterdir()]) == (True, (3, 3), ["3"])
    place.goes(3)
    made.look()
    assert made.was_taken_away
    assert made.end()


def test_at_the_bound_nothing_is_made_until_one_has_gone(place: Place, made: Generations) -> None:
    look_until(made, lambda: made.is_made)
    for number in range(2, MOST + 1):
        renewed(made, place, number)
    place.move(99)
    for _ in range(5):
        made.look()
    assert made._making is None
    assert place.said == (1, MOST)
    assert len(list(place.roots.iterdir())) == MOST
    place.goes(3)
    look_until(made, lambda: place.said[1] == 99)
    assert place.said == (1, 99)


def test_what_is_needed_is_made_however_many_are_alive(place: Place, made: Generations) -> None:
    """Else what has changed would be ESTALE for as long as a job keeps a file open in each."""
    look_until(made, lambda: made.is_made)
    for number in range(2, MOST + 1):
        renewed(made, place, number)
    for number in range(MOST + 1, MOST_NEEDED + 1):
        (place.makers / "needed").write_text(str(number))
        renewed(made, place, number)
    for name in ("number", "needed"):
        (place.makers / name).write_text("99")
    for _ in range(5):
        made.look()
    assert place.said == (1, MOST_NEEDED)
    place.goes(1)
    look_until(made, lambda: place.said[1] == 99)


def test_one_that_hangs_holds_up_nobody_and_counts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_S", 0.1)
    made = Generations(place.layers, "/data")
    look_until(made, lambda: made.is_made)
    place.hangs.touch()
    place.move(2)
    look_until(made, lambda: (place.roots / "2").exists())
    assert place.said == (1, 1)
    place.goes(1)
    made.look()
    assert place.said == (2, 1), "what is being made may be in place any moment"
    place.roots.joinpath("2", "used").touch()
    assert made.end()
    while place.is_locked():  # by a child that was killed, until it has died
        threading.Event().wait(0.002)
    assert place.said == (2, 1), "nobody knows what has become of it"


def test_one_whose_maker_was_killed_halfway_counts(place: Place, made: Generations) -> None:
    look_until(made, lambda: made.is_made)
    place.hangs.touch()
    place.move(2)
    look_until(made, place.halfway.exists)
    assert made._making is not None
    os.kill(made._making._pid, signal.SIGKILL)
    place.hangs.unlink()
    (said,) = look_until(made, lambda: made._making is None)
    assert "Input/output error" in said
    made._again_s = math.inf
    place.goes(1)
    look_until(made, lambda: place.said == (2, 1))  # told a moment later where the one that was killed is still going


def test_what_fails_is_said_once_and_tried_again(place: Place, made: Generations) -> None:
    look_until(made, lambda: made.is_made)
    place.fault = OSError(errno.EPERM, "")
    place.move(2)
    (said,) = look_until(made, lambda: bool(made.why))
    assert said == "/data: what is staged from now on is read through the daemon (Operation not permitted)"
    assert made.look() is None
    assert made._making is None, "not at once"
    made._again_s = 0.0
    assert look_until(made, lambda: made._making is not None) == []
    assert look_until(made, lambda: made._making is None) == []
    place.fault = None
    made._again_s = 0.0
    look_until(made, lambda: place.said == (1, 2))


@pytest.mark.parametrize("used", [1, 2])
def test_what_is_in_use_at_the_end_is_left_and_told(place: Place, monkeypatch: pytest.MonkeyPatch, used: int) -> None:
    def until_the_other_has_gone(made: Generations) -> None:
        while len(made._alive) > 1:
            made._hear()

    monkeypatch.setattr(module, "_END_S", 30.0)
    monkeypatch.setattr(Generations, "_wait_gone", until_the_other_has_gone)
    made = Generations(place.layers, "/data")
    look_until(made, lambda: made.is_made)
    renewed(made, place, 2)
    place.roots.joinpath(str(used), "used").touch()
    assert not made.end(lazily=False)
    assert not made.end(lazily=False, sure=True)
    assert place.said == (1, 2), "it goes on"
    assert made.end()
    assert (place.said, place.is_locked()) == ((used, 2), False)


def test_what_was_replaced_and_has_not_gone_may_be_in_use(place: Place) -> None:
    made = Generations(place.layers, "/data")
    look_until(made, lambda: made.is_made)
    renewed(made, place, 2)
    assert made.replaced == [1]
    assert not made.end(lazily=False)
    assert made.end(lazily=False, sure=True), "whoever asks knows better"
    assert [path.name for path in place.makers.iterdir()] == ["number"]


def test_one_whose_root_may_not_be_read_counts_to_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_S", 3600.0)
    place.is_shut = True
    made = Generations(place.layers, "/data")
    look_until(made, lambda: made.is_made)
    renewed(made, place, 2)
    place.goes(1)
    made.look()
    assert place.said == (1, 2), "nobody tells"
    assert made.end(), "nor is it waited for"
    assert (place.said, place.is_locked()) == ((1, 2), False)


def test_where_no_process_is_to_be_had_all_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Generations(place.layers, "/data")
    look_until(made, lambda: made.is_made)

    def refuse(*_: object) -> None:
        raise OSError(errno.EAGAIN, "")

    monkeypatch.setattr(module, "Errand", refuse)
    place.move(2)
    said = made.look()
    assert said is not None
    assert "Resource temporarily unavailable" in said
    assert made.look() is None
    monkeypatch.setattr(module, "_END_S", 0.1)
    assert made.end()
    assert (place.said, place.is_locked()) == ((1, 1), False)


def test_what_others_have_taken_away_is_known(place: Place, made: Generations) -> None:
    look_until(made, lambda: made.is_made)
    renewed(made, place, 2)
    place.goes(1)
    made.look()
    assert not made.was_taken_away
    place.goes(2)
    made.look()
    assert made.was_taken_away
    place.hangs.touch()
    place.move(3)
    made.look()
    assert not made.was_taken_away, "the next one is about to come"
    place.hangs.unlink()


def test_where_the_file_cannot_be_made_there_is_no_maker(place: Place) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No such"):
        Generations(place.layers._replace(makers=f"{place.makers}/gone"), "/data")
    assert len(os.listdir("/proc/self/fd")) == before
