"""What these tests stand on: slowfs shows its folder, and each kind of leftover is noticed."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.fuse.conftest import SMALL_CHUNK_BYTES
from tests.fuse.guard import RUN_KEY
from tests.fuse.harness import (
    COMMAND_LIMIT_S,
    ROOT,
    Guard,
    drop_pages,
    environment,
    kill,
    mounts_below,
    open_files,
    processes_of_run,
)
from tests.fuse.slowfs import SlowSource
from tests.fuse.trees import different_contents, different_stats, make_odd_tree
from tests.fuse.users import needs_root


def test_slowfs_shows_its_folder_unchanged(tmp_path: Path, slow_source: SlowSource) -> None:
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    slow = slow_source(tree)
    assert different_stats(tree, slow.path) == []
    assert different_contents(tree, slow.path) == []
    assert slow.counters()["read"] > 0


def test_dropped_pages_are_read_again(tmp_path: Path, slow_source: SlowSource) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * 300_000)
    slow = slow_source(tmp_path / "tree")
    for times in (1, 2):
        (slow.path / "file").read_bytes()
        (slow.path / "file").read_bytes()
        assert slow.counters()["read_bytes"] == times * 300_000
        drop_pages(slow.path / "file")


def test_differences_are_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for root in (one, other):
        root.mkdir()
        (root / "same-size").write_bytes(b"x" * 100_000)
        (root / "longer").write_bytes(b"x" * 10)
        (root / "link").symlink_to("longer")
    (other / "same-size").write_bytes(b"x" * 99_999 + b"y")
    (other / "longer").write_bytes(b"x" * 11)
    (other / "link").unlink()
    (other / "link").symlink_to("same-size")
    (other / "more").touch()
    contents = "\n".join(different_contents(one, other))
    assert "b'same-size': 100000 bytes read at 0, 100000 in the source; first differing 99999" in contents
    assert "b'longer': 11 bytes, in the source 10" in contents
    assert "b'link': leads to" in contents
    stats = "\n".join(different_stats(one, other))
    assert "only in the mount: b'more'" in stats
    assert "b'longer': st_size is 11, in the source 10" in stats


def test_leftovers_are_found(tmp_path: Path) -> None:
    before = open_files()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert open_files()[descriptor] != before.get(descriptor)
    os.close(descriptor)
    sleeper = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    by_environment = subprocess.Popen(sleeper, env=environment(), **pipes)
    by_command = subprocess.Popen([*sleeper, tmp_path / "x"], env={}, **pipes)
    for process in (by_environment, by_command):
        assert process.stdin
        assert process.stdout
        process.stdout.readline()  # it runs: in the middle of exec(2) it has neither environment nor command line
        assert process.pid in processes_of_run(tmp_path)
        process.stdin.close()
        process.stdout.close()
        kill(process.pid)
        process.wait()


def test_what_another_run_started_is_its_own(tmp_path: Path) -> None:
    """hfs doctor of another test looks at this one's mount."""
    command = [sys.executable, "-c", "print(flush=True); input()", tmp_path / "x"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment({RUN_KEY: "another"}), **pipes) as process:
        assert process.stdout
        process.stdout.readline()  # it runs, as above
        assert process.pid not in processes_of_run(tmp_path)
        kill(process.pid)


def test_a_read_of_a_hung_mount_is_ended(tmp_path: Path, slow_source: SlowSource) -> None:
    """The guard kills what hangs, so that the reader gets an error instead of waiting for ever."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * 10)
    slow = slow_source(tmp_path / "tree")
    slow.order("fault read hang")
    with contextlib.closing(Guard()) as guard:
        with guard.unblock_after(COMMAND_LIMIT_S, tmp_path):
            pass  # in time
        with guard.unblock_after(0.1, tmp_path):
            try:
                answer = (slow.path / "file").read_bytes()
            except OSError as error:
                answer = error.strerror.encode()
    assert answer in {b"Transport endpoint is not connected", b"Software caused connection abort"}


@needs_root
def test_what_a_killed_runner_has_mounted_and_started_goes(tmp_path: Path) -> None:
    (tmp_path / "test" / "mnt").mkdir(parents=True)
    script = """
import os, pathlib, subprocess, sys
from tests.fuse.harness import Guard, environment, must
with Guard().unblock_after(60, pathlib.Path(sys.argv[1])):
    must("mount", "-t", "tmpfs", "none", f"{sys.argv[1]}/mnt")
    subprocess.Popen(["sleep", "1000"], env=environment())
    os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", script, tmp_path / "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # until all have ended
    assert "its runner has ended" in done.stderr
    assert mounts_below(tmp_path) == []
