"""The file of a maker: locked while it lives, and what it says stays where the disk takes nothing more."""

import errno
import os
import stat
from pathlib import Path

import pytest

from hfs.mountd.supervisor import generations
from hfs.mountd.supervisor.generations import NUMBERS, MakerFile


def said(folder: Path) -> tuple[int, ...]:
    (file,) = folder.iterdir()
    return NUMBERS.unpack(file.read_bytes())


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "")


def test_one_that_a_new_daemon_took_for_a_left_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = generations.fcntl.flock, []

    def late(fd: int, how: int) -> None:
        if not removed:
            removed.append(next(tmp_path.iterdir()))
            removed[0].unlink()
        lock(fd, how)

    monkeypatch.setattr(generations.fcntl, "flock", late)
    made = MakerFile(str(tmp_path))
    made.tell(1, 2)
    assert said(tmp_path) == (1, 2)
    (file,) = tmp_path.iterdir()
    assert file.name != removed[0].name
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made.close(removed=True)
    assert list(tmp_path.iterdir()) == []


def test_what_was_told_stays_where_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    made = MakerFile(str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError):
            made.tell(1, 1)
    made.tell(1, 1)
    written: list[object] = []
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *what: written.append(what) or refuse())
        made.tell(1, 1)
        assert not written, "that is what it says"
        made.tell(1, 2)
        assert len(written) == 1
    assert said(tmp_path) == (1, 1)
    made.tell(1, 2)
    assert said(tmp_path) == (1, 2), "it is tried again"
    made.close(removed=False)
    assert said(tmp_path) == (1, 2)
    assert os.listdir("/proc/self/fd") == before
