"""A keeper and its daemon are killed, as Slurm kills all of the job that has started them: whoever uses the mount goes
on with it, and reads on without an error; with the last the mount goes.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.ledger import Quota, ServedSource
from hfs.mountd.ledger.record import write_grant, write_serving
from hfs.mounting import keeper
from tests.fuse.harness import children, environment, hfs_command, kill, must, wait_gone
from tests.fuse.users import needs_root

# What has been opened before is read only afterwards, and a directory is listed that nobody has looked at.
COMMAND = 'exec 9<"$0/first"; echo opened; read -r _; cat <&9 && cat "$0/first" "$0/below/second" && ls "$0/other"'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    for name in ("below", "other"):
        (folder / name).mkdir(parents=True)
    (folder / "first").write_text("1\n")
    (folder / "below" / "second").write_text("2\n")
    (folder / "other" / "third").touch()
    return folder


class Running:
    """`hfs run` of a command that has a file open, and goes on when it is told to."""

    def __init__(self, source: Path, folder: Path) -> None:
        options = ("--cache", folder / "cache", "--cache-size", "100M", "-o", f"log-file={folder}/log", "--quiet")
        self.process = subprocess.Popen(
            [hfs_command(), "run", "--source", source, *options, "--", "bash", "-c", COMMAND, source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "opened\n"

    def kill(self) -> None:
        if self.process.poll() is None:
            for pid in (*children(self.process.pid), self.process.pid):
                kill(pid)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        said, errors = self.process.communicate("\n", timeout=50)
        return self.process.returncode, said, errors


@pytest.fixture
def three(source: Path, tmp_path: Path) -> Iterator[list[Running]]:
    found: list[Running] = []
    try:
        for _ in range(3):
            found.append(Running(source, tmp_path))
        yield found
    finally:
        for running in found:
            running.kill()


def keepers_of(source: Path) -> list[keeper.FoundKeeper]:
    return [kept for kept in keeper.ours() if kept.config.get("source") == str(source)]


def keeper_of(source: Path) -> keeper.FoundKeeper:
    (found,) = keepers_of(source)
    return found


def kill_with_daemons(kept: keeper.FoundKeeper, *more: int) -> None:
    """At once: nobody starts the next daemon."""
    daemon = int(kept.status["daemon"])
    pids = [kept.pid, daemon, *children(daemon), *more]
    for pid in pids:
        os.kill(pid, 9)
    for pid in pids:
        assert wait_gone(pid)


def test_those_who_use_a_mount_go_on_with_it(source: Path, three: list[Running]) -> None:
    first, second, third = three
    kept = keeper_of(source)
    kill_with_daemons(kept, first.process.pid, *children(first.process.pid) - {kept.pid})
    said = "1\n1\n2\nthird\n"
    code, out, errors = second.end()
    assert (code, out) == (0, said), errors
    assert "goes on" in errors
    again = keeper_of(source)
    assert again.pid != kept.pid
    kill_with_daemons(again)
    code, out, errors = third.end()
    assert (code, out) == (0, said), errors
    assert keepers_of(source) == [], errors


@needs_root
def test_records_of_other_users_keep_nobody_from_going_on_and_end_nothing(source: Path, tmp_path: Path) -> None:
    """In a root that several users share: one says that a process of ours, which is another daemon, serves this."""
    ledger = tmp_path / "cache" / "ledger"
    for folder in (ledger.parent, ledger):
        folder.mkdir()
        folder.chmod(0o1777)
    with contextlib.ExitStack() as stack:
        named = [sys.executable, "-c", "import time; time.sleep(100)", "hfs.mounting.daemon_process"]
        innocent = stack.enter_context(subprocess.Popen(named))
        stack.callback(innocent.kill)
        running = Running(source, tmp_path)
        stack.callback(running.kill)
        kept = keeper_of(source)
        mountpoint = os.fsencode(str(kept.status["mountpoint"]))
        fd = os.open(ledger / "4242-0123456789abcdef", os.O_RDWR | os.O_CREAT, 0o644)
        stack.callback(os.close, fd)
        write_grant(fd, Quota(0, 0, 0))
        write_serving(fd, ServedSource(source=b"/", device=1, inode=1, mountpoint=mountpoint, pid=innocent.pid))
        os.fchown(fd, 4242, 4242)
        fcntl.flock(fd, fcntl.LOCK_EX)
        kill_with_daemons(kept)
        code, out, errors = running.end()
        assert (code, out) == (0, "1\n1\n2\nthird\n"), errors
        assert innocent.poll() is None


@pytest.mark.long
def test_a_daemon_without_a_keeper_makes_room(source: Path, three: list[Running]) -> None:
    """Nobody would start the next one, and nobody knows who uses the mount: so another keeper and daemon go on."""
    kept = keeper_of(source)
    kill(kept.pid)
    for running in three:
        code, out, errors = running.end()
        assert (code, out, "goes on" in errors) == (0, "1\n1\n2\nthird\n", True), errors
    assert keepers_of(source) == [], errors


def test_where_nobody_goes_on_readers_get_an_error(source: Path, three: list[Running]) -> None:
    """Not one that waits for ever: whoever could go on has let go of the mount, and the commands never had it."""
    kept = keeper_of(source)
    must("umount", "-l", str(kept.status["mountpoint"]))
    kill_with_daemons(kept)
    for running in three:
        code, _, errors = running.end()
        assert (code, "nobody goes on: it was unmounted" in errors) == (1, True), errors
