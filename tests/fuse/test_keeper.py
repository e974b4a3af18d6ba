"""A crash of the daemon costs its readers a moment: the keeper starts the next one on the same mount.

Real mounts, real kills. What an earlier daemon had taken, what waits, and what is asked anew must all be answered; a
mountpoint is never an empty directory.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from hfs.client.client import Client, find_socket
from hfs.mountd.core.config import Config
from hfs.mounting import mounting
from scripts.benchmarks.plain_user import as_plain_user
from tests.fuse.harness import Hfs, HfsMount, children, hfs_command, kill, mounts_below, must, run, wait_gone
from tests.fuse.injection import injected, raising
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.support.pattern import pattern

SIZE = 200_000
Value = TypeVar("Value")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    (tree / "sub").mkdir(parents=True)
    for number in (1, 2, 3):
        (tree / "sub" / str(number)).write_bytes(pattern(number, 0, SIZE))
    (tree / "file").write_bytes(pattern(9, 0, SIZE))
    return tree


@contextlib.contextmanager
def reader_that_waits(slow: SlowFs, hfs: Hfs) -> Iterator[None]:
    """In the block a look-up of sub/3, which the daemon has taken, waits for the source; behind it the bytes arrive."""
    slow.order("fault lookup hang path /sub/3")
    with subprocess.Popen(["cat", str(hfs.path / "sub" / "3")], stdout=subprocess.PIPE) as reader:
        while not slow.counters()["parked"]:
            assert reader.poll() is None
        yield
        slow.order("clear")
        assert reader.communicate()[0] == pattern(3, 0, SIZE)
    assert reader.returncode == 0


NO_SUCCESSOR = injected(raising("hfs.mountd.kernel.fastpath:resend"))
"""Each daemon that follows another fails as it begins."""


def crash_until_all_is_refused(hfs: Hfs) -> None:
    """None of the daemons that follow the one that is killed can start: it was mounted with NO_SUCCESSOR."""
    hfs.expect_warning("WARNING|ERROR|Traceback")
    kill(hfs.pid)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (hfs.path / "file").read_bytes()


def test_opens_and_look_ups_go_on_after_a_crash(source: Path, hfs_mount: HfsMount) -> None:
    """kill -9 of the daemon: names, listings and files are there again without anybody doing anything."""
    hfs = hfs_mount(source)
    assert (hfs.path / "sub" / "1").read_bytes() == pattern(1, 0, SIZE)
    before = hfs.pid
    hfs.expect_warning("was ended by SIGKILL .*; the next one is started")
    kill(hfs.pid)
    assert sorted(os.listdir(hfs.path)) == ["file", "sub"]
    assert (hfs.path / "sub" / "1").read_bytes() == pattern(1, 0, SIZE)  # known to the kernel by its old node
    assert (hfs.path / "sub" / "2").read_bytes() == pattern(2, 0, SIZE)  # new, in a directory known by its old node
    assert (hfs.path / "file").stat().st_size == SIZE
    hfs.look()
    assert hfs.pid != before
    assert hfs.pid in children(hfs.keeper)
    keeper = hfs.status()["keeper"]
    assert (keeper["pid"], keeper["restarts"], keeper["last_end"]) == (hfs.keeper, 1, "was ended by SIGKILL")
    for number in (2, 3):  # each is followed by another, whether or not one stands by
        hfs.crash()
        assert (hfs.path / "sub" / str(number)).read_bytes() == pattern(number, 0, SIZE)
    assert hfs.status()["keeper"]["restarts"] == 3


def test_a_request_that_was_taken_is_answered_by_the_next_daemon(
    tmp_path: Path, source: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """kill -9 while a look-up waits for the source: the reader waits a moment longer and gets its bytes."""
    slow = slow_source(source)
    hfs = hfs_mount(slow.path, "-o", "push=no")
    hfs.expect_warning("was ended by SIGKILL .*; the next one is started")
    with reader_that_waits(slow, hfs):
        os.kill(hfs.pid, signal.SIGKILL)
    hfs.look()


def test_a_handle_from_before_reads_on_or_is_stale(source: Path, hfs_mount: HfsMount) -> None:
    """Never an I/O error, never another file's bytes."""
    hfs = hfs_mount(source, "--io-mode", "daemon", "-o", "push=no")
    descriptor = os.open(hfs.path / "file", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 10, 0) == pattern(9, 0, 10)
        hfs.crash()
        other = os.open(hfs.path / "sub" / "2", os.O_RDONLY)
        try:
            found = os.pread(descriptor, SIZE, 0)  # what the kernel has, and what it asks for
            assert found == pattern(9, 0, SIZE)[: len(found)]
            found = os.pread(descriptor, 10, SIZE - 10)
            assert found == pattern(9, SIZE - 10, 10)
        except OSError as error:
            assert error.errno == errno.ESTALE
        finally:
            os.close(other)
    finally:
        os.close(descriptor)


def test_a_mount_over_its_source_goes_on(source: Path, hfs_mount: HfsMount) -> None:
    """The next daemon has the source by its descriptor: the path is the mount."""
    hfs = hfs_mount(source, "--over", at=source)
    hfs.crash()
    assert (source / "file").read_bytes() == pattern(9, 0, SIZE)


def test_a_killed_keeper_leaves_a_mount_that_serves(source: Path, hfs_mount: HfsMount) -> None:
    """The daemon goes on, and says that nobody would follow it; unmounting and SIGTERM work. With both killed the mount
    is dead, never an empty directory, and the next `hfs mount` makes it anew."""
    hfs = hfs_mount(source)
    kill(hfs.keeper)
    assert (hfs.path / "file").read_bytes() == pattern(9, 0, SIZE)
    found = hfs.status()["keeper"]
    assert found["pid"] is None
    assert "the keeper has ended" in found["reason"]
    os.kill(hfs.pid, signal.SIGTERM)
    assert wait_gone(hfs.pid)
    assert not os.path.ismount(hfs.path)
    hfs.mounted = False
    hfs.mount()
    hfs.kill()
    with pytest.raises(OSError, match="not connected"):
        os.listdir(hfs.path)
    hfs.mount()
    assert sorted(os.listdir(hfs.path)) == ["file", "sub"]
    kill(hfs.keeper)
    hfs.umount()


@pytest.mark.parametrize(
    ("whom", "number"),
    [*((whom, signal.SIGTERM) for whom in ("keeper", "daemon", "all")), ("all", signal.SIGINT)],
)
def test_signals_unmount(source: Path, hfs_mount: HfsMount, whom: str, number: signal.Signals) -> None:
    """SIGTERM and SIGINT to either of them or to both at once: unmounted, everything ended, nothing logged."""
    hfs = hfs_mount(source)
    if whom == "all":
        os.killpg(hfs.keeper, number)
    else:
        os.kill(hfs.keeper if whom == "keeper" else hfs.pid, number)
    assert wait_gone(hfs.keeper)
    assert wait_gone(hfs.pid)
    assert not os.path.ismount(hfs.path)
    hfs.mounted = False


def test_a_daemon_that_fails_leaves_no_empty_directory(source: Path, hfs_mount: HfsMount) -> None:
    """The daemons that follow cannot start, and readers are told."""
    hfs = hfs_mount(source, env=NO_SUCCESSOR)
    crash_until_all_is_refused(hfs)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.listdir(hfs.path)
    said = must("sh", "-c", f"hfs status {hfs.path} 2>&1; true")
    assert "5 daemons ended as soon as they had begun, the last failed: the daemon failed" in said, said
    assert "every request gets an I/O error" in said
    assert said.count("\n") == 1
    assert "every request gets an I/O error" in hfs.log_text()
    must("hfs", "umount", hfs.path)
    assert wait_gone(hfs.keeper)
    hfs.mount()
    assert (hfs.path / "file").read_bytes() == pattern(9, 0, SIZE)


# -- where a connection cannot be taken up ----------------------------------------------------------------------------


@pytest.fixture
def without_resend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts that `mounting.start` makes in this process are as on a kernel before 6.9."""
    order = mounting._order
    monkeypatch.setattr(mounting, "_order", lambda *arguments, **more: order(*arguments, resend=False, **more))


@pytest.fixture
def started(source: Path, tmp_path: Path, without_resend: None) -> Iterator[mounting.StartedDaemon]:
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    log = tmp_path / "log"
    config = Config(source=str(source), mountpoint=str(mnt), cache=str(tmp_path / "cache"), log_file=str(log))
    config = msgspec.structs.replace(config, cache_size_bytes=1 << 30, io_mode="daemon", push=False)
    daemon = mounting.start(config, {})
    try:
        yield daemon
    finally:
        mounting.unmount(str(mnt))
        assert daemon.wait_gone(20), log.read_text()
        assert mounts_below(mnt) == []


def until_mounted(ask: Callable[[], Value]) -> Value:
    """What `ask` gives, once it is no error that says that the mount is dead."""
    while True:
        try:
            return ask()
        except OSError as error:
            assert error.errno in {errno.ENOTCONN, errno.ECONNABORTED}


def pid_of(mnt: Path) -> int:
    return Client(find_socket(str(mnt))).pid()


def test_without_resending_the_mount_is_made_again(source: Path, started: mounting.StartedDaemon) -> None:
    """As before Linux 6.9: who waits gets an error, who asks anew is served, and never is the directory empty."""
    mnt = Path(started.mountpoint)
    first = pid_of(mnt)
    assert (mnt / "file").read_bytes() == pattern(9, 0, SIZE)
    descriptor = os.open(mnt / "sub" / "2", os.O_RDONLY)
    try:
        kill(first)
        while True:
            try:
                names = set(os.listdir(mnt))
                break
            except OSError as error:
                assert error.errno in {errno.ENOTCONN, errno.ECONNABORTED}
        assert names == {"file", "sub"}
        assert (mnt / "sub" / "1").read_bytes() == pattern(1, 0, SIZE)
        assert pid_of(mnt) != first
        with pytest.raises(OSError, match="not connected"):
            os.pread(descriptor, 10, 0)
    finally:
        os.close(descriptor)


def test_without_resending_a_reader_that_waits_is_told(source: Path, started: mounting.StartedDaemon) -> None:
    """What the dead daemon had taken would wait for ever: it ends with an error."""
    mnt = Path(started.mountpoint)
    first = pid_of(mnt)
    os.kill(first, signal.SIGSTOP)
    with subprocess.Popen(["cat", str(mnt / "sub" / "3")], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        os.kill(first, signal.SIGKILL)
        said = reader.communicate()[1]
    assert reader.returncode == 0 or b"not connected" in said or b"abort" in said, said
    assert until_mounted((mnt / "sub" / "3").read_bytes) == pattern(3, 0, SIZE)


# -- another release --------------------------------------------------------------------------------------------------


def take_over(hfs: Hfs, *options: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    settings = {"HFS_LOG_FILE": str(hfs.log), **(env or {})}
    arguments = ("--cache", hfs.cache, *(options or hfs.options))
    return run(hfs_command(), "mount", "--take-over", hfs.source, hfs.path, *arguments, env=settings)


def test_another_release_takes_a_mount_over(source: Path, hfs_mount: HfsMount) -> None:
    """Another daemon with other options; a reader in the middle of it sees every byte and no error."""
    hfs = hfs_mount(source)
    before = hfs.pid
    code = """
import sys
import tempfile
with open(sys.argv[1], "rb") as file:
    for wanted in range(4):
        sys.stdin.readline()
        with open(sys.argv[1], "rb") as again:
            print(len(again.read()), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(hfs.path / "sub" / "1")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for _ in range(2):
            reader.stdin.write(b"\n")
            reader.stdin.flush()
            assert int(reader.stdout.readline()) == SIZE
        done = take_over(hfs, *hfs.options, "--ttl", "7")
        assert done.returncode == 0, done.stderr
        reader.communicate(b"\n\n")
    assert reader.returncode == 0
    hfs.look()
    assert f"taken over by process {hfs.pid}, hfs " in done.stderr
    assert hfs.pid != before
    assert wait_gone(before)
    status = hfs.status()
    assert status["config"]["ttl"]["value"] == 7
    assert status["keeper"] == {**status["keeper"], "pid": hfs.keeper, "restarts": 0, "last_end": None}
    hfs.crash()  # the next one is of the new release, too
    assert hfs.status()["config"]["ttl"]["value"] == 7


def test_a_take_over_answers_what_waits(source: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """A look-up that the old daemon had taken and could not answer is answered by the new one."""
    slow = slow_source(source)
    hfs = hfs_mount(slow.path, "-o", "push=no")
    with reader_that_waits(slow, hfs):
        done = take_over(hfs)
        assert done.returncode == 0, done.stderr
    hfs.look()


def test_a_take_over_that_cannot_be_leaves_the_old_one(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """A release that dies as it is loaded, or when it is given the mount; another SOURCE, or other options of the mount
    itself, which are refused in words: the mount goes on as before."""
    hfs = hfs_mount(source)
    hfs.expect_warning("could not take the mount over|ERROR|Traceback")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text("import sys\nsys.modules['trio'] = None\n")
    done = take_over(hfs, env={"PYTHONPATH": str(tmp_path / "broken")})
    assert done.returncode == 1
    assert "could not take the mount over: it failed:" in done.stderr
    assert (hfs.path / "sub" / "1").read_bytes() == pattern(1, 0, SIZE)
    done = take_over(hfs, "--cache", str(tmp_path / "source" / "file" / "nothing"))
    assert done.returncode == 1
    assert "could not take the mount over: it failed:" in done.stderr
    assert (hfs.path / "sub" / "2").read_bytes() == pattern(2, 0, SIZE)
    hfs.look()
    before = hfs.pid
    done = take_over(hfs, *hfs.options, "-o", "allow-other=no")
    assert done.returncode == 2
    assert "allow-other: the mount was made with on, and off is asked for" in done.stderr
    other = run(hfs_command(), "mount", "--take-over", source / "sub", hfs.path, "--cache", hfs.cache)
    assert other.returncode == 2
    assert "SOURCE: the mount was made with" in other.stderr
    (tmp_path / "empty").mkdir()
    none = run(hfs_command(), "mount", "--take-over", source, tmp_path / "empty", "--cache", hfs.cache)
    assert none.returncode == 1
    assert "no hfs is mounted there" in none.stderr
    hfs.look()
    assert hfs.pid == before
    assert hfs.status()["keeper"]["restarts"] == 0


def test_a_take_over_mends_a_mount_that_refuses(source: Path, hfs_mount: HfsMount) -> None:
    """After a loop of crashes all is refused; a release that works ends that."""
    hfs = hfs_mount(source, env=NO_SUCCESSOR)
    crash_until_all_is_refused(hfs)
    done = take_over(hfs)
    assert done.returncode == 0, done.stderr
    assert (hfs.path / "file").read_bytes() == pattern(9, 0, SIZE)
    hfs.look()


# -- a plain user -----------------------------------------------------------------------------------------------------

AS_A_USER = """
hfs mount "$1/source" "$1/mnt" --cache "$1/cache" || exit 10
grep " $1/mnt " /proc/self/mountinfo
cmp "$1/source/file" "$1/mnt/file" || exit 11
pid=$(hfs status --json "$1/mnt" | sed 's/^{"pid": \\([0-9]*\\).*/\\1/')
kill -9 $pid
cmp "$1/source/file" "$1/mnt/file" || exit 12
ls "$1/mnt/sub" | wc -l
hfs mount --take-over "$1/source" "$1/mnt" --cache "$1/cache" || exit 13
cmp "$1/source/sub/1" "$1/mnt/sub/1" || exit 14
hfs umount "$1/mnt" || exit 15
grep -c " $1/mnt " /proc/self/mountinfo
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_a_plain_user_has_a_keeper_too(source: Path) -> None:
    """Mounted with fusermount3, which sends the descriptor: the same holds, and the mount is the user's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(source, f"{folder}/source")
        for name in ("mnt", "cache"):
            os.mkdir(f"{folder}/{name}")
            os.chown(f"{folder}/{name}", 65534, 65534)
        done = run(
            *as_plain_user(folder),
            *("env", f"HOME={folder}", f"HFS_LOG_FILE={folder}/cache/log", "sh", "-c", AS_A_USER, "sh", folder),
        )
    line, names, none = done.stdout.splitlines()
    assert " ro,nosuid,nodev,relatime - fuse.hfs hfs\\043" in line, done
    assert "user_id=65534,group_id=65534,default_permissions" in line, done
    assert (names, none, done.returncode) == ("3", "0", 1), done
