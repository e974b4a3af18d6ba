"""Errands: children that are heard whatever becomes of them, and hold nothing of ours."""

import errno
import os
import select
import signal

import pytest

from hfs.mountd.supervisor.errand import Errand

# Of a process with threads, as a worker of the tests has: the child only works on files (Python 3.12).
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def ended(errand: Errand) -> int | None:
    code = errand.wait(30)
    assert errand.wait(0) == code
    errand.close()
    return code


def fails(number: int | None) -> Errand:
    def work(_: Errand) -> None:
        raise OSError if number is None else OSError(number, "")

    return Errand(work, [])


def breaks(_: Errand) -> None:
    raise AssertionError


def dies(errand: Errand) -> None:
    errand.tell(7)
    errand.tell(-1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_it_has_met_is_heard() -> None:
    before = os.listdir("/proc/self/fd")
    assert ended(Errand(lambda _: None, [])) == 0
    assert ended(fails(errno.EPERM)) == errno.EPERM
    assert ended(fails(None)) == ended(Errand(breaks, [])) == errno.EIO
    killed = Errand(dies, [])
    assert ended(killed) == errno.EIO
    assert killed.told == [7, -1]
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ChildProcessError):
        os.waitpid(killed._pid, os.WNOHANG)


def test_one_that_has_ended_and_was_not_asked_is_no_zombie() -> None:
    errand = Errand(lambda _: None, [])
    assert select.select([errand._pidfd], [], [], 10)[0]
    errand.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(errand._pid, os.WNOHANG)


def test_one_that_hangs_holds_nothing_of_ours_and_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    (reading, writing), (begun, begins) = os.pipe(), os.pipe()

    def hangs(_: Errand) -> None:
        os.write(1, b"heard by nobody")
        os.write(begins, b"x")
        signal.pause()

    errand = Errand(hangs, [begins])
    os.close(begins)
    assert os.read(begun, 1) == b"x"
    os.close(writing)
    assert select.select([reading], [], [], 10)[0], "whoever waits for our end would wait for that of the child"
    assert errand.wait(0) is None
    errand.close()
    assert select.select([begun], [], [], 10)[0], "it was killed"
    assert os.read(begun, 1) == b""
    os.close(reading)
    os.close(begun)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("call", ["fork", "pidfd_open"])
def test_where_none_is_to_be_had_nothing_is_left(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EAGAIN, "")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError):
        Errand(lambda _: None, [])
    assert os.listdir("/proc/self/fd") == before
