"""Looking at paths in a child process: what it finds, what it raises, and that it does not wait for ever."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from hfs.mounting import probe


def test_a_look_says_which_directory_it_is_and_whether_there_are_entries(tmp_path: Path) -> None:
    real = tmp_path.stat()
    assert probe.look(str(tmp_path)) == (real.st_dev, real.st_ino, False)
    with pytest.raises(NotADirectoryError):
        probe.look("/dev/null")
    assert probe.look(str(tmp_path)).has_entries is False
    (tmp_path / "caf\udce9 x").mkdir()
    assert probe.look(str(tmp_path)).has_entries is True
    assert probe.look(str(tmp_path / "caf\udce9 x")).has_entries is False


def test_xattrs(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("")
    try:
        os.setxattr(file, "user.test", b"\x00\xff")
    except OSError as error:
        pytest.skip(f"no xattrs here: {error}")
    assert probe.xattr(str(file), "user.test") == b"\x00\xff"
    with pytest.raises(OSError) as caught:
        probe.xattr(str(file), "user.none")
    assert caught.value.errno == errno.ENODATA


def test_no_answer_is_a_timeout_and_the_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(probe, "_left_behind", left)
    monkeypatch.setattr(probe, "_CODE", "import signal; signal.pause()")
    with pytest.raises(TimeoutError):
        probe.look(str(tmp_path), limit_s=0.05)
    (child,) = left
    assert child.wait() == -9
