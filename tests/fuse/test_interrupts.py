"""A reader that is killed while the source hangs dies at once; any other signal changes nothing. Through a real mount.

The bar of half a second is a promise, so it is measured here, from the kill to the end of the process.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hfs.mountd.kernel import fastpath
from tests.fuse.conftest import Mounts, SlowSources
from tests.fuse.harness import Hfs, environment, wait_gone
from tests.fuse.slowfs import SlowFs
from tests.support.pattern import pattern

LIBFUSE = tuple(int(part) for part in fastpath.LIBFUSE.split(".")[:2])

DIES_WITHIN_S = 0.5
CHUNK = 64 << 10
LARGE = 16 * CHUNK
SMALL = 5000

PREAMBLE = """
import ctypes, mmap, os, signal, sys, threading
path = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)  # Python's own calls hide EINTR
def direct_read():
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 65536)
    return os.preadv(descriptor, [buffer], 0)
"""

# what it is -> (what hangs at the source, what the reader does)
WAITS = {
    "read": ("read hang path {}/large", "os.pread(os.open(path + '/large', os.O_RDONLY), 100, 0)"),
    "direct read": ("read hang path {}/large", "path += '/large'; direct_read()"),
    "mapped read": (
        "read hang path {}/large",
        "mmap.mmap(os.open(path + '/large', os.O_RDONLY), 0, access=mmap.ACCESS_READ)[0]",
    ),
    "open of a small file": ("read hang path {}/small", "os.open(path + '/small', os.O_RDONLY)"),
    "open that waits for an open": ("open hang path {}/small", "os.open(path + '/small', os.O_RDONLY)"),
    "look-up": ("lookup hang path {}/d", "os.stat(path + '/d')"),
    "stat of what is known": ("lookup hang path {}/known", "os.chdir(path + '/known')\nwhile True: os.stat('.')"),
    "listing": ("readdir hang path {}/d", "os.listdir(path + '/d')"),
    "listing with a stat of each name": ("lookup hang path {}/d/", "for e in os.scandir(path + '/d'): e.stat()"),
    "getxattr": ("getxattr hang path {}/small", "os.getxattr(path + '/small', 'user.any')"),
    "listxattr": ("getxattr hang path {}/small", "os.listxattr(path + '/small')"),
    "readlink": ("readlink hang path {}/link", "os.readlink(path + '/link')"),
    "statfs": ("statfs hang", "os.statvfs(path)"),
}


def reader(path: Path, code: str) -> subprocess.Popen[bytes]:
    """A process that does `code` with `path`; its standard output is a pipe."""
    command = [sys.executable, "-I", "-S", "-c", PREAMBLE + code, str(path)]
    return subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def wait_waiting(slow: SlowFs, process: subprocess.Popen[bytes]) -> None:
    """Until a request hangs at the source and the reader does not run any more."""
    while not slow.counters()["parked"] or state(process.pid) not in "DS":
        assert process.poll() is None, "the reader has ended by itself"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def kill_in_time(slow: SlowFs, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    os.kill(process.pid, number)
    in_time = wait_gone(process.pid, DIES_WITHIN_S)
    if not in_time:
        slow.order("clear")  # lets it end
    assert in_time, f"alive {DIES_WITHIN_S} s after signal {number}"
    assert process.wait() == -number


def held(status: dict[str, Any]) -> dict[str, int]:
    """What a killed reader could leave behind in the daemon."""
    queues, opened = status["queues"], status["open"]
    return {
        "files": opened["files"],
        "directories": opened["directories"],
        "buffers": status["memory"]["buffer_bytes"],
        **{name: figure for name, figure in queues.items() if isinstance(figure, int)},
    }


def wait_nothing_held(hfs: Hfs) -> None:
    while any(held(hfs.status()).values()):
        pass


class Place(NamedTuple):
    """A folder of its own for each test, of a mount and a source that all of them share."""

    slow: SlowFs
    hfs: Hfs
    name: str

    @property
    def path(self) -> Path:
        return self.hfs.path / self.name


@pytest.fixture(scope="module")
def shared(shared_folder: Path, shared_slow_source: SlowSources, shared_mount: Mounts) -> tuple[SlowFs, Hfs]:
    """Without a memory for names every look-up asks the source; what is fetched ahead would hang beside the reader."""
    (shared_folder / "backing").mkdir()
    slow = shared_slow_source(shared_folder / "backing")
    return slow, shared_mount(slow.path, "--ttl", "0", "--strict", "-o", "siblings=0")


@pytest.fixture
def place(shared: tuple[SlowFs, Hfs]) -> Iterator[Place]:
    slow, hfs = shared
    backing = Path(tempfile.mkdtemp(dir=slow.backing))
    (backing / "d").mkdir()
    (backing / "known").mkdir()
    (backing / "large").write_bytes(pattern(1, 0, LARGE))
    (backing / "small").write_bytes(pattern(2, 0, SMALL))
    (backing / "d" / "name").write_bytes(b"")
    (backing / "link").symlink_to("small")
    yield Place(slow, hfs, backing.name)
    slow.order("clear")
    wait_nothing_held(hfs)


@pytest.mark.parametrize("what", WAITS)
def test_a_reader_that_is_killed_while_the_source_hangs_dies_at_once(place: Place, what: str) -> None:
    """A killed reader dies at once, whatever it waits for; nothing of it stays in the daemon, the mount goes on."""
    fault, code = WAITS[what]
    slow, hfs, name = place
    slow.order(f"fault {fault.format('/' + name)}")
    with reader(place.path, code) as process:
        wait_waiting(slow, process)
        kill_in_time(slow, process)
    slow.order("clear")
    wait_nothing_held(hfs)
    assert (place.path / "large").read_bytes() == pattern(1, 0, LARGE)
    assert (place.path / "small").read_bytes() == pattern(2, 0, SMALL)
    assert os.listdir(place.path / "d") == ["name"]


def test_the_fetch_of_a_killed_reader_goes_on_for_others(place: Place) -> None:
    """The fetch goes on for others: who reads the same chunk gets its bytes when the source comes back."""
    slow, hfs, name = place

    def again() -> int:
        """Files read a second time since they had been written a moment before, once no more of them are to be."""
        while (status := hfs.status())["source"]["in_doubt"]:
            pass
        return int(status["counters"]["racy_reads_again"]["value"])

    before = again()
    slow.order("reset")
    print_it = "path += '/small'; os.write(1, open(path, 'rb').read())"
    slow.order(f"fault read hang path /{name}/small")
    with reader(place.path, print_it) as other, reader(place.path, print_it) as killed:
        while hfs.status()["open"]["files"] < 2:
            pass
        kill_in_time(slow, killed)
        slow.order("clear")
        assert other.communicate()[0] == pattern(2, 0, SMALL)
    assert SMALL * (1 + again() - before) == slow.counters()["read_bytes"]


BEHIND = {
    "a look-up of the same name": ("path += '/d'; os.stat(path)", False),
    "a look-up of another name": ("path += '/known'; os.stat(path)", True),
    "a listing with a stat of each name": ("for e in os.scandir(path): e.stat()", True),
}


@pytest.mark.skipif(LIBFUSE < (3, 17), reason="this libfuse asks for the names of a directory one after the other")
@pytest.mark.parametrize("what", BEHIND)
def test_one_reader_does_not_stand_in_the_way_of_another(place: Place, what: str) -> None:
    """Who waits beside a look-up that hangs can be killed too; who waits for the same name, once the first has gone."""
    code, alone = BEHIND[what]
    slow, _, name = place
    slow.order(f"fault lookup hang path /{name}/d", f"fault lookup hang path /{name}/known")
    with reader(place.path, "path += '/d'; os.stat(path)") as first:
        wait_waiting(slow, first)
        with reader(place.path, "os.write(1, b'.')\n" + code) as second:
            assert second.stdout
            assert second.stdout.read(1) == b"."
            assert "known" in os.listdir(place.path)  # not held up either; meanwhile the second is where it waits
            while state(second.pid) not in "DS":
                pass
            if alone:
                kill_in_time(slow, second)
                kill_in_time(slow, first)
            else:
                second.kill()
                kill_in_time(slow, first)
                kill_in_time(slow, second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
def test_every_deadly_signal_kills(place: Place, number: signal.Signals) -> None:
    """SIGTERM without a handler kills at once, and so does what would dump core."""
    slow, _, name = place
    slow.order(f"fault read hang path /{name}/large")
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(int(sys.stdin.readline()), signal.SIG_DFL)
path += '/large'
direct_read()
"""
    with reader(place.path, code) as process:
        assert process.stdin
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        wait_waiting(slow, process)
        kill_in_time(slow, process, number)


def test_a_process_ends_although_one_of_its_threads_waits(place: Place) -> None:
    """Exit: the kernel ends the other threads as SIGKILL does, and waits for them."""
    slow, _, name = place
    slow.order(f"fault read hang path /{name}/large")
    code = """
path += '/large'
threading.Thread(target=direct_read, daemon=True).start()
sys.stdin.read()
os._exit(3)
"""
    with reader(place.path, code) as process:
        assert process.stdin
        wait_waiting(slow, process)
        process.stdin.close()
        in_time = wait_gone(process.pid, DIES_WITHIN_S)
        slow.order("clear")
        assert (in_time, process.wait()) == (True, 3)


HARMLESS = """
for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
"""
SIGNALS = (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF, signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_that_does_not_kill_changes_nothing(place: Place, number: signal.Signals) -> None:
    """SIGALRM, SIGCHLD and the like, with a handler, during a slow read: its bytes, never EINTR."""
    slow, hfs, name = place
    slow.order(f"fault read hang path /{name}/large")
    code = """
descriptor = os.open(path + '/large', os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 65536)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
count = libc.pread(descriptor, ctypes.c_void_p(address), ctypes.c_size_t(65536), ctypes.c_long(0))
sys.stdout.buffer.write(buffer[:count] if count >= 0 else b'errno %d' % ctypes.get_errno())
"""
    before = hfs.status()["interrupted"]
    with reader(place.path, HARMLESS + code) as process:
        wait_waiting(slow, process)
        os.kill(process.pid, number)
        hfs.status()  # the mount has heard of the signal before it answers this
        slow.order("clear")
        assert process.communicate()[0] == pattern(1, 0, CHUNK)
    assert hfs.status()["interrupted"] == before


def test_a_signal_that_does_not_kill_changes_no_look_up(place: Place) -> None:
    slow, hfs, name = place
    slow.order(f"fault lookup hang path /{name}/d")
    code = "print(libc.access((path + '/d').encode(), 0), ctypes.get_errno())"
    with reader(place.path, HARMLESS + code) as process:
        wait_waiting(slow, process)
        os.kill(process.pid, signal.SIGALRM)
        hfs.status()
        slow.order("clear")
        assert process.communicate()[0] == b"0 0\n"


def test_who_is_killed_after_a_signal_that_did_not_kill_dies_too(place: Place) -> None:
    """The kernel tells of one signal a request: the daemon looks again by itself, at least once a second."""
    slow, hfs, name = place
    slow.order(f"fault read hang path /{name}/large")
    with reader(place.path, HARMLESS + "path += '/large'; direct_read()") as process:
        wait_waiting(slow, process)
        os.kill(process.pid, signal.SIGALRM)
        hfs.status()
        process.kill()
        found = wait_gone(process.pid, 10)
        slow.order("clear")
        assert found


def test_status_names_the_processes_that_were_served(place: Place) -> None:
    """By process, not by thread, with what the daemon answered them."""
    code = """
path += '/large'
threads = [threading.Thread(target=direct_read) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
open('/proc/self/comm', 'w').write('learner')
direct_read()
print(os.getpid(), flush=True)
sys.stdin.read()
"""
    with reader(place.path, code) as process:
        assert process.stdout
        assert int(process.stdout.readline()) == process.pid
        (mine,) = [found for found in place.hfs.status()["readers"] if found["pid"] == process.pid]
        assert mine == {"pid": process.pid, "command": "learner", "reads": 4, "bytes": 4 * CHUNK}
    assert mine in place.hfs.status()["readers"]
