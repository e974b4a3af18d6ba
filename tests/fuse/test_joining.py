"""One daemon for all that mount a source from one cache root: joined, not refused; and gone with the last of them.

Real commands, sessions and namespaces; each test ends with nothing mounted.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mounting import keeper, mountinfo
from hfs.mounting.keeper import FoundKeeper
from tests.fuse.harness import HfsMount, children, environment, hfs_command, kill, mounts_below, must, run, wait_gone
from tests.fuse.users import needs_root
from tests.support.pattern import pattern

SIZE = 100_000
COUNT = 8


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(COUNT):
        (folder / str(number)).write_bytes(pattern(number + 1, 0, SIZE))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Held:
    """An `hfs run` whose command says that it runs, and ends when it is told."""

    def __init__(self, *arguments: str | Path, session: bool = True) -> None:
        code = "import sys; print('runs', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [hfs_command(), "run", *map(str, arguments), "--quiet", "--", sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment({}),
            start_new_session=session,
        )

    def runs(self) -> "Held":
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "runs\n"
        return self

    def end(self) -> int:
        """Let the command end; the exit code of hfs."""
        self.process.communicate(timeout=40)
        return self.process.returncode

    def kill(self) -> None:
        """kill -9 of `hfs run` and of its command."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=40)


@contextlib.contextmanager
def killed_at_the_end(runs: list[Held]) -> Iterator[None]:
    try:
        yield
    finally:
        for held in runs:
            if held.process.poll() is None:
                held.kill()


def ours(source: Path) -> list[mountinfo.Mount]:
    return [mount for mount in mountinfo.hfs_mounts() if mount.source == f"hfs#{source}"]


def held_by(mountpoint: str, count: int) -> tuple[FoundKeeper, list[int]]:
    """The keeper of the mount, and who holds it once there are so many: it learns of each process that has ended in a
    turn of its own."""
    while True:
        kept = keeper.find(mountpoint)
        assert kept is not None
        pids = [reference["pid"] for reference in kept.status["held_by"]]
        if len(pids) <= count:
            return kept, pids
        os.sched_yield()


def wait_unmounted(source: Path) -> None:
    for mount in ours(source):
        kept = keeper.find(mount.mountpoint)
        if kept is not None:
            assert wait_gone(kept.pid)
    assert ours(source) == []


# -- hfs mount --------------------------------------------------------------------------------------------------------


@needs_root
def test_another_mountpoint_shows_the_same_mount(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    hfs = hfs_mount(source)
    second = tmp_path / "second"
    second.mkdir()
    said = run(hfs_command(), "mount", source, second, "--cache", hfs.cache, *hfs.options)
    assert (said.returncode, said.stdout) == (0, "")
    assert "served by the daemon" in said.stderr
    assert (second / "1").read_bytes() == pattern(2, 0, SIZE)
    assert os.stat(second / "1").st_dev == os.stat(hfs.path / "1").st_dev
    must(hfs_command(), "umount", second)
    assert mounts_below(second) == []
    assert (hfs.path / "2").read_bytes() == pattern(3, 0, SIZE)
    hfs.look()


def test_the_same_mount_again_is_there_already(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    pid = hfs.pid
    hfs.mount()
    assert hfs.pid == pid
    assert mounts_below(hfs.path) == [str(hfs.path)]
    hfs.umount()


def test_a_session_that_joined_holds_the_mount(source: Path, hfs_mount: HfsMount) -> None:
    """Two tasks of a job array: the first to end does not take the mount from the other."""
    hfs = hfs_mount(source)
    script = f'"$0" mount "$1" "$2" --cache "$3" {" ".join(hfs.options)} && echo joined && read x && "$0" umount "$2"'
    with subprocess.Popen(
        ["sh", "-c", script, hfs_command(), source, hfs.path, hfs.cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({"XDG_CONFIG_HOME": str(hfs.log.parent / "no-config")}),
        start_new_session=True,
    ) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "joined\n"
        said = run(hfs_command(), "umount", hfs.path)
        assert said.returncode == 0
        assert "stays until these end" in said.stderr
        assert f"the session of process {task.pid} (hfs mount)" in said.stderr
        assert (hfs.path / "1").read_bytes() == pattern(2, 0, SIZE)
        task.communicate("\n", timeout=40)
        assert task.returncode == 0
    hfs.mounted = False
    assert wait_gone(hfs.keeper)
    assert mounts_below(hfs.path) == []


@pytest.mark.long
@needs_root
def test_a_session_is_known_from_another_pid_namespace(source: Path, hfs_mount: HfsMount) -> None:
    """There its number is another process's, or none."""
    hfs = hfs_mount(source)
    script = f'"$0" mount "$1" "$2" --cache "$3" {" ".join(hfs.options)} && echo joined && read x'
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, hfs_command(), source, hfs.path, hfs.cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({"XDG_CONFIG_HOME": str(hfs.log.parent / "no-config")}),
        start_new_session=True,
    ) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "joined\n"
        kept = keeper.find(str(hfs.path))
        assert kept is not None
        assert kept.status["held_by"] == [{"pid": container.pid, "command": "hfs mount", "session": True}]
        container.communicate("\n", timeout=40)
    hfs.umount()


# -- hfs run ----------------------------------------------------------------------------------------------------------


def test_in_place_the_command_alone_sees_the_data_at_its_source(source: Path, cache: Path, tmp_path: Path) -> None:
    """Also one that begins within SOURCE: its working directory is that of the mount, not the one below it; one within
    another; and, where it asks for that, at another place than the mount."""
    given = ("--source", source, "--cache", cache)
    command = (hfs_command(), "run", *given, "--quiet", "--")
    code = f"cat {source}/1 | cksum; id -u; touch {source}/x 2>&1; grep -c ' {source} .*fuse.hfs' /proc/self/mountinfo"
    held = Held(*given).runs()
    with killed_at_the_end([held]):
        assert os.stat(source / "1").st_dev == os.stat(source.parent).st_dev
        done = run(*command, "sh", "-c", code)
        assert done.returncode == 0, done.stderr
        expected = must("sh", "-c", f"cat {source}/1 | cksum")
        assert done.stdout.startswith(f"{expected}{os.geteuid()}\n")
        assert "Read-only file system" in done.stdout
        assert done.stdout.endswith("\n1\n")
        within = ("env", "-C", source, hfs_command(), "run", "--source", ".", "--cache", cache, "--quiet", "--")
        assert must(*within, "stat", "-f", "-c", "%T", ".") == "fuseblk\n"
        assert must(*command, *command, "stat", "-f", "-c", "%T", source) == "fuseblk\n"
        place = tmp_path / "place"
        place.mkdir()
        there = (hfs_command(), "run", *given, "--at", place, "--quiet", "--")
        assert must(*there, "cksum", place / "1").split()[1] == str(SIZE)
        assert mounts_below(place) == []
        assert held.end() == 0
    assert ours(source) == []


def test_eight_at_once_have_one_daemon_and_read_the_source_once(source: Path, cache: Path) -> None:
    runs = [Held("--source", source, "--cache", cache) for _ in range(8)]
    with killed_at_the_end(runs):
        for held in runs:
            held.runs()
        (mount,) = ours(source)
        for _ in range(2):
            read = f"cat {source}/* >/dev/null"
            must(hfs_command(), "run", "--source", source, "--cache", cache, "--quiet", "--", "sh", "-c", read)
        status = must(hfs_command(), "status", "--json", mount.mountpoint)
        assert f'"bytes": {COUNT * SIZE},' in status
        assert [held.end() for held in runs] == [0] * 8
    assert ours(source) == []


def test_killed_ones_leave_no_reference_and_harm_nobody(source: Path, cache: Path) -> None:
    runs = [Held("--source", source, "--cache", cache).runs() for _ in range(4)]
    with killed_at_the_end(runs):
        (mount,) = ours(source)
        for held in runs[:3]:  # whoever has started the daemon among them
            held.kill()
        kept, pids = held_by(mount.mountpoint, 2)
        left = runs[3].process.pid
        assert set(pids) == {left, *children(left)}
        assert (Path(mount.mountpoint) / "1").read_bytes() == pattern(2, 0, SIZE)
        runs[3].kill()
        assert wait_gone(kept.pid)
    assert ours(source) == []


def test_a_command_whose_hfs_run_was_killed_reads_on(source: Path, cache: Path) -> None:
    """As by the kernel for want of memory: what it has started goes on, and is the last that uses the mount."""
    code = f"echo runs; read x; cat {source}/1 | cksum"
    with subprocess.Popen(
        [hfs_command(), "run", "--source", source, "--cache", cache, "--quiet", "--", "sh", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment({}),
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        assert running.stdout.readline() == "runs\n"
        (mount,) = ours(source)
        kept = keeper.find(mount.mountpoint)
        assert kept is not None
        running.kill()
        running.wait()
        other = run(hfs_command(), "run", "--source", source, "--cache", cache, "--", "true")
        assert other.returncode == 0  # joins, and is not the last
        told = other.stderr.splitlines()
        assert told[0].startswith("hfs: joined after ")
        assert told[1:] == [
            "hfs: meanwhile, to all who read the mount: the source gave 0 B of about 0 B read",
            "hfs: staged: 0 files more, 0 B more",
        ]
        absent = run(hfs_command(), "run", "--source", source, "--cache", cache, "--", "/absent/command")
        said = "hfs: /absent/command: not found (No such file or directory); give the path of a program"
        assert (absent.returncode, absent.stderr.count("\n"), absent.stderr.startswith(said)) == (127, 1, True)
        print("go on", file=running.stdin, flush=True)
        assert running.stdout.read().strip() == must("sh", "-c", f"cat {source}/1 | cksum").strip()
        assert wait_gone(kept.pid)
    assert ours(source) == []


def test_it_lingers_for_the_next_task_of_an_array(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    command = (hfs_command(), "run", "--source", source, "--cache", cache, "--quiet", "--", "true")
    must(*command)
    (mount,) = ours(source)
    must(*command)
    assert ours(source) == [mount]
    kept = keeper.find(mount.mountpoint)
    assert kept is not None
    must(hfs_command(), "umount", mount.mountpoint)
    assert wait_gone(kept.pid)


def test_a_crash_of_the_daemon_takes_no_reference_away(source: Path, cache: Path) -> None:
    held = Held("--source", source, "--cache", cache, "--log-file", cache.parent / "log").runs()
    with killed_at_the_end([held]):
        (mount,) = ours(source)
        kept = keeper.find(mount.mountpoint)
        assert kept is not None
        kill(kept.status["daemon"])
        assert (Path(mount.mountpoint) / "1").read_bytes() == pattern(2, 0, SIZE)
        kept = keeper.find(mount.mountpoint)
        assert kept is not None
        assert len(kept.status["held_by"]) == 2  # `hfs run` and its command
        assert held.end() == 0
    wait_unmounted(source)


@needs_root
def test_a_second_mountpoint_goes_with_the_last_that_holds_the_mount(source: Path, cache: Path, tmp_path: Path) -> None:
    """Of a mount that `hfs run` has made: nothing is left of it, dead or alive."""
    second = tmp_path / "second"
    second.mkdir()
    held = Held("--source", source, "--cache", cache).runs()
    with killed_at_the_end([held]):
        script = '"$0" mount "$1" "$2" --cache "$3" 2>/dev/null && echo joined && read x'
        with subprocess.Popen(
            ["sh", "-c", script, hfs_command(), source, second, cache],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment({}),
            start_new_session=True,
        ) as session:
            assert session.stdout is not None
            assert session.stdout.readline() == "joined\n"
            assert held.end() == 0
            assert (second / "1").read_bytes() == pattern(2, 0, SIZE)
            kept = keeper.find(str(second))
            assert kept is not None
            session.communicate("\n", timeout=40)
        assert wait_gone(kept.pid)
    assert mounts_below(second) == []
    assert ours(source) == []


def test_who_asked_to_be_the_last_and_was_killed_leaves_no_mount(source: Path, cache: Path) -> None:
    held = Held("--source", source, "--cache", cache).runs()
    with killed_at_the_end([held]):
        (mount,) = ours(source)
        kept = keeper.find(mount.mountpoint)
        assert kept is not None
        one = kept.hold(0.0)
        assert one is not None
        held.kill()
        held_by(mount.mountpoint, 1)
        assert one.leave()
        one.close()  # as a kill does, before it has unmounted
        assert wait_gone(kept.pid)
    assert ours(source) == []


@needs_root
def test_a_command_keeps_no_other_mount_alive(source: Path, cache: Path, tmp_path: Path) -> None:
    """Its namespace begins with copies of all mounts: without them another source's ends while it goes on."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_bytes(pattern(50, 0, SIZE))
    first = Held("--source", other, "--cache", cache).runs()
    held = Held("--source", source, "--cache", cache).runs()
    with killed_at_the_end([first, held]):
        (mount,) = ours(other)
        kept = keeper.find(mount.mountpoint)
        assert kept is not None
        assert first.end() == 0
        assert wait_gone(kept.pid)
        assert held.end() == 0
    assert ours(source) == []


@needs_root
def test_in_place_other_mounts_are_seen_too_until_they_are_unmounted(
    source: Path, cache: Path, tmp_path: Path, hfs_mount: HfsMount
) -> None:
    """A job may read two data sets, of which an administrator has mounted one."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_bytes(pattern(50, 0, SIZE))
    other = hfs_mount(tmp_path / "other")
    command = (hfs_command(), "run", "--source", source, "--cache", cache, "--quiet", "--")
    same = must(*command, "sh", "-c", f"cmp {other.path}/x {tmp_path}/other/x && stat -f -c %T {source} {other.path}")
    assert same == "fuseblk\nfuseblk\n"
    held = Held("--source", source, "--cache", cache).runs()
    with killed_at_the_end([held]):
        other.umount()  # and its daemon has ended
        assert held.end() == 0


@needs_root
def test_runs_in_place_within_each_other(source: Path, cache: Path, tmp_path: Path) -> None:
    """Of a source that another job has in place too, whose mountpoint is nobody's to see."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_bytes(pattern(50, 0, SIZE))
    held = Held("--source", tmp_path / "other", "--cache", cache).runs()
    with killed_at_the_end([held]):
        outer = (hfs_command(), "run", "--source", source, "--cache", cache, "--quiet", "--")
        inner = (hfs_command(), "run", "--source", tmp_path / "other", "--cache", cache, "--quiet", "--")
        assert must(*outer, *inner, "stat", "-f", "-c", "%T", source, tmp_path / "other") == "fuseblk\nfuseblk\n"
        assert held.end() == 0
    assert ours(tmp_path / "other") == ours(source) == []


@pytest.mark.long
@needs_root
def test_a_mount_of_another_namespace_is_named(source: Path, cache: Path, tmp_path: Path) -> None:
    """Not waited for, as one that is just ending is."""
    place = tmp_path / "place"
    place.mkdir()
    script = '"$0" mount "$1" "$2" --cache "$3" >/dev/null && echo there && read x; "$0" umount "$2"'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, hfs_command(), source, place, cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment({}),
    ) as elsewhere:
        assert elsewhere.stdout is not None
        assert elsewhere.stdout.readline() == "there\n"
        said = run(hfs_command(), "run", "--source", source, "--cache", cache, "--", "true")
        elsewhere.communicate("\n", timeout=40)
    assert said.returncode == 125
    assert f"{source} is mounted at {place} in another mount namespace, which is not seen here" in said.stderr
