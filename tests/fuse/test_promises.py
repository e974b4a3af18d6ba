"""The README's promises, each tested by its own words through a real mount."""

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, must, run, wait_gone
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import explain, pattern

CHUNK = 64 << 10


def write(path: Path, seed: int, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pattern(seed + 1, 0, size))


def same(path: Path, seed: int, size: int) -> None:
    data = path.read_bytes()
    assert data == pattern(seed + 1, 0, size), explain(seed + 1, 0, data)


def test_one_node_one_version(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """An open file keeps its version; a new open sees a change of the source; never a mixture of two versions."""
    size = 6 * CHUNK
    path = tmp_path / "source" / "f"
    write(path, 1, size)
    hfs = hfs_mount(path.parent, "--ttl", "0", chunk_bytes=CHUNK)
    with (hfs.path / "f").open("rb", buffering=0) as first:
        assert os.pread(first.fileno(), 2 * CHUNK, 0) == pattern(2, 0, 2 * CHUNK)
        with path.open("r+b") as changed:
            changed.write(pattern(3, 0, size))
        with (hfs.path / "f").open("rb", buffering=0) as second:
            assert os.pread(second.fileno(), size, 0) == pattern(3, 0, size)
            assert os.pread(first.fileno(), 2 * CHUNK, 0) == pattern(2, 0, 2 * CHUNK)
            for offset in range(0, size, CHUNK):
                try:
                    data = os.pread(first.fileno(), CHUNK, offset)
                except OSError as error:
                    assert error.errno == errno.ESTALE
                else:
                    assert data == pattern(2, offset, CHUNK), explain(2, offset, data)
    same(hfs.path / "f", 2, size)


@pytest.mark.in_modes("passthrough", "stateless")
def test_the_source_is_read_once(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """The source is read once: by any number of processes, over any number of epochs that the cache holds."""
    backing = tmp_path / "backing"
    total = 0
    for i in range(24):
        size = 5000 + 40_000 * i
        write(backing / f"d{i % 3}" / str(i), i, size)
        total += size
    slow = slow_source(backing)
    hfs = hfs_mount(slow.path)
    reader = "import pathlib, sys; [p.read_bytes() for p in pathlib.Path(sys.argv[1]).rglob('*') if p.is_file()]"
    for _ in range(2):
        readers = [subprocess.Popen([sys.executable, "-c", reader, str(hfs.path)]) for _ in range(4)]
        assert [r.wait() for r in readers] == [0] * 4
    assert slow.counters()["read_bytes"] == total
    hfs.umount()
    hfs.mount()  # and over remounts
    for i in range(24):
        same(hfs.path / f"d{i % 3}" / str(i), i, 5000 + 40_000 * i)
    assert slow.counters()["read_bytes"] == total


def test_an_error_of_the_source_reaches_the_reader(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """An error of the source reaches the reader, after transient ones were tried again; nothing of it is kept."""
    write(tmp_path / "backing" / "f", 1, 3 * CHUNK)
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "-o", "push=no")
    hfs.expect_warning("answered with an I/O error")
    slow.order("fault read eio 1 forever")
    with pytest.raises(OSError, match="Input/output error"):
        (hfs.path / "f").read_bytes()
    slow.order("clear")
    same(hfs.path / "f", 1, 3 * CHUNK)
    slow.order("fault read eio 1")
    write(tmp_path / "backing" / "g", 2, 3 * CHUNK)
    same(hfs.path / "g", 2, 3 * CHUNK)


@pytest.mark.alone
def test_a_hung_source_holds_only_its_readers(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """A source that hangs holds only those who read from it: staged files, hfs status and unmounting go on."""
    for i in range(140):
        write(tmp_path / "backing" / ("staged" if i < 10 else "hung") / str(i), i, 3000)
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path)
    must(sys.executable, "-m", "hfs", "cache", "warm", hfs.path / "staged")
    slow.order("fault read hang path /hung/")
    readers = [
        subprocess.Popen(["cat", str(hfs.path / "hung" / str(i))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for i in range(10, 138)
    ]
    try:
        while hfs.status()["open"]["files"] < 128:
            pass
        if os.geteuid() == 0:
            with open("/proc/sys/vm/drop_caches", "w") as drop:
                drop.write("3")
        for i in range(10):
            same(hfs.path / "staged" / str(i), i, 3000)
    finally:
        slow.order("clear")
        for reader in readers:
            reader.wait()
    assert [r.returncode for r in readers] == [0] * len(readers)


def test_unmounting_works_while_the_source_hangs(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """A source that hangs: unmounting goes on."""
    write(tmp_path / "backing" / "f", 1, 3000)
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "-o", "push=no")
    slow.order("fault read hang")
    with subprocess.Popen(["cat", str(hfs.path / "f")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        while not slow.counters()["parked"]:
            pass
        must("umount", "-l", hfs.path)
        with contextlib.suppress(ProcessLookupError):
            os.kill(hfs.pid, signal.SIGTERM)
        assert wait_gone(hfs.pid), hfs.log_text()
        hfs.mounted = False
        slow.order("clear")
        reader.wait()


@pytest.mark.in_modes("passthrough", "stateless")
def test_kill_9_never_leads_to_a_wrong_byte(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """kill -9 of the daemon at any moment never leads to a wrong byte later; what was synced is used again."""
    sizes = {i: 1000 + 7919 * i for i in range(60)}
    for i, size in sizes.items():
        write(tmp_path / "backing" / str(i), i, size)
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path)
    for count in (3, 21, 48):
        reader = threading.Thread(target=_read_until_dead, args=(hfs.path, count))
        reader.start()
        reader.join()
        hfs.kill()
        hfs.mount()
        for i, size in sizes.items():
            same(hfs.path / str(i), i, size)
    done = run(sys.executable, "-m", "hfs", "cache", "check", hfs.path, "--against-source")
    assert done.returncode == 0, done.stdout + done.stderr


def _read_until_dead(folder: Path, count: int) -> None:
    for path in sorted(folder.iterdir())[:count]:
        path.read_bytes()


def _taken_bytes(folder: Path) -> int:
    """What the files below `folder` take of the disk; some go meanwhile."""
    taken = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            taken += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return taken


def test_the_cache_never_takes_more_than_its_size(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """The cache never takes more than its size; what does not fit is served all the same."""
    for i in range(40):
        write(tmp_path / "source" / str(i), i, 100_000)
    for number, policy in enumerate(("fill-once", "lru")):
        hfs = hfs_mount(
            tmp_path / "source",
            *("--eviction", policy),
            cache_size="1M",
            cache=tmp_path / f"cache-{number}",
        )
        for _ in range(2):
            for i in range(40):
                same(hfs.path / str(i), i, 100_000)
                assert _taken_bytes(hfs.own_cache / "objects") <= 1 << 20
        status = hfs.status()
        assert 0 < status["staged"]["bytes"] <= 1 << 20
        if policy == "lru":
            assert status["evicted"]["files"] > 0
        hfs.umount()


def test_names_attributes_and_symbolic_links_into_the_source_are_shown_as_they_are(
    tmp_path: Path, hfs_mount: HfsMount
) -> None:
    """Symbolic links are shown as they are; those that lead into SOURCE by an absolute path are counted and named."""
    source = tmp_path / "source"
    write(source / "f", 1, 10)
    (source / "inside").symlink_to(source / "f")
    (source / "outside").symlink_to("/etc/hostname")
    hfs = hfs_mount(source)
    assert os.readlink(hfs.path / "inside") == str(source / "f")
    os.readlink(hfs.path / "outside")
    status = hfs.status()["source"]
    assert (status["absolute_links"], status["absolute_links_named"]) == (1, ["inside"])


def test_our_own_extended_attributes(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """user.hfs.state, user.hfs.tier and user.hfs.socket."""
    write(tmp_path / "source" / "f", 1, 1000)
    hfs = hfs_mount(tmp_path / "source")
    assert stat.S_ISSOCK(os.stat(os.fsdecode(os.getxattr(hfs.path, "user.hfs.socket"))).st_mode)
    assert os.getxattr(hfs.path / "f", "user.hfs.tier") == b"source"
    same(hfs.path / "f", 1, 1000)
    must(sys.executable, "-m", "hfs", "cache", "warm", hfs.path / "f")
    assert os.getxattr(hfs.path / "f", "user.hfs.tier") == b"staged"
    assert os.getxattr(hfs.path / "f", "user.hfs.state") == b"complete"
    with pytest.raises(OSError, match="No data"):
        os.getxattr(hfs.path / "f", "user.hfs.unknown")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may abort a FUSE connection")
def test_a_daemon_ends_with_its_mount_whatever_its_readers_wait_for(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Unmounted while the source hangs, and the reader has gone: the daemon ends by itself, the cache is free."""
    write(tmp_path / "backing" / "f", 1, 3000)
    slow = slow_source(tmp_path / "backing")
    hfs = hfs_mount(slow.path, "-o", "push=no")
    hfs.expect_warning("fuse_reply_")  # pyfuse3 tells that nobody took the answer
    device = hfs.path.stat().st_dev
    slow.order("fault read hang")
    with subprocess.Popen(["cat", str(hfs.path / "f")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        while not slow.counters()["parked"]:
            pass
        # What an administrator does with a mount that hangs.
        connection = Path("/sys/fs/fuse/connections") / str(os.minor(device))
        must("umount", "-l", hfs.path)
        (connection / "abort").write_text("1")
        reader.wait()
    assert wait_gone(hfs.pid), hfs.log_text()
    hfs.mounted = False
    slow.order("clear")
