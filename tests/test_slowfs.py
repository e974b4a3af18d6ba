"""The simulated file system itself (scripts/slowfs): what it shows, counts, charges, and how it fails.

Every fault test and benchmark believes it, so it is tested first. What an operation costs is read from its counters,
never from a clock; readers that may hang are processes of their own.
"""

import errno
import mmap
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slowfs_mounted import PATIENCE_S, SLOWFS, Mount

PAGE = 4096


@pytest.fixture(scope="module")
def built() -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler (cc)")
    if subprocess.run(["pkg-config", "--exists", "fuse3 >= 3.14"], check=False).returncode:
        pytest.skip("no libfuse 3.14 with headers (Debian package libfuse3-dev)")
    subprocess.run([SLOWFS / "build"], check=True)


@pytest.fixture
def mount(built: None, tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Mounts tmp_path/backing, options as given; all mounts are gone when the test is."""
    mounts: list[Mount] = []
    backing = tmp_path / "backing"
    backing.mkdir()

    def make(*options: str, **more: int) -> Mount:
        mountpoint = tmp_path / f"mount{len(mounts)}"
        mountpoint.mkdir()
        mounts.append(Mount(backing, mountpoint, *options, **more))
        return mounts[-1]

    yield make
    for each in reversed(mounts):
        each.end()


@pytest.fixture
def readers() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts a process that reads a file past the page cache and prints it; none is left behind."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = ["dd", f"if={path}", "iflag=direct", "bs=64K", "status=none"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


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


def test_cost_model(built: None) -> None:
    subprocess.run([SLOWFS / "slowfs", "--self-test"], check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("wrong", ["read_us", "read_us=", "read_us=-1", "read_us=1x", "nothing_us=1", "inflight=0"])
def test_wrong_settings_are_refused(built: None, tmp_path: Path, wrong: str) -> None:
    command = [SLOWFS / "slowfs", "--set", wrong, tmp_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


@pytest.mark.fuse
class TestShows:
    def test_a_tree_of_odd_files(self, mount: Callable[..., Mount], tmp_path: Path) -> None:
        slow = mount()
        root = os.fsencode(slow.backing)
        (slow.backing / "sub/deep").mkdir(parents=True)
        (slow.backing / "empty").touch()
        (slow.backing / "one").write_bytes(b"x")
        (slow.backing / "sub/random").write_bytes(os.urandom(3_000_001))
        Path(os.fsdecode(root + b"/not \xff\xfe utf-8\n")).write_bytes(b"odd name")
        os.link(slow.backing / "one", slow.backing / "sub/hard link")
        os.symlink("sub/random", slow.backing / "link")
        os.symlink(b"\xff nowhere", root + b"/broken")
        os.mkfifo(slow.backing / "fifo")
        os.utime(slow.backing / "one", ns=(1_234_567_891, 987_654_321_012_345_678))
        os.chmod(slow.backing / "empty", 0o640)
        seen = 0
        for folder, folders, names in os.walk(root):
            there = os.fsencode(slow.path) + folder[len(root) :]
            assert sorted(os.listdir(there)) == sorted(folders + names)
            with os.scandir(there) as entries:
                assert {e.name: e.inode() for e in entries} == {e.name: e.inode() for e in os.scandir(folder)}
            for name in [b".", *folders, *names]:
                real, shown = os.lstat(folder + b"/" + name), os.lstat(there + b"/" + name)
                for field in ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_rdev"):
                    assert getattr(shown, field) == getattr(real, field), (name, field)
                assert (shown.st_mtime_ns, shown.st_ctime_ns) == (real.st_mtime_ns, real.st_ctime_ns)
                if os.path.islink(folder + b"/" + name):
                    assert os.readlink(there + b"/" + name) == os.readlink(folder + b"/" + name)
                elif os.path.isfile(folder + b"/" + name):
                    with open(there + b"/" + name, "rb") as a, open(folder + b"/" + name, "rb") as b:
                        assert a.read() == b.read()
                seen += 1
        assert seen == 13
        assert os.statvfs(slow.path).f_blocks == os.statvfs(slow.backing).f_blocks

    def test_extended_attributes(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").touch()
        if errno_of(lambda: os.setxattr(slow.backing / "file", "user.color", b"\0blue")):
            pytest.skip("no user.* attributes on the file system of the temporary directory")
        assert os.listxattr(slow.path / "file") == ["user.color"]
        assert os.getxattr(slow.path / "file", "user.color") == b"\0blue"
        assert errno_of(lambda: os.getxattr(slow.path / "file", "user.taste")) == errno.ENODATA

    def test_a_sparse_file_past_4_gib(self, mount: Callable[..., Mount]) -> None:
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

    def test_read_past_the_page_cache(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").write_bytes(data := os.urandom(1_000_000))
        assert read_direct(slow.path / "file", 1 << 20) == data
        assert slow.state()["read"] == 1
        assert slow.state()["read_bytes"] == 1_000_000

    def test_a_rewritten_file_at_the_next_open(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").write_bytes(b"old")
        assert (slow.path / "file").read_bytes() == b"old"
        (slow.backing / "file").write_bytes(b"new")
        assert (slow.path / "file").read_bytes() == b"new"

    def test_inode_numbers_that_are_used_again(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        for i in range(40):
            (slow.backing / f"file{i}").write_bytes(b"%d" % i)
            assert (slow.path / f"file{i}").read_bytes() == b"%d" % i
            (slow.backing / f"file{i}").unlink()

    def test_renamed_directories(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "a").mkdir()
        (slow.backing / "a/file").write_bytes(b"first")
        with open(slow.path / "a/file", "rb") as file:
            (slow.backing / "a").rename(slow.backing / "b")
            (slow.backing / "a").mkdir()
            (slow.backing / "a/file").write_bytes(b"second")
            assert (slow.path / "b/file").read_bytes() == b"first"
            assert file.read() == b"first"

    def test_writing_is_refused(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        files(slow.backing, 1)
        path = slow.path / "file0"
        for action in (
            lambda: path.write_bytes(b""),
            lambda: path.open("ab"),
            (slow.path / "new").touch,
            (slow.path / "new").mkdir,
            lambda: (slow.path / "new").symlink_to("x"),
            lambda: (slow.path / "new").hardlink_to(path),
            lambda: path.rename(slow.path / "new"),
            path.unlink,
            lambda: path.chmod(0o600),
            lambda: os.utime(path),
            lambda: os.truncate(path, 0),
            lambda: os.setxattr(path, "user.a", b"b"),
        ):
            assert errno_of(action) == errno.EROFS
        assert (slow.backing / "file0").read_bytes() == b"A" * 100

    def test_the_control_file_is_in_no_listing(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / ".slowfs").write_text("hidden by ours")
        files(slow.backing, 1)
        assert os.listdir(slow.path) == ["file0"]
        assert slow.state()["readdir_names"] == 1

    def test_more_files_than_descriptors(self, mount: Callable[..., Mount], tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("file handles can be opened by root only")
        folder = tmp_path / "backing/folder"
        folder.mkdir()
        for number in range(300):
            (folder / f"{number:03}").write_text(f"this is {number}")
        slow = mount("--set", "lookup_us=1", descriptors=100)
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


@pytest.mark.fuse
class TestCounts:
    def test_operations_and_bytes(self, mount: Callable[..., Mount]) -> None:
        slow = mount("--preset", "lustre")
        files(slow.backing, 2)
        slow.tell("reset")
        for _ in range(2):  # the second time comes from the kernel's caches, but for the open
            assert (slow.path / "file0").read_bytes() == b"A" * 100
        assert not (slow.path / "missing").exists()
        state = slow.state()
        assert [state[kind] for kind in ("lookup", "open", "read", "read_bytes")] == [2, 2, 1, 100]
        assert state["latency_us"] == dict.fromkeys(state["latency_us"], 0) | {
            "lookup": 2000,
            "open": 4000,
            "read": 1000,
            "getattr": 1000 * state["getattr"],
        }
        slow.tell("reset")
        state = slow.state()
        assert (state["lookup"], state["read_bytes"], state["latency_us"]["open"]) == (0, 0, 0)

    def test_seeks_of_disks(self, mount: Callable[..., Mount]) -> None:
        """Each place of each file that no read has led to costs one; without spindles none does."""
        slow = mount("--preset", "disk", "--set", "seek_us=1")
        far = (4 << 20) // PAGE
        for name in ("a", "b"):
            (slow.backing / name).touch()
            os.truncate(slow.backing / name, 16 << 20)
        for name, page in (("a", 0), ("b", 0), ("a", 1), ("a", far), ("a", far + 1), ("a", 2), ("a", 1)):
            assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
        # The last one begins before all ends but that of the first read.
        state = slow.state()
        assert (state["read"], state["seeks"]) == (7, 3)
        slow.tell("set spindles 0")
        read_direct(slow.path / "a", PAGE, 2 * far * PAGE)
        assert slow.state()["seeks"] == 3
        assert {key: state["settings"][key] for key in ("spindles", "seek_us", "read_us")} == {
            "spindles": 48,
            "seek_us": 1,
            "read_us": 1000,
        }
        slow.tell("set preset flash")
        settings = slow.state()["settings"]
        assert (settings["spindles"], settings["lookup_us"], settings["inflight"]) == (0, 300, 128)

    def test_reads_in_the_order_of_their_file(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        for name in ("a", "b"):
            (slow.backing / name).write_bytes(bytes(8 * PAGE))
        for name, page in (("a", 0), ("b", 4), ("a", 2), ("b", 2), ("a", 2), ("a", 1), ("a", 3)):
            assert read_direct(slow.path / name, PAGE, page * PAGE) == bytes(PAGE)
        # Each file is a row of its own: of a all but the step from 2 to 1, of b all but that from 4 to 2.
        assert (slow.state()["read"], slow.state()["read_ordered"]) == (7, 5)
        slow.tell("reset")
        assert slow.state()["read_ordered"] == 0

    def test_bytes_are_charged_by_bandwidth(self, mount: Callable[..., Mount]) -> None:
        slow = mount("--set", "stream_bps=1000000000", "--set", "shared_bps=2000000000")
        files(slow.backing, 1, size=1_000_000)
        read_direct(slow.path / "file0", 1 << 20)
        assert slow.state()["transfer_us"] == 1000  # of the bytes there were, not of those asked for

    def test_listings_cost_by_the_thousand_and_carry_no_attributes(self, mount: Callable[..., Mount]) -> None:
        slow = mount("--set", "readdir_us=7")
        names = files(slow.backing, 1)
        for i in range(2500):
            os.link(slow.backing / "file0", slow.backing / f"link {i:04}")
            names.append(f"link {i:04}")
        assert sorted(os.listdir(slow.path)) == sorted(names)
        state = slow.state()
        assert (state["readdir_names"], state["latency_us"]["readdir"], state["lookup"]) == (2501, 21, 0)
        os.lstat(slow.path / "link 0000")
        assert slow.state()["lookup"] == 1

    def test_lookups_in_one_directory_overlap(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        names = files(slow.backing, 3)
        slow.tell("fault lookup hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 3)  # else the kernel sends one at a time
        slow.tell("clear")
        assert [len(process.communicate(timeout=PATIENCE_S)[0]) for process in started] == [100] * 3

    def test_no_more_in_flight_than_allowed(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount("--set", "inflight=2")
        names = files(slow.backing, 6)
        slow.tell("fault read hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 6)
        assert slow.state()["in_flight"] == 0
        slow.tell("set read_us 20000", "reset", "release")
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
        assert outputs == [(slow.backing / name).read_bytes() for name in names]
        assert slow.state()["in_flight_max"] == 2

    def test_the_time_with_something_in_flight(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        names = files(slow.backing, 3)
        slow.tell("fault read hang")
        started = [readers(slow.path / name) for name in names]
        slow.until(lambda state: state["parked"] == 3)
        slow.tell("set read_us 200000", "reset")
        # What hangs is in no place, so the source is idle.
        assert slow.state()["busy_us"] == 0
        slow.tell("release")
        for process in started:
            process.communicate(timeout=PATIENCE_S)
        slow.until(lambda state: state["in_flight"] == 0)
        busy_us = slow.state()["busy_us"]
        # The reads of the three files overlap: time counts once, however many there are.
        assert 200_000 <= busy_us < slow.state()["latency_us"]["read"]
        assert slow.state()["busy_us"] == busy_us

    def test_the_time_so_far_of_what_is_in_flight(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount("--set", "open_us=2000000")
        readers(slow.path / files(slow.backing, 1)[0])
        slow.until(lambda state: state["in_flight"] == 1)
        slow.until(lambda state: 0 < state["busy_us"] < 2_000_000)


@pytest.mark.fuse
class TestFails:
    def test_the_nth_read(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        names = files(slow.backing, 6)
        slow.tell("fault read eio 3")
        # Past the page cache: there the kernel does not ask again for what its readahead failed to get.
        results = [errno_of(lambda path=slow.path / name: read_direct(path, PAGE)) for name in names]
        assert results == [0, 0, errno.EIO, 0, 0, 0]
        assert slow.state()["faults_struck"] == 1

    def test_the_nth_read_and_all_after_it(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        names = files(slow.backing, 6)
        slow.tell("fault read eio 3 forever")
        assert [errno_of((slow.path / name).read_bytes) for name in names] == [0, 0] + [errno.EIO] * 4
        slow.tell("clear")
        assert (slow.path / names[5]).read_bytes() == b"F" * 100

    @pytest.mark.parametrize("kind", ["lookup", "getattr", "open", "readdir", "read"])
    def test_only_in_the_paths_named(self, mount: Callable[..., Mount], kind: str) -> None:
        slow = mount()
        for name in ("good", "bad one"):
            (slow.backing / name / "x").mkdir(parents=True)
            (slow.backing / name / "file").write_bytes(b"data")

        def use(name: str) -> int:
            descriptor = -1
            try:
                descriptor = os.open(slow.path / name / "file", os.O_RDONLY)
                os.read(descriptor, 10)
                os.listdir(slow.path / name)
                asked = ["stat", "--cached=never", slow.path / name / "file"]  # past the attributes the kernel keeps
                subprocess.run(asked, check=True, capture_output=True)
            except OSError as error:
                return error.errno or -1
            except subprocess.CalledProcessError:
                return errno.EIO
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            return 0

        slow.tell(f"fault {kind} eio forever path /bad one")
        assert (use("good"), use("bad one")) == (0, errno.EIO)
        slow.tell("clear")
        assert use("bad one") == 0

    def test_stale(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (name,) = files(slow.backing, 1)
        slow.tell("fault read estale")
        assert errno_of(lambda: read_direct(slow.path / name, PAGE)) == errno.ESTALE
        slow.tell("fault open estale")
        assert read_direct(slow.path / name, PAGE) == b"A" * 100  # the kernel looks the name up again
        assert slow.state()["faults_struck"] == 2

    def test_short_read(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        files(slow.backing, 3, size=2 * PAGE)
        slow.tell("fault read short 2")
        for name, expected in (("file0", 2 * PAGE), ("file1", PAGE), ("file2", 2 * PAGE)):
            assert len((slow.path / name).read_bytes()) == expected
        assert slow.state()["read_bytes"] == 5 * PAGE

    def test_hang_stops_no_others_and_ends_with_clear(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount("--set", "inflight=1", "--set", "read_us=10")
        names = files(slow.backing, 20)
        slow.tell("fault read hang file1")  # file1, file10, ..., file19
        hung = [readers(slow.path / name) for name in names if name.startswith("file1")]
        slow.until(lambda state: state["parked"] == len(hung) == 11)
        for name in names:
            if not name.startswith("file1"):
                assert (slow.path / name).read_bytes() == (slow.backing / name).read_bytes()
        assert all(process.poll() is None for process in hung)
        slow.tell("clear")
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in hung]
        assert outputs == [(slow.backing / name).read_bytes() for name in names if name.startswith("file1")]
        assert slow.state()["parked"] == 0

    def test_a_reader_killed_while_its_pages_hang_dies(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        files(slow.backing, 1)
        slow.tell("fault read hang")
        with subprocess.Popen(["cat", slow.path / "file0"], stdout=subprocess.PIPE) as hung:
            slow.until(lambda state: state["parked"] == 1)
            hung.kill()
            assert hung.wait(PATIENCE_S) == -signal.SIGKILL
        assert slow.state()["parked"] == 1  # the kernel's readahead goes on waiting
        slow.tell("release")
        assert (slow.path / "file0").read_bytes() == b"A" * 100

    @pytest.mark.parametrize("kind", ["lookup", "open"])
    def test_a_reader_killed_while_it_hangs_dies(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]], kind: str
    ) -> None:
        slow = mount()
        files(slow.backing, 2)
        slow.tell(f"fault {kind} hang file0")
        hung = [readers(slow.path / "file0") for _ in range(3)]
        slow.until(lambda state: state["parked"] > 0)  # of lookups of one name the kernel sends one at a time
        for process in hung:
            process.kill()
        assert [process.wait(PATIENCE_S) for process in hung] == [-signal.SIGKILL] * 3
        slow.until(lambda state: state["parked"] == 0)
        assert (slow.path / "file1").read_bytes() == b"B" * 100
        slow.tell("clear")
        assert (slow.path / "file0").read_bytes() == b"A" * 100

    def test_terminated_while_requests_hang(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        files(slow.backing, 1)
        slow.tell("fault read hang")
        hung = readers(slow.path / "file0")
        slow.until(lambda state: state["parked"] == 1)
        os.kill(slow.pid, signal.SIGTERM)
        assert slow.gone()
        assert not os.path.ismount(slow.path)
        assert hung.wait(PATIENCE_S) != 0

    def test_unmounted_lazily_while_requests_hang(
        self, mount: Callable[..., Mount], readers: Callable[[Path], subprocess.Popen[bytes]]
    ) -> None:
        slow = mount()
        files(slow.backing, 1)
        slow.tell("fault read hang")
        hung = readers(slow.path / "file0")
        slow.until(lambda state: state["parked"] == 1)
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*command, slow.path], check=True, timeout=PATIENCE_S)
        hung.kill()
        assert slow.gone()

    @pytest.mark.parametrize(
        "wrong",
        ["nonsense", "fault", "fault read", "fault read burn", "fault dance eio", "fault read eio 0", "fault read slow",
         "fault open short", "fault release eio", "set read_us", "set read_us x", "set nothing 1", "set inflight 0"],
    )  # fmt: skip
    def test_wrong_commands_are_refused(self, mount: Callable[..., Mount], wrong: str) -> None:
        slow = mount()
        assert errno_of(lambda: slow.tell(wrong)) == errno.EINVAL
        assert slow.state()["faults_set"] == 0
