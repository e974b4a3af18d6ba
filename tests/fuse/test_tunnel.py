"""The control connection through the mount itself, from mount namespaces that have another /run and /tmp, as containers
have: hints are followed, commands answered, and what ends it, or another daemon, is no more than with a socket.
"""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hfs.client.client import Client
from hfs.client.control_socket import ControlAddress
from hfs.client.tunnel import open_tunnel
from hfs.hint import hinted
from hfs.layouts.layout import Layout
from hfs.mountd.wire.tunnel import EXCHANGE, EXCHANGE_BYTES
from hfs.training import hint_session
from tests.conftest import Logs
from tests.fuse.conftest import Mounts
from tests.fuse.harness import ROOT, Hfs, HfsMount, environment, hfs_command, must, run, stopped
from tests.fuse.hinted import all_staged, begun, content, counter, learner_of, total_of, tree, wait_until
from tests.fuse.modes import MODES
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import NOBODY, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("tunnels_end")]

CLIENT = Path(__file__).parent / "clients" / "hinted_apart.py"
COUNT = 60

APART = """
mount -t tmpfs none /run && mkdir /run/data && mount --bind "$1" /run/data && mount -t tmpfs none "$2" || exit 99
shift 2
exec "$@"
"""
"""$1 is seen at /run/data; $2, where sockets may lie besides, is empty."""

# Where this very project lies below /tmp, it is not hidden: no socket of root's is there.
_TMP = "/mnt" if str(ROOT).startswith("/tmp/") or sys.base_prefix.startswith("/tmp/") else "/tmp"


def apart(shown: Path, *command: str | os.PathLike[str]) -> list[str]:
    """The command that runs this one in a mount namespace of its own, in which the mount is at /run/data."""
    return [*("unshare", "--mount", "sh", "-c", APART, "sh", str(shown), _TMP), *map(os.fspath, command)]


class Training:
    """A process that sees the mount and no socket."""

    def __init__(self, shown: Path, *prefix: str) -> None:
        """`prefix`: before the command, as setpriv(1) goes."""
        self.process = subprocess.Popen(
            apart(shown, *prefix, sys.executable, CLIENT, "/run/data", str(COUNT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({"PYTHONPATH": str(ROOT)}),
        )

    def begin(self) -> None:
        """An epoch, up to its order."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "begun\n", self.process.stderr and self.process.stderr.read()

    def read(self) -> int:
        """The rest of it; how many bytes were read."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self) -> str:
        """What it has logged."""
        _, log = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, log
        return log


@contextlib.contextmanager
def training(shown: Path, *prefix: str) -> Iterator[Training]:
    found = Training(shown, *prefix)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@pytest.fixture
def tunnels_end(connections_end: None) -> Iterator[None]:
    """Those of this process have no thread any more when its descriptors are counted."""
    yield
    for thread in threading.enumerate():
        if thread.name == "hfs-tunnel":
            thread.join(20)


def unseen(hfs: Hfs) -> ControlAddress:
    """As from where the socket is not seen."""
    return ControlAddress("/absent/control.sock", str(hfs.path))


class Seen(NamedTuple):
    """A mount that those tests share which leave nothing of theirs in it."""

    hfs: Hfs
    names: list[str]


@pytest.fixture(scope="module")
def seen(shared_folder: Path, shared_mount: Mounts) -> Seen:
    names = tree(shared_folder / "tree", COUNT)
    return Seen(shared_mount(shared_folder / "tree"), names)


# -- hints ------------------------------------------------------------------------------------------------------------


def test_hints_from_a_container_are_followed(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    names = tree(tmp_path / "tree", COUNT)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path)
    with training(hfs.path) as learner:
        learner.begin()
        status = wait_until(hfs, all_staged)
        shown = learner_of(status)
        assert (shown["name"], shown["pid"], shown["samples"]) == ("apart", learner.process.pid, COUNT)
        assert counter(status, "hinted_bytes") == total_of(names)
        reads = slow.counters()["read"]
        assert learner.read() == total_of(names)
        assert slow.counters()["read"] == reads, "all was staged before anybody read it"
        learner.begin()
        assert learner.read() == total_of(names)
        assert "without hints" not in learner.end()
    status = wait_until(hfs, lambda status: not status["hints"]["learners"])
    (past,) = status["hints"]["past"]
    assert (past["name"], past["epoch"]) == ("apart", 1)


@pytest.mark.parametrize("how", ["killed", "taken over"])
def test_the_next_epoch_has_hints_of_the_next_daemon(tmp_path: Path, hfs_mount: HfsMount, how: str) -> None:
    names = tree(tmp_path / "tree", COUNT)
    hfs = hfs_mount(tmp_path / "tree")
    with training(hfs.path) as learner:
        learner.begin()
        wait_until(hfs, lambda status: status["hints"]["learners"])
        before = hfs.pid
        if how == "killed":
            hfs.crash()
        else:
            must(hfs_command(), "mount", "--take-over", hfs.source, hfs.path, "--cache", hfs.cache, *hfs.options)
            hfs.look()
        assert hfs.pid != before
        assert learner.read() == total_of(names), "the epoch under way goes on without"
        learner.begin()
        # Not until all is staged: the daemon learns of opens late, and takes those of the epoch before that it hears of
        # after this order for uses of this one, which need not be fetched.
        status = wait_until(hfs, lambda status: any("total" in learner for learner in status["hints"]["learners"]))
        shown = learner_of(status)
        assert (shown["name"], shown["epoch"], shown["total"]) == ("apart", 1, COUNT)
        assert learner.read() == total_of(names)
        learner.end()


def test_a_learner_that_is_killed_leaves(seen: Seen) -> None:
    """Nobody tells the daemon; it sees that the process is gone, long before a minute of silence has passed."""
    hfs, _ = seen
    with training(hfs.path) as learner:
        learner.begin()
        wait_until(hfs, lambda status: status["hints"]["learners"])
        learner.process.kill()
        wait_until(hfs, lambda status: not status["hints"]["learners"])


def test_a_daemon_that_hangs_holds_up_no_training(
    tmp_path: Path, hfs_mount: HfsMount, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    names = tree(tmp_path / "tree", COUNT)
    hfs = hfs_mount(tmp_path / "tree")
    monkeypatch.setattr(hint_session, "find_socket", lambda *_arguments, **_limit: unseen(hfs))
    sampler = hinted(range(COUNT), files=[hfs.path / name for name in names], mount=str(hfs.path))
    with begun(sampler) as (first, rest):
        wait_until(hfs, all_staged)
        with stopped(hfs.pid, hfs.keeper):
            assert [first, *rest] == list(range(COUNT))
            assert list(sampler) == list(range(COUNT))
    assert [record for record in logs.records if "without hints" in record.getMessage()] == []
    wait_until(hfs, lambda status: learner_of(status)["epoch"] == 1)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_commands_from_a_container(seen: Seen) -> None:
    hfs, names = seen

    def inside(*command: str | os.PathLike[str]) -> str:
        return must(*apart(hfs.path, *command))

    assert json.loads(inside(hfs_command(), "status", "/run/data", "--json"))["pid"] == hfs.pid
    assert "hfs" not in inside("ls", "/run").split(), "no socket is seen"
    assert inside("ls", _TMP) == ""
    (row,) = [
        row
        for row in json.loads(run(*apart(hfs.path, hfs_command(), "status", "--json")).stdout)["mounts"]
        if row["mountpoint"] == "/run/data"
    ]
    assert (row["answers"], row["pid"]) == (True, 0)
    inside(hfs_command(), "cache", "warm", "/run/data")
    assert hfs.status()["staged"]["files"] == len(names)
    listed = inside(hfs_command(), "cache", "list", "--json", "/run/data").splitlines()
    assert len(listed) == len(names) + 1
    assert json.loads(inside(f"{hfs_command()}-hint", "show", "--mount", "/run/data", "--json"))["learners"] == []
    order = f"import numpy; numpy.save('{_TMP}/order', range({COUNT})); open('{_TMP}/list', 'w').write("
    order += f"'\\n'.join({[f'/run/data/{name}' for name in names]}))"
    send = f"{hfs_command()}-hint send --mount /run/data --order {_TMP}/order.npy --files {_TMP}/list --until-staged"
    inside("sh", "-c", f'"$0" -c "$1" && {send}', sys.executable, order)
    assert "evicted" in inside(hfs_command(), "cache", "evict", "/run/data")
    assert hfs.status()["staged"]["files"] == 0


def test_a_recording_from_a_container_misses_nothing(tmp_path: Path, seen: Seen) -> None:
    """It has begun when the command starts, and its last reads arrive though nobody is told that they come."""
    hfs, names = seen
    reader = "import sys\nfor name in sys.argv[1:]: open(f'/run/data/{name}', 'rb').read()"
    record = f'{hfs_command()}-hint record --mount /run/data -o {_TMP}/trace -- "$0" -c "$@" && cat {_TMP}/trace'
    trace = tmp_path / "trace"
    with trace.open("wb") as file:
        command = apart(hfs.path, "sh", "-c", record, sys.executable, reader, *names)
        subprocess.run(command, stdout=file, env=environment(), check=True, timeout=40)
    layout = Layout.load(trace)
    assert layout.names.split(b"\0") == [os.fsencode(name) for name in names]


def test_while_the_source_hangs(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """What is known of the directory has expired, and nobody can be asked."""
    tree(tmp_path / "tree", 4)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path, "-o", "ttl=10ms")
    slow.order(*(f"fault {kind} hang" for kind in ("lookup", "getattr", "getxattr", "opendir", "readdir", "open")))
    try:
        for _ in range(3):
            assert Client(unseen(hfs)).status()["pid"] == hfs.pid
    finally:
        slow.order("clear")


def test_many_at_once(seen: Seen) -> None:
    hfs, _ = seen
    faults: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(5):
                assert Client(unseen(hfs)).status()["pid"] == hfs.pid
        except BaseException as error:  # noqa: BLE001 - for the test to see
            faults.append(error)

    askers = [threading.Thread(target=ask) for _ in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert faults == []


def test_a_learner_that_rests_keeps_nobody_from_unmounting(tmp_path: Path, hfs_mount: HfsMount) -> None:
    tree(tmp_path / "tree", 4)
    hfs = hfs_mount(tmp_path / "tree")
    with open_tunnel(str(hfs.path), 20) as connection:
        hfs.umount()
        connection.settimeout(20)
        assert connection.recv(1) == b"", "the daemon is gone"


# -- modes and users --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stateless", "passthrough"])
def test_in_other_modes(tmp_path: Path, hfs_mount: HfsMount, name: str) -> None:
    tree(tmp_path / "tree", 4)
    hfs = MODES[name].mount(hfs_mount, tmp_path / "tree")
    assert Client(unseen(hfs)).status()["pid"] == hfs.pid
    assert (hfs.path / "d0" / "0").read_bytes() == content(0)
    MODES[name].prove(hfs)


def test_a_container_that_is_shown_a_part(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Any directory of the mount will do, and paths mean what the container sees."""
    names = tree(tmp_path / "tree" / "train", COUNT)
    tree(tmp_path / "tree" / "other", COUNT)
    hfs = hfs_mount(tmp_path / "tree")
    part = hfs.path / "train"

    def inside(*command: str | os.PathLike[str]) -> str:
        return must(*apart(part, *command))

    with training(part) as learner:
        learner.begin()
        status = wait_until(hfs, all_staged)
        assert counter(status, "hinted_bytes") == total_of(names)
        assert learner.read() == total_of(names)
    listed = [json.loads(line) for line in inside(hfs_command(), "cache", "list", "--json", "/run/data").splitlines()]
    assert {row["path"] for row in listed[:-1]} == {f"/run/data/{name}" for name in names}
    must(hfs_command(), "cache", "warm", hfs.path)
    inside(hfs_command(), "cache", "evict", "/run/data")
    assert hfs.status()["staged"]["files"] == COUNT, "what is not seen there is not evicted"
    inside(hfs_command(), "cache", "warm", "/run/data/d1")
    assert hfs.status()["staged"]["files"] == COUNT + COUNT // 4
    steps = (
        f"hfs-hint record --mount /run/data -o {_TMP}/trace -- cat /run/data/{names[2]} >/dev/null",
        "hfs cache evict /run/data >/dev/null",
        f"hfs-hint replay --mount /run/data --warm {_TMP}/trace >/dev/null",
        f"cat {_TMP}/trace",
    )
    trace = tmp_path / "trace"
    with trace.open("wb") as file:
        subprocess.run(
            apart(part, "sh", "-c", " && ".join(steps)), stdout=file, env=environment(), check=True, timeout=40
        )
    assert [bytes(name) for name in Layout.load(trace).files] == [os.fsencode(names[2])]
    assert hfs.status()["staged"]["files"] == COUNT + 1


def test_other_ioctls_are_none(seen: Seen) -> None:
    hfs, _ = seen
    for name in ("", "d0", "d0/0"):
        descriptor = os.open(hfs.path / name, os.O_RDONLY)
        try:
            assert not os.isatty(descriptor)
            for command in (termios.TCGETS, EXCHANGE + 1, EXCHANGE - (1 << 16)):
                with pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
                    fcntl.ioctl(descriptor, command, bytearray(EXCHANGE_BYTES))
            # Of a directory it is asked for, and means nothing as it is; a file has none.
            wanted = errno.ENOTTY if name.endswith("/0") else errno.EINVAL
            with pytest.raises(OSError, match=os.strerror(wanted)):
                fcntl.ioctl(descriptor, EXCHANGE, bytearray(b"\xff" * EXCHANGE_BYTES))
        finally:
            os.close(descriptor)


AS_NOBODY = ("setpriv", f"--reuid={NOBODY.uid}", f"--regid={NOBODY.gid}", "--clear-groups")


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """The beginning of a command that becomes another user."""
    shut = [
        str(parent)
        for path in (Path(sys.executable).resolve(), ROOT / "tests")
        for parent in path.parents
        if not parent.stat().st_mode & 0o001
    ]
    if shut:
        pytest.skip(f"another user cannot enter {shut[0]}, where this Python or this project lies")
    return AS_NOBODY


def test_another_user_in_a_container(seen: Seen, nobody: tuple[str, ...]) -> None:
    """Is known as such by the kernel's word: may say what it reads and hear how the mount is, and no more."""
    hfs, names = seen
    status = run(*apart(hfs.path, *nobody, hfs_command(), "status", "/run/data", "--json"), env={"HOME": "/"})
    assert (status.returncode, "staged" in json.loads(status.stdout)) == (0, True), status
    warm = run(*apart(hfs.path, *nobody, hfs_command(), "cache", "warm", "/run/data"), env={"HOME": "/"})
    assert (warm.returncode, "only root and the owner of the mount may ask for warm" in warm.stderr) == (1, True), warm
    with training(hfs.path, *nobody) as learner:
        learner.begin()
        shown = learner_of(wait_until(hfs, all_staged))
        assert (shown["name"], shown["pid"]) == ("apart", learner.process.pid)
        assert learner.read() == total_of(names)
        learner.end()


def test_a_container_of_another_user_gets_what_that_user_may_read(
    tmp_path: Path, hfs_mount: HfsMount, nobody: tuple[str, ...]
) -> None:
    """Files that it may not read at the source are not fetched for it."""
    names = tree(tmp_path / "tree", COUNT)
    for name in names[:7]:
        (tmp_path / "tree" / name).chmod(0o600)
    hfs = hfs_mount(tmp_path / "tree")
    hfs.expect_warning(f"read as user {NOBODY.uid}: Permission denied")
    with training(hfs.path, *nobody) as learner:
        learner.begin()
        wait_until(hfs, lambda status: status["staged"]["files"] == COUNT - 7)
        assert learner_of(hfs.status())["name"] == "apart"
        assert counter(hfs.status(), "hinted_bytes") == total_of(names) - total_of(names[:7])


IN_A_USER_NAMESPACE = """
hfs mount "$1" "$2" --cache "$3" || exit 10
mount -t tmpfs none /run && mount --bind "$2" /mnt && mount -t tmpfs none "$4" || exit 11
hfs status /mnt --json | head -c 20
hfs cache warm /mnt || exit 12
umount "$4"
umount /run
umount /mnt
hfs umount "$2" || exit 13
"""


def test_the_owner_in_a_user_namespace(tmp_path: Path) -> None:
    """Whose numbers are not those of the machine: the kernel translates them for the daemon."""
    tree(tmp_path / "tree", 4)
    (tmp_path / "mnt").mkdir()
    done = run(
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_A_USER_NAMESPACE, "sh"),
        *(tmp_path / "tree", tmp_path / "mnt", tmp_path / "cache", "/opt"),
    )
    assert (done.returncode, done.stdout.startswith('{"pid": ')) == (0, True), done
