"""A process without rights that serves a mount which somebody else has made: nobody, in a mount namespace that does not
see the mount, is sent its connection and becomes `hfs mount SOURCE /dev/fd/7`.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from hfs.client.client import Client, find_socket
from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import ROOT, children, environment, hfs_command, kill, mounts_below, run, unmount_lazily

FLAGS = 1 | 2 | 4  # MS_RDONLY, MS_NOSUID, MS_NODEV
USUAL = "allow_other,default_permissions"

RECEIVE = """
import os, socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
ours.send(b"there")
_, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
os.dup2(fd, 7)
os.close(fd)
ours.close()
os.execvp(sys.argv[2], sys.argv[2:])
"""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Where everybody may enter; `own` and `run` in it are nobody's."""
    with tempfile.TemporaryDirectory(prefix="hfs-given-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for made in ("source", "mnt", "own", "run"):
            (folder / made).mkdir()
        for own in ("own", "run"):
            os.chown(folder / own, UID, UID)
        try:
            yield folder
        finally:
            for place in mounts_below(folder):
                unmount_lazily(place)


def mounted(place: Path, options: str = USUAL, kind: str = "fuse.hfs", flags: int = FLAGS) -> int:
    """A new mount at `place`; its connection."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    text = f"fd={fd},rootmode=40000,user_id=0,group_id=0,{options}".rstrip(",").encode()
    if _libc.mount(b"given", os.fsencode(place), kind.encode(), ctypes.c_ulong(flags), text):
        os.close(fd)
        raise OSError(ctypes.get_errno(), "mount")
    return fd


class Serving:
    """A process that serves a mount, or would."""

    def __init__(self, command: list[str], env: dict[str, str], *descriptors: int) -> None:
        self._process = subprocess.Popen(
            command,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next that it tells."""
        assert self._process.stderr is not None
        return self._process.stderr.readline().rstrip("\n")

    def ended(self) -> tuple[int, list[str]]:
        """Wait for it: its exit code, and what it has told people."""
        _, said = self._process.communicate(timeout=40)
        print(said)
        return self._process.returncode, [line for line in said.splitlines() if line.startswith("hfs:")]

    def kill(self) -> None:
        """It and all that it has started, as when a container is killed."""
        started = children(self.pid)
        for pid in (self.pid, *started, *(child for daemon in started for child in children(daemon))):
            kill(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self.ended()
        finally:
            self._process.kill()
            self._process.communicate()


AS_IN_A_POD = """
for place in "$1/own" "$1/run" "$2"; do mount --bind "$place" "$place" || exit 99; done
mount --bind /dev/null /etc/passwd && mount -o remount,bind,ro / || exit 99
shift 2
exec prlimit --nofile=1024:4096 "$@"
"""
"""Below $1 its own volumes, $2 for `as_plain_user`; all else is read-only, /tmp included."""


@contextlib.contextmanager
def pod(folder: Path, propagation: str, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """A command in a mount namespace of its own, with `propagation` as of unshare(1)."""
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", propagation, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Unprivileged:
    """uid 65534, no capability and no way to get one, no name, no home, few descriptors; a root file system that is
    read-only. It sees no mount that is made after its start."""

    def __init__(self, folder: Path, *, own_pids: bool = False) -> None:
        """`own_pids`: in a pid namespace of its own, as process 1."""
        self.folder = folder
        self._own_pids = own_pids
        self._apart = 0
        self.env = environment({"XDG_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": str(ROOT)})
        self.env.pop("HOME", None)

    def prefix(self) -> list[str]:
        """Before a command."""
        self._apart += 1
        apart = self.folder / f"apart-{self._apart}"
        apart.mkdir()
        pod = ("unshare", "--mount", "sh", "-c", AS_IN_A_POD, "sh", str(self.folder), str(apart))
        pids = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc") if self._own_pids else ()
        return [*pids, *pod, *as_plain_user(apart), "setpriv", "--no-new-privs"]

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator[tuple["Serving", socket.socket]]:
        """It waits for a connection as its descriptor 7; and where that is sent. It is in its namespace already, and
        ends with the block at the latest."""
        ours, theirs = socket.socketpair()
        with theirs:
            receive = ("python3", "-c", RECEIVE, str(theirs.fileno()))
            serving = Serving([*self.prefix(), *receive, *command], self.env, theirs.fileno())
        with ours, serving:
            ours.settimeout(40)
            assert ours.recv(5) == b"there", serving.ended()
            yield serving, ours

    def begun(self, *command: str) -> Serving:
        """It takes its connection by itself."""
        return Serving([*self.prefix(), *command], self.env)

    def privileged(self, *command: str) -> Serving:
        """As root, outside."""
        return Serving(list(command), self.env)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """To its end, with no connection."""
        return run(*self.prefix(), *command, env=self.env)

    def beside(self, process: int, *command: str) -> "subprocess.CompletedProcess[str]":
        """As nobody, in the namespaces of that process."""
        become = ("setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups")
        return run("nsenter", "--mount", "--pid", "--target", str(process), *become, *command, env=self.env)


def give(to: socket.socket, fd: int) -> None:
    """Send the connection, and have it no more."""
    with to:
        socket.send_fds(to, [b"c"], [fd])
    os.close(fd)


def mount_command(folder: Path, *options: str, at: str = "/dev/fd/7", cache: str = "cache") -> list[str]:
    """In the foreground, as a container's main process."""
    own = f"{folder}/own/{cache}"
    return [hfs_command(), "mount", f"{folder}/source", at, "--cache", own, "--foreground", *options]


def client_of(place: Path) -> Client:
    return Client(find_socket(str(place)))
