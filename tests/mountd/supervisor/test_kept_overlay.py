"""An overlay that was taken away for an unmount comes again only where the mount has stayed. The file of its
maker is locked while that lives, and what it says stays where the disk takes nothing more."""

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hfs.mountd.supervisor import generations
from hfs.mountd.supervisor.generations import NUMBERS, MakerFile
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.mounts import KeeperMount, MountOverlay

TOLD = {"objects": "/c/objects"}


@pytest.mark.parametrize(
    ("is_gone", "is_mounted", "made"), [(False, True, [TOLD]), (False, False, []), (True, True, []), (True, False, [])]
)
def test_a_mount_that_has_gone_is_not_covered_again(
    is_gone: bool, is_mounted: bool, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon may write for a while yet, and its number may be another's."""
    begun: list[object] = []
    monkeypatch.setattr(MountOverlay, "begin", lambda _, told: begun.append(told))
    mount: Any = SimpleNamespace(connection=SimpleNamespace(is_gone=is_gone, is_mounted=is_mounted))
    overlay = MountOverlay(cast("KeeperMount", mount), Loop(), Log(None, None, "text"), noexec=False)
    overlay.told = TOLD
    overlay.again()
    assert begun == made


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
