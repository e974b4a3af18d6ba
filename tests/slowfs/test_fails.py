"""How slowfs fails and hangs on demand. Readers that may hang are processes of their own."""

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slowfs.mounted import PAGE, PATIENCE_S, Mount, errno_of, files, read_direct


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

    def test_wrong_commands_are_refused(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        for wrong in (
            *("nonsense", "fault", "fault read", "fault read burn", "fault dance eio", "fault read eio 0"),
            *("fault read slow", "fault open short", "fault release eio", "set read_us", "set read_us x"),
            *("set nothing 1", "set inflight 0"),
        ):
            assert errno_of(lambda: slow.tell(wrong)) == errno.EINVAL, wrong  # noqa: B023 - called at once
        assert slow.state()["faults_set"] == 0
