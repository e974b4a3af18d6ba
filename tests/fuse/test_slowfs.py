"""The simulated slow file system, scripts/slowfs: what it shows, counts and charges, how it fails and hangs on demand,
and what it refuses. Every fault test and benchmark believes it.

What an operation costs is read from its counters, never from a clock. Readers that may hang are processes.
"""

import errno
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import COMMAND_LIMIT_S, must, wait_gone
from tests.fuse.slowfs import PROGRAM, SlowFs, SlowSource

PAGE = 4096


@pytest.fixture
def mount(tmp_path: Path, slow_source: SlowSource) -> SlowSource:
    """mount(*options): a slowfs before tmp_path/backing."""
    (tmp_path / "backing").mkdir()
    return lambda *options: slow_source(tmp_path / "backing", "none", *options)


@pytest.fixture
def readers(_nothing_left: None) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts a process that reads a file past the page cache and prints it; none is left behind."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = ["dd", f"if={path}", "iflag=direct", "bs=64K", "status=none"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=COMMAND_LIMIT_S)


def until(slow: SlowFs, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Asks again until `holds` of the counters; the test's own time limit ends what never comes."""
    while not holds(slow.counters()):
        os.sched_yield()


def files(backing: Path, count: int, size: int = 100) -> list[str]:
    """Makes `count` files of different bytes; their names."""
    names = [f"file{i}" for i in range(count)]
    for i, name in enumerate(names):
        (backing / name).write_bytes(bytes([65 + i]) * size)
    return names


def errno_of(action: Callable[[], object]) -> int:
    """The errno `action` fails with; 0 when it does not fail."""
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def read_direct(path: Path, size: int, offset: int = 0) -> bytes:
    """One read of `size` bytes at `offset` (multiples of a page) past the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, size) as buffer:
            return buffer[: os.preadv(descriptor, [buffer], offset)]
    finally:
        os.close(descriptor)


def test_cost_model() -> None:
    subprocess.run([PROGRAM, "--self-test"], check=True, capture_output=True, timeout=COMMAND_LIMIT_S)


@pytest.mark.parametrize("wrong", ["read_us", "read_us=", "read_us=-1", "read_us=1x", "nothing_us=1", "inflight=0"])
def test_wrong_settings_are_refused(tmp_path: Path, wrong: str) -> None:
    command = [PROGRAM, "--set", wrong, tmp_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_a_sparse_file_past_4_gib(mount: SlowSource) -> None:
    slow = mount()
    end = 20_000_000_000
    with open(slow.backing / "huge", "wb") as file:
        file.seek(end - 5)
        file.write(b"tail!")
    with open(slow.path / "huge", "rb") as file:
        assert os.fstat(file.fileno()).st_size == end
        assert os.pread(file.fileno(), 100, end - 10) == b"\0" * 5 + b"tail!"
        assert os.pread(file.fileno(), 100, end) == b""
        assert os.pread(file.fileno(), 8192, 5_000_000_000) == bytes(8192)


def test_inode_numbers_that_are_used_again(mount: SlowSource) -> None:
    slow = mount()
    for i in range(40):
        (slow.backing / f"file{i}").write_bytes(b"%d" % i)
        assert (slow.path / f"file{i}").read_bytes() == b"%d" % i
        (slow.backing / f"file{i}").unlink()


def test_renamed_directories(mount: SlowSource) -> None:
    slow = mount()
    (slow.backing / "a").mkdir()
    (slow.backing / "a/file").write_bytes(b"first")
    with open(slow.path / "a/file", "rb") as file:
        (slow.backing / "a").rename(slow.backing / "b")
        (slow.backing / "a").mkdir()
        (slow.backing / "a/file").write_bytes(b"second")
        assert (slow.path / "b/file").read_bytes() == b"first"
        assert file.read() == b"first"


def test_the_control_file_is_in_no_listing(mount: SlowSource) -> None:
    slow = mount()
    (slow.backing / ".slowfs").write_text("hidden by ours")
    files(slow.backing, 1)
    assert os.listdir(slow.path) == ["file0"]
    assert slow.counters()["readdir_names"] == 1


class Few(SlowFs):
    """May have few descriptors."""

    def mount(self) -> None:
        self.path.mkdir()
        must("prlimit", "--nofile=100:100", PROGRAM, *self.options, self.backing, self.path)
        self.pid = int(self.counters()["pid"])


@pytest.mark.skipif(os.geteuid() != 0, reason="file handles can be opened by root only")
def test_more_files_than_descriptors(tmp_path: Path) -> None:
    folder = tmp_path / "backing" / "folder"
    folder.mkdir(parents=True)
    for number in range(300):
        (folder / f"{number:03}").write_text(f"this is {number}")
    with closing(Few(tmp_path / "backing", tmp_path / "few", options=("--set", "lookup_us=1"))) as slow:
        slow.mount()
        shown = slow.path / "folder"
        for _ in range(2):
            for number in range(300):
                assert os.stat(shown / f"{number:03}").st_ino == os.stat(folder / f"{number:03}").st_ino
                assert (shown / f"{number:03}").read_text() == f"this is {number}"
        assert 50 <= len(os.listdir(f"/proc/{slow.pid}/fd")) < 100
        # A file that has taken the place of another, perhaps its inode number too, is not taken for it.
        for number in range(100, 300):
            (folder / f"{number:03}").unlink()
        for number in range(100, 300):
            (folder / f"new {number:03}").write_text(f"now {number}")
        for number in range(100, 300):
            assert (shown / f"new {number:03}").read_text() == f"now {number}"


def test_operations_and_bytes(mount: SlowSource) -> None:
    slow = mount("--preset", "lustre")
    files(slow.backing, 2)
    slow.order("reset")
    for _ in range(2):  # the second time comes from the kernel's caches, but for the open
        assert (slow.path / "file0").read_bytes() == b"A" * 100
    assert not (slow.path / "missing").exists()
    state = slow.counters()
    assert [state[kind] for kind in ("lookup", "open", "read", "read_bytes")] == [2, 2, 1, 100]
    assert state["latency_us"] == dict.fromkeys(state["latency_us"], 0) | {
        "lookup": 2000,
        "open": 4000,
        "read": 1000,
        "getattr": 1000 * state["getattr"],
    }
    slow.order("reset")
    state = slow.counters()
    assert (state["lookup"], state["read_bytes"], state["latency_us"]["open"]) == (0, 0, 0)


def test_seeks_of_disks(mount: SlowSource) -> None:
    """Each place of each file that no read has led to costs one; without spindles none does."""
    slow = mount("--preset", "disk", "--set", "seek_us=1")
    far = (4 << 20) // PAGE
    for name in ("a", "b"):
        (slow.backing / name).touch()
        os.truncate(slow.backing / name, 16 << 20)
    for name, page in (("a", 0), ("b", 0), ("a", 1), ("a", far), ("a", far + 1), ("a", 2), ("a", 1)):
        assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
    # The last one begins before all ends but that of the first read.
    state = slow.counters()
    assert (state["read"], state["seeks"]) == (7, 3)
    slow.order("set spindles 0")
    read_direct(slow.path / "a", PAGE, 2 * far * PAGE)
    assert slow.counters()["seeks"] == 3
    assert {key: state["settings"][key] for key in ("spindles", "seek_us", "read_us")} == {
        "spindles": 48,
        "seek_us": 1,
        "read_us": 1000,
    }
    slow.order("set preset flash")
    settings = slow.counters()["settings"]
    assert (settings["spindles"], settings["lookup_us"], settings["inflight"]) == (0, 300, 128)


def test_reads_in_the_order_of_their_file(mount: SlowSource) -> None:
    slow = mount()
    for name in ("a", "b"):
        (slow.backing / name).write_bytes(bytes(8 * PAGE))
    for name, page in (("a", 0), ("b", 4), ("a", 2), ("b", 2), ("a", 2), ("a", 1), ("a", 3)):
        assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
    # Each file is a row of its own: of a all but the step from 2 to 1, of b all but that from 4 to 2.
    assert (slow.counters()["read"], slow.counters()["read_ordered"]) == (7, 5)
    slow.order("reset")
    assert slow.counters()["read_ordered"] == 0


def test_listings_cost_by_the_thousand_and_carry_no_attributes(mount: SlowSource) -> None:
    slow = mount("--set", "readdir_us=7")
    names = files(slow.backing, 1)
    for i in range(2500):
        os.link(slow.backing / "file0", slow.backing / f"link {i:04}")
        names.append(f"link {i:04}")
    assert sorted(os.listdir(slow.path)) == sorted(names)
    state = slow.counters()
    assert (state["readdir_names"], state["latency_us"]["readdir"], state["lookup"]) == (2501, 21, 0)
    os.lstat(slow.path / "link 0000")
    assert slow.counters()["lookup"] == 1


def test_lookups_in_one_directory_overlap(
    mount: SlowSource, readers: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    slow = mount()
    names = files(slow.backing, 3)
    slow.order("fault lookup hang")
    started = [readers(slow.path / name) for name in names]
    until(slow, lambda state: state["parked"] == 3)  # else the kernel sends one at a time
    slow.order("clear")
    assert [len(process.communicate(timeout=COMMAND_LIMIT_S)[0]) for process in started] == [100] * 3


def test_no_more_in_flight_than_allowed(mount: SlowSource, readers: Callable[[Path], subprocess.Popen[bytes]]) -> None:
    slow = mount("--set", "inflight=2")
    names = files(slow.backing, 6)
    slow.order("fault read hang")
    started = [readers(slow.path / name) for name in names]
    until(slow, lambda state: state["parked"] == 6)
    assert slow.counters()["in_flight"] == 0
    slow.order("set read_us 20000", "reset", "release")
    outputs = [process.communicate(timeout=COMMAND_LIMIT_S)[0] for process in started]
    assert outputs == [(slow.backing / name).read_bytes() for name in names]
    assert slow.counters()["in_flight_max"] == 2


def test_the_time_with_something_in_flight(
    mount: SlowSource, readers: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    slow = mount()
    names = files(slow.backing, 3)
    slow.order("fault read hang")
    started = [readers(slow.path / name) for name in names]
    until(slow, lambda state: state["parked"] == 3)
    slow.order("set read_us 200000", "reset")
    # What hangs is in no place, so the source is idle.
    assert slow.counters()["busy_us"] == 0
    slow.order("release")
    for process in started:
        process.communicate(timeout=COMMAND_LIMIT_S)
    until(slow, lambda state: state["in_flight"] == 0)
    busy_us = slow.counters()["busy_us"]
    # The reads of the three files overlap: time counts once, however many there are.
    assert 200_000 <= busy_us < slow.counters()["latency_us"]["read"]
    assert slow.counters()["busy_us"] == busy_us


def test_the_nth_read(mount: SlowSource) -> None:
    slow = mount()
    names = files(slow.backing, 6)
    slow.order("fault read eio 3")
    # Past the page cache: there the kernel does not ask again for what its readahead failed to get.
    results = [errno_of(lambda path=slow.path / name: read_direct(path, PAGE)) for name in names]
    assert results == [0, 0, errno.EIO, 0, 0, 0]
    assert slow.counters()["faults_struck"] == 1


def test_short_read(mount: SlowSource) -> None:
    slow = mount()
    files(slow.backing, 3, size=2 * PAGE)
    slow.order("fault read short 2")
    for name, expected in (("file0", 2 * PAGE), ("file1", PAGE), ("file2", 2 * PAGE)):
        assert len((slow.path / name).read_bytes()) == expected
    assert slow.counters()["read_bytes"] == 5 * PAGE


@pytest.mark.parametrize("kind", ["lookup", "open"])
def test_a_reader_killed_while_it_hangs_dies(
    mount: SlowSource, readers: Callable[[Path], subprocess.Popen[bytes]], kind: str
) -> None:
    slow = mount()
    files(slow.backing, 2)
    slow.order(f"fault {kind} hang file0")
    hung = [readers(slow.path / "file0") for _ in range(3)]
    until(slow, lambda state: state["parked"] > 0)  # of lookups of one name the kernel sends one at a time
    for process in hung:
        process.kill()
    assert [process.wait(COMMAND_LIMIT_S) for process in hung] == [-signal.SIGKILL] * 3
    until(slow, lambda state: state["parked"] == 0)
    assert (slow.path / "file1").read_bytes() == b"B" * 100
    slow.order("clear")
    assert (slow.path / "file0").read_bytes() == b"A" * 100


def test_unmounted_lazily_while_requests_hang(
    mount: SlowSource, readers: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    slow = mount()
    files(slow.backing, 1)
    slow.order("fault read hang")
    hung = readers(slow.path / "file0")
    until(slow, lambda state: state["parked"] == 1)
    command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    subprocess.run([*command, slow.path], check=True, timeout=COMMAND_LIMIT_S)
    hung.kill()
    assert wait_gone(slow.pid)


def test_wrong_commands_are_refused(mount: SlowSource) -> None:
    slow = mount()
    for wrong in (
        *("nonsense", "fault", "fault read", "fault read burn", "fault dance eio", "fault read eio 0"),
        *("fault read slow", "fault open short", "fault release eio", "set read_us", "set read_us x"),
        *("set nothing 1", "set inflight 0", "guard everybody /d/"),
    ):
        assert errno_of(lambda: slow.order(wrong)) == errno.EINVAL, wrong  # noqa: B023 - called at once
    assert slow.counters()["faults_set"] == 0


def test_what_would_write_is_refused_and_counted(mount: SlowSource, tmp_path: Path) -> None:
    (tmp_path / "backing/f").write_bytes(b"bytes")
    slow = mount()
    assert (slow.path / "f").read_bytes() == b"bytes"
    assert slow.counters()["writes"] == 0
    for write in (
        lambda: (slow.path / "f").open("ab").close(),
        lambda: os.utime(slow.path / "f"),
        lambda: (slow.path / "new").mkdir(),
        lambda: (slow.path / "f").unlink(),
        lambda: os.setxattr(slow.path / "f", "user.x", b"y"),
    ):
        before = slow.counters()["writes"]
        with pytest.raises(OSError, match="Read-only file system"):
            write()
        assert slow.counters()["writes"] == before + 1
    slow.order("reset")
    assert slow.counters()["writes"] == 0
