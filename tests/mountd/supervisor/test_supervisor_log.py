"""The keeper's log below the cache: never through a link, never in a directory of somebody else."""

import os
import threading
from pathlib import Path

import pytest

from hfs.mountd.supervisor.log import Log


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache" / "logs").mkdir(parents=True)
    (tmp_path / "cache" / "logs").chmod(0o700)
    return tmp_path / "cache"


def test_lines_go_to_the_file_also_after_it_was_rotated(cache: Path) -> None:
    path = cache / "logs" / "m.log"
    log = Log(str(path), str(cache))
    log.info("one")
    path.rename(cache / "logs" / "m.log.1")
    log.warning("two")
    assert path.read_text().endswith(" WARNING hfs.mountd.supervisor: two\n")


def test_a_link_leads_nowhere(cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "victim").write_text("")
    path = cache / "logs" / "m.log"
    log = Log(str(path), str(cache))
    path.symlink_to(tmp_path / "victim")
    log.info("one")
    path.unlink()
    cache.rename(tmp_path / "away")
    (tmp_path / "planted" / "logs").mkdir(parents=True)
    (tmp_path / "planted" / "logs" / "m.log").symlink_to(tmp_path / "victim")
    cache.symlink_to("planted")
    log.info("two")
    assert (tmp_path / "victim").read_text() == ""
    assert (tmp_path / "away" / "logs" / "m.log").read_text().endswith("two\n")
    assert capfd.readouterr().err.endswith("one\n")


def test_a_directory_that_others_may_write_to_is_not_used(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (cache / "logs").chmod(0o777)
    Log(str(cache / "logs" / "m.log"), str(cache)).info("one")
    assert os.listdir(cache / "logs") == []
    assert capfd.readouterr().err.endswith("one\n")


def test_a_log_elsewhere_may_be_a_link(cache: Path, tmp_path: Path) -> None:
    """/dev/stdout is one."""
    (tmp_path / "link").symlink_to("file")
    Log(str(tmp_path / "link"), str(cache)).info("one")
    assert (tmp_path / "file").read_text().endswith("one\n")


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """A pipe that nobody reads is opened for ever. What was said meanwhile is there when the disk goes on, in order."""
    os.mkfifo(tmp_path / "pipe")
    log = Log(str(tmp_path / "pipe"))
    for number in range(2000):  # more than are kept
        log.info(str(number))
    descriptor = log.open()
    assert os.fstat(descriptor).st_ino == os.fstat(2).st_ino, "stderr"
    os.close(descriptor)
    with open(os.open(tmp_path / "pipe", os.O_RDWR), buffering=1) as lines:  # which has no end
        assert [next(lines).split()[-1] for _ in range(900)] == [str(number) for number in range(900)]


def test_without_a_thread_lines_wait_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with pids.max: the keeper goes on, and so does its log once there is one."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = Log(str(tmp_path / "m.log"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(1100):  # more than are kept
            log.info(str(number))
        descriptor = log.open()
        assert os.fstat(descriptor).st_ino == os.fstat(2).st_ino, "stderr"
        os.close(descriptor)
    os.close(log.open())  # which starts it
    while not log._errands.empty():
        pass  # until there is room
    log.info("last")
    lines = (tmp_path / "m.log").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == [*map(str, range(1000)), "last"]
