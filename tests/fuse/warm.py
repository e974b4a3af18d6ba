"""A process that has imported the daemon already, and from which mounts of tests get theirs.

To import it takes most of the time of a mount, and tests make hundreds. So `hfs mount` runs in the test's process (see
`Hfs.mount`), and where it would start a keeper it asks this process for one. That forks a process which forks the
daemon, and then executes the keeper as always; the keeper finds the daemon among its children, already imported, where
it would start it (tests/fuse/warm_keeper.py). So processes, their parents, sessions and descriptors are those of a
mount that a user makes. How commands, keepers and daemons start is for the tests that run them as programs.
"""

import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

ROOT = Path(__file__).parent.parent.parent
_KEEPER = Path(__file__).with_name("warm_keeper.py")
_MESSAGE_BYTES = 1 << 20
_ANSWER_S = 40.0


class WarmProcess:
    """One, of this environment. It imports while others go on."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_ANSWER_S)
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, cwd="/", pass_fds=[theirs.fileno()]
            )
        self.pid = self._process.pid
        self.descriptor = self._ours.fileno()

    def keeper(self, streams: Sequence[int], directory: str) -> int:
        """The pid of a new one that has these standard streams and our environment; it is not our child."""
        order = json.dumps({"directory": directory, "environment": dict(os.environ)}).encode()
        socket.send_fds(self._ours, [order], streams)
        return int(self._ours.recv(64))

    def close(self) -> None:
        """End it. What it has started goes on."""
        self._ours.close()
        self._process.wait(_ANSWER_S)


class StartedKeeper:
    """What the command takes for a `subprocess.Popen`."""

    def __init__(self, warm: WarmProcess, stderr: IO[bytes], directory: str) -> None:
        order, write_order = os.pipe()
        read_answer, answer = os.pipe()
        self.stdin, self.stdout = open(write_order, "wb"), open(read_answer, "rb")  # noqa: SIM115 - the command closes
        try:
            self.pid = warm.keeper([order, answer, stderr.fileno()], directory)
        finally:
            os.close(order)
            os.close(answer)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """1 once it has ended: its parent knows how."""
        try:
            self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None
        return 1

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return 1
        try:
            if not select.select([process], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("keeper", timeout or 0.0)
        finally:
            os.close(process)
        return 1


class WarmProcesses:
    """Those of this test process, one for each set of variables that must be there when a process starts."""

    def __init__(self, at_start: Sequence[str]) -> None:
        """`at_start`: the names of such variables."""
        self._at_start = at_start
        self._made: dict[tuple[str | None, ...], WarmProcess] = {}

    def of(self, env: Mapping[str, str]) -> WarmProcess:
        """That of this environment."""
        key = tuple(env.get(name) for name in self._at_start)
        if key not in self._made:
            self._made[key] = WarmProcess(env)
        return self._made[key]

    @property
    def pids(self) -> set[int]:
        """They are nobody's leavings."""
        return {process.pid for process in self._made.values()}

    @property
    def descriptors(self) -> set[int]:
        """By which they are asked."""
        return {process.descriptor for process in self._made.values()}

    @contextmanager
    def instead_of(self, module: Any, env: Mapping[str, str]) -> Iterator[None]:
        """Meanwhile `module` (hfs.mounting.mounting) starts keepers by the one of `env`."""
        warm = self.of(env)

        def popen(command: Sequence[str], *, pass_fds: Sequence[int], **how: Any) -> Any:
            if pass_fds:
                return subprocess.Popen(command, pass_fds=pass_fds, **how)
            return StartedKeeper(warm, how["stderr"], str(how["cwd"]))

        before = module.subprocess
        module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
        try:
            yield
        finally:
            module.subprocess = before

    def close(self) -> None:
        """End all of them."""
        while self._made:
            self._made.popitem()[1].close()


def main() -> None:
    """Import the daemon; then a keeper for each message, until nobody can send one."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(asked.fileno(), False)
    spec = importlib.util.spec_from_file_location("hfs", ROOT / "hfs" / "__init__.py")  # as own_process.py does
    assert spec is not None
    assert spec.loader is not None
    sys.modules["hfs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hfs"])
    for name in ("hfs.mounting.daemon_process", "hfs.mountd.daemon.daemon"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()

    def reap(_number: int, _frame: object) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
        if not message:
            return
        if (pid := os.fork()) == 0:
            _become_keeper(json.loads(message), streams)
        for descriptor in streams:
            os.close(descriptor)
        asked.send(str(pid).encode())


def _become_keeper(order: dict[str, Any], streams: Sequence[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        _become_daemon(theirs.detach())
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(ours.fileno(), True)
    os.chdir(order["directory"])
    command = [sys.executable, "-I", "-S", str(_KEEPER), str(ROOT), str(pid), str(ours.fileno())]
    os.execve(command[0], command, order["environment"])


def _become_daemon(ours: int) -> None:
    """Wait for what a started process has from the beginning: streams, environment, directory."""
    os.closerange(3, ours)
    os.closerange(ours + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    with socket.socket(fileno=ours) as connection:
        message, streams, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        while part := connection.recv(_MESSAGE_BYTES):
            message += part
    if not message:
        os._exit(0)  # the keeper has ended without a daemon
    order = json.loads(message)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so the keeper has it
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    del sys.argv[1:]
    sys.exit(importlib.import_module("hfs.mounting.daemon_process").main())


if __name__ == "__main__":
    main()
