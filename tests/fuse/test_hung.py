"""A daemon that hangs is as dead as one that ended: the next one answers, on the same mount.

Real mounts. The limit is the keeper's own, some seconds, so most of these are slow.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, Hfs, HfsMount, children, environment, must, run
from tests.support.pattern import pattern

SIZE = 200_000
READ_S = 15.0
"""In which the mount answers again."""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can freeze a file system")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    tree.mkdir()
    for number in range(1, 9):
        (tree / str(number)).write_bytes(pattern(number, 0, SIZE))
    return tree


def reads(hfs: Hfs, number: int) -> None:
    """By a process that can be given up."""
    done = run("cmp", hfs.path / str(number), hfs.source / str(number), limit_s=READ_S)
    assert done.returncode == 0, done


def keeper_says(hfs: Hfs) -> tuple[object, ...]:
    hfs.look()
    keeper = hfs.status()["keeper"]
    return keeper["pid"], keeper["restarts"], keeper["hung"]


def test_a_daemon_that_was_stopped_is_followed(source: Path, hfs_mount: HfsMount) -> None:
    """As by a person or a debugger; also the one that waits for its turn. What was open reads on."""
    hfs = hfs_mount(source)
    hfs.expect_warning("it was stopped by a signal")
    with (hfs.path / "1").open("rb", buffering=0) as file, (hfs.path / "2").open("rb", buffering=0) as unread:
        begun = file.read(1000)
        for pid in children(hfs.keeper) | children(hfs.pid):
            os.kill(pid, signal.SIGSTOP)
        reads(hfs, 3)
        assert begun + Path(f"/proc/self/fd/{file.fileno()}").read_bytes()[1000:] == pattern(1, 0, SIZE)
        assert unread.read(SIZE) == pattern(2, 0, SIZE)
    assert keeper_says(hfs) == (hfs.keeper, 1, 1)


@pytest.fixture
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("sleeper") / "sleeper.so"
    must(compiler, "-shared", "-fPIC", "-o", library, ROOT / "scripts" / "benchmarks" / "faults" / "sleeper.c")
    return library


@pytest.fixture
def frozen(tmp_path: Path, _nothing_left: None) -> Iterator[Path]:
    """A file on a file system that is frozen until the end of the test."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(20 << 20)
    must("mkfs.ext4", "-q", image)
    must("mount", "-o", "loop", image, place)
    try:
        (place / "file").touch()
        must("fsfreeze", "--freeze", place)
        yield place / "file"
    finally:
        run("fsfreeze", "--unfreeze", place)
        must("umount", place)


@pytest.fixture
def asleep(
    tmp_path: Path, source: Path, sleeper: Path, frozen: Path, hfs_mount: HfsMount
) -> Iterator[tuple[Hfs, Callable[..., None]]]:
    """A mount, and asleep("reply-1"): a thread of it that reads requests will sleep in the kernel before its reply, or,
    by "take-1", before it takes one; by "take-2" one of the next daemon too."""
    links = tmp_path / "links"
    links.mkdir()
    hfs = hfs_mount(source, env={"LD_PRELOAD": str(sleeper), "MOUNT_TEST_SLEEP": str(links)})
    hfs.expect_warning("did not answer|sleeps in the kernel|does not answer|cache|ended after")
    for _ in range(3):  # then its threads answer without Python
        must("md5sum", *(hfs.path / str(number) for number in range(1, 9)))

    def begin(*names: str) -> None:
        for name in names:
            (links / name).symlink_to(frozen)

    yield hfs, begin
    must("fsfreeze", "--unfreeze", frozen.parent)


@contextlib.contextmanager
def many_readers(hfs: Hfs) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Of files that are open and of others; none of them may hang."""
    readers = [
        subprocess.Popen(["cat", hfs.path / str(number)], stdout=subprocess.DEVNULL, env=environment())
        for number in range(1, 9)
    ]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


@root_only
@pytest.mark.long
def test_a_thread_that_sleeps_in_the_kernel_holds_up_nobody(asleep: tuple[Hfs, Callable[..., None]]) -> None:
    """Its process cannot be killed. The reader whose request it had taken is told; nobody else notices."""
    hfs, begin = asleep
    with (hfs.path / "1").open("rb", buffering=0) as file:
        begin("reply-1")
        with many_readers(hfs) as readers:
            ended = [reader.wait(READ_S) for reader in readers]
        assert sum(ended) <= 1, ended
        reads(hfs, 2)
        assert file.read(SIZE) == pattern(1, 0, SIZE)
    assert keeper_says(hfs) == (hfs.keeper, 1, 1)


@root_only
@pytest.mark.long
def test_a_killed_daemon_that_does_not_go_is_followed(tmp_path: Path, asleep: tuple[Hfs, Callable[..., None]]) -> None:
    """Killed by somebody before it was found to hang: a zombie, whose thread sleeps on."""
    hfs, begin = asleep
    begin("reply-1")
    with many_readers(hfs) as readers:
        while list((tmp_path / "links").iterdir()):
            assert any(reader.poll() is None for reader in readers)
        os.kill(hfs.pid, signal.SIGKILL)
        ended = [reader.wait(READ_S) for reader in readers]
    assert sum(ended) <= 1, ended
    assert keeper_says(hfs) == (hfs.keeper, 1, 0)


@root_only
@pytest.mark.long
def test_where_the_next_one_hangs_too_the_mount_is_made_anew(
    tmp_path: Path, asleep: tuple[Hfs, Callable[..., None]]
) -> None:
    hfs, begin = asleep
    device = os.stat(hfs.path).st_dev
    begin("take-1", "take-2")
    while list((tmp_path / "links").iterdir()):
        with many_readers(hfs) as readers:
            for reader in readers:
                reader.wait(2 * READ_S)  # two hang
    reads(hfs, 2)
    assert os.stat(hfs.path).st_dev != device
    assert keeper_says(hfs) == (hfs.keeper, 2, 2)
