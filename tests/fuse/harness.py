"""Real mounts for tests: starts and ends the programs, finds what is left over, compares trees.

Called by the fixtures in tests/fuse/conftest.py (and by them only to mount). Everything a test mounts, runs or writes
lies below its tmp_path; what it starts carries RUN_ID in its environment, so that two test runs on one machine tell
their processes apart. Waiting is always for an event (a process has ended, a command has answered), never for a time.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from hfs.cli import cli
from hfs.client.client import Client
from hfs.client.control_socket import DaemonSilent
from hfs.mounting import mounting
from tests.fuse import guard
from tests.fuse.guard import RUN_KEY
from tests.fuse.injection import can_come_late
from tests.fuse.warm import WarmProcesses

RUN_ID = uuid.uuid4().hex

# A command that has not answered by then hangs; below the time limit of a test, so that its stderr is shown.
COMMAND_LIMIT_S = 40

WARM = WarmProcesses(RUN_KEY)

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings that would change what is tested, with RUN_ID."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HFS_", "XDG_"))}
    return {**kept, "PATH": f"{BIN}:{kept.get('PATH', os.defpath)}", RUN_KEY: RUN_ID, **(extra or {})}


def run(
    *command: str | os.PathLike[str], env: Mapping[str, str] | None = None, limit_s: float = COMMAND_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run to the end, output captured. A command past the limit is an error that shows what it said."""
    try:
        return subprocess.run(
            [os.fspath(part) for part in command],
            env=environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{command} did not end in {limit_s} s\n{error.stdout}\n{error.stderr}") from None


def must(*command: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> str:
    """Run, fail the test unless it exits with 0, return its stdout."""
    done = run(*command, env=env)
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def here(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`hfs ARGUMENTS` in this process: to start another one takes a third of a second, and tests do hundreds of times.

    How commands start and end as programs is for the tests of them.
    """
    others = dict.fromkeys(key for key in os.environ if key.startswith(("HFS_", "XDG_")))
    with contextlib.chdir("."):
        done = CliRunner(env={**others, **(env or {})}).invoke(
            cli, [os.fspath(part) for part in arguments], prog_name="hfs"
        )
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def must_here(*arguments: str | os.PathLike[str]) -> str:
    """`here`, fail the test unless it ends with 0, return its stdout."""
    done = here(*arguments)
    assert done.returncode == 0, done
    return done.stdout


def mounts_below(path: Path) -> list[str]:
    """Mount points below `path`, the innermost first."""
    return guard.mounts_below(str(path))


def processes_of_run(below: Path, run_id: str = RUN_ID) -> dict[int, str]:
    """pid -> command line of what this run started and what has `below` on its command line; not this process."""
    found = guard.processes_of_run(run_id, str(below))
    return {pid: command for pid, command in found.items() if pid not in WARM.pids}


def open_files() -> dict[int, str]:
    """This process's descriptors and what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def wait_gone(pid: int, limit_s: float = COMMAND_LIMIT_S) -> bool:
    """Wait until the process has ended, child or not. False if it has not within the limit."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], limit_s)[0])
    finally:
        os.close(watch)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal and wait until the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    assert wait_gone(pid), f"process {pid} did not end on signal {number}"
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def parent(pid: int) -> int:
    """The process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def children(pid: int) -> set[int]:
    """The processes that this one has started and that have not ended."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if parent(int(entry)) == pid:
                    found.add(int(entry))
    return found


def drop_pages(path: str | os.PathLike[str]) -> None:
    """Drop what the page cache holds of this file, and of nothing else.

    Not by /proc/sys/vm/drop_caches: that slows everything else on the machine, and waits for ever, not to be killed,
    while any mount on it hangs in its unmount.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def unmount_lazily(point: str | os.PathLike[str]) -> None:
    """Take a mount away whatever state it is in."""
    if os.geteuid() == 0:
        run("umount", "-l", point)
    else:
        run("fusermount3", "-u", "-z", point)


def own_cache(root: Path) -> Path:
    """The only cache below a root."""
    (found,) = (path for path in root.iterdir() if re.fullmatch("[0-9]+-[0-9a-f]{16}", path.name))
    return found


@contextlib.contextmanager
def stopped(*daemon_and_keeper: int) -> Iterator[None]:
    """The daemon hangs, and its keeper, which would end it, sees nothing of that."""
    for process in reversed(daemon_and_keeper):
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in daemon_and_keeper:
            os.kill(process, signal.SIGCONT)


class Pace:
    """Around what is asked in loops: whoever asks again at once rests, since what he waits for needs the processors."""

    _AT_ONCE_S, _REST_S = 0.002, 0.01

    def __init__(self) -> None:
        self._asked_s = 0.0

    def __enter__(self) -> None:
        if time.monotonic() < self._asked_s + self._AT_ONCE_S:
            select.select([], [], [], self._REST_S)

    def __exit__(self, *_error: object) -> None:
        self._asked_s = time.monotonic()


class Hfs:
    """One mount made by the real `hfs mount`. `path` is the mountpoint, `pid` the daemon, `keeper` its keeper."""

    def __init__(
        self,
        source: Path,
        path: Path,
        cache: Path,
        log: Path,
        options: tuple[str, ...],
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        """`prefix`: before the command that mounts, as prlimit(1) goes."""
        self.prefix = prefix
        self.source, self.path, self.cache, self.log = source, path, cache, log
        self.options = options
        self.env = dict(env or {})
        self.pid = 0
        self.keeper = 0
        self.socket = Path()
        self.mounted = False
        self._expected: list[str] = []
        self._pace = Pace()

    def mount(self) -> None:
        """Run `hfs mount`; returns when the mount answers. Also after a kill or umount, to mount again."""
        self.path.mkdir(parents=True, exist_ok=True)
        command = ("mount", self.source, self.path, "--cache", self.cache, *self.options)
        settings = {"HFS_LOG_FILE": str(self.log), "XDG_CONFIG_HOME": str(self.log.parent / "no-config")}
        done = self._run(command, environment({**settings, **self.env}))
        if done.returncode != 0:
            raise AssertionError(
                f"{command} exited with {done.returncode}\n{done.stdout}{done.stderr}\n{self.log_text()}"
            )
        self.mounted = True
        self.look()
        self.keeper = parent(self.pid)

    def _run(
        self, command: tuple[str | os.PathLike[str], ...], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """In this process, with a daemon that is imported (tests/fuse/warm.py), where nothing speaks against that."""
        at_start = {key: value for key, value in self.env.items() if not key.startswith(("HFS_", "XDG_", RUN_KEY))}
        is_like_others = not self.prefix and (not at_start or can_come_late(at_start))
        if not is_like_others or threading.current_thread() is not threading.main_thread():
            return run(*self.prefix, hfs_command(), *command, env=env)
        with WARM.instead_of(mounting, env):
            return here(*command, env=env)

    def look(self) -> None:
        """Find the daemon that answers now, and its socket."""
        self.socket = Path(os.fsdecode(os.getxattr(self.path, "user.hfs.socket")))
        self.pid = Client(str(self.socket)).pid()  # not by `hfs status`: hundreds of tests would start one more Python

    def status(self) -> dict[str, Any]:
        """The object of `hfs status MOUNTPOINT --json`. This process asks for it: a command takes a third of a second,
        and tests ask hundreds of times."""
        try:
            with self._pace:
                return Client(str(self.socket)).status()
        except DaemonSilent:  # another daemon may have followed, which a command finds
            return json.loads(must(hfs_command(), "status", self.path, "--json"))

    def status_text(self) -> str:
        """All that `hfs status` says, or why it says nothing: for the report of a test that failed."""
        try:
            done = run(hfs_command(), "status", self.path, "--json", "--all", limit_s=10)
        except AssertionError as error:
            return str(error)
        return done.stdout + done.stderr

    @property
    def own_cache(self) -> Path:
        """Where its cache lies below the root."""
        return own_cache(self.cache)

    def source_reads(self) -> int:
        return int(self.status()["source"]["reads"])

    def source_bytes(self) -> int:
        return int(self.status()["source"]["bytes"])

    def cache_command(self, *arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        """`hfs cache ARGUMENTS`."""
        return here("cache", *arguments)

    def kill(self) -> None:
        """kill -9 of the keeper and all daemons: what a power cut leaves of them. Mount and cache stay as they are."""
        daemons = children(self.keeper) | children(self.pid)
        kill(self.keeper)
        for pid in {self.pid, *daemons}:
            kill(pid)

    def crash(self) -> None:
        """kill -9 of the daemon: the keeper starts the next one. Returns when that answers."""
        self.expect_warning(r"was ended by SIGKILL .*; the next one is started")
        kill(self.pid)
        self.look()

    def umount(self) -> None:
        """`hfs umount`, which must work, end the daemon and leave no mount."""
        done = here("umount", self.path)
        assert done.returncode == 0, done
        self.mounted = False
        for pid in (self.pid, self.keeper):
            assert wait_gone(pid), f"process {pid} goes on after hfs umount\n{self.log_text()}"
        assert not os.path.ismount(self.path)
        assert not self.socket.exists(), f"hfs umount has left {self.socket}"

    def expect_warning(self, regex: str) -> None:
        """The daemon may log warnings and errors that match."""
        self._expected.append(regex)

    def log_text(self) -> str:
        """The daemon's log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else "(no daemon log)"

    def undeclared_warnings(self) -> list[str]:
        """Lines of the log at WARNING and above, and stack traces, that no expect_warning covers."""
        return [
            line
            for line in self.log_text().splitlines()
            if re.search(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b", line)
            and not any(re.search(regex, line) for regex in self._expected)
        ]

    def close(self) -> list[str]:
        """End it whatever its state. Returns what was wrong: an umount that failed, a daemon that stayed, warnings."""
        faults = []
        if self.mounted:
            try:
                if wait_gone(self.pid, 0) and wait_gone(self.keeper, 0):
                    unmount_lazily(self.path)  # the test killed it: what is left is a dead mount
                else:
                    self.umount()
            except AssertionError as error:
                faults.append(str(error))
        for point in mounts_below(self.path):
            unmount_lazily(point)
        # Of a mount that has gone the daemon ends, and then its keeper.
        limit_s = 0 if faults else COMMAND_LIMIT_S
        for name, pid in (("keeper", self.keeper), ("daemon", self.pid)):
            if pid and not wait_gone(pid, limit_s):
                kill(pid)
                faults.append(f"the {name} {pid} had to be killed")
        if not self.pid:
            return faults  # it never came up; the test has failed with the log already
        return faults + [f"undeclared in the daemon's log: {line}" for line in self.undeclared_warnings()]


HfsMount = Callable[..., Hfs]
"""What the fixture `hfs_mount` is."""


def hfs_command() -> str:
    """The installed command, as a user runs it."""
    found = shutil.which("hfs", path=str(BIN))
    assert found, f"no hfs in {BIN}: run scripts/setup"
    return found


class Guard:
    """A process beside this one that ends what hangs (tests/fuse/guard.py)."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", guard.__file__]
        # In a session of its own: whoever kills the runner may mean all of its process group.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    @contextlib.contextmanager
    def unblock_after(self, limit_s: float, below: Path) -> Iterator[None]:
        """Past the limit, kill what this run has started: a read of a hung mount ends only with its daemon; and where
        this process is killed, take away what it has mounted in the folder in which `below` lies, too."""
        order = {"limit_s": limit_s, "run": RUN_ID, "below": str(below), "spared": sorted(WARM.pids)}
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        try:
            yield
        finally:
            self._process.stdin.write(b"\n")

    def close(self) -> None:
        """Nothing is waited for any more."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
