"""Looking at paths in a child process: what it finds, what it raises, and that it does not wait for ever. And
processes of ours that are installed beside modules with the names of Python's own."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hfs.mounting import own_process, probe


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


def test_a_command_has_one_child_that_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has ended is followed by another, and none is left when the block ends."""
    made: list[subprocess.Popen[bytes]] = []
    start = probe._child
    monkeypatch.setattr(probe, "_child", lambda *given: made.append(start(*given)) or made[-1])
    with probe.kept():
        for _ in range(2):
            assert probe.look(str(tmp_path)).inode == tmp_path.stat().st_ino
            with pytest.raises(OSError, match="No such file"):
                probe.xattr(str(tmp_path / "none"), "user.test")
        assert len(made) == 1
        made[0].kill()
        with pytest.raises(OSError, match="exit code -9"):
            probe.look(str(tmp_path))
        assert probe.look(str(tmp_path)).has_entries is False
    assert [child.returncode for child in made] == [-9, 0]
    probe.look(str(tmp_path))
    assert len(made) == 3
    assert made[2].returncode == 0


ROOT = Path(own_process.__file__).parents[2]
BACKPORTS = ("dataclasses", "typing", "enum", "pathlib", "selectors", "json", "contextlib")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """hfs as it lies in site-packages, beside backports that a program of today must not get."""
    for name in ("hfs", "mountd", "policies"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BACKPORTS:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}: a backport')\n")
    return tmp_path


def test_only_hfs_comes_from_where_it_is_installed(installed: Path) -> None:
    code = "import hfs, json\ndef main(): print(hfs.__file__)\n"
    (installed / "hfs" / "said.py").write_text(code)
    command = [sys.executable, "-P", str(installed / "hfs" / "mounting" / "own_process.py"), "hfs.said", "x"]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == str(installed / "hfs" / "__init__.py")
    assert own_process.command("m", "a") == [sys.executable, "-P", own_process.__file__, "m", "a"]


@pytest.mark.slow
def test_a_daemon_and_a_keeper_start_there(installed: Path) -> None:
    daemon = [sys.executable, "-P", str(installed / "hfs" / "mounting" / "own_process.py")]
    done = subprocess.run(
        [*daemon, "hfs.mounting.daemon_process"],
        cwd=installed,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert b"backport" not in done.stdout + done.stderr
    keeper = [sys.executable, "-I", "-S", str(installed / "hfs" / "mountd" / "supervisor")]
    done = subprocess.run(keeper, cwd=installed, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert b"backport" not in done.stdout + done.stderr
    assert b"JSONDecodeError" in done.stderr  # it has come to its order, and there is none
    assert os.path.lexists(installed / "hfs" / "mountd")
