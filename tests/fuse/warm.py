"""A process that has imported the daemon already, and from which mounts of tests get theirs.

To import it takes most of the time of a mount, and tests make hundreds. So `hfs mount` runs in the test's process (see
`Hfs.mount`), and where it would start a keeper it asks this process for one. That forks the keeper, which forks a
daemon for when it would start its first. So processes, their parents, sessions and descriptors are those of a mount
that a user makes. How commands, keepers and daemons start is for the tests that run them as programs.
"""

import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

ROOT = Path(__file__).parent.parent.parent
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
    """Those of this test process, one for each value of the variable `run_key`, which must be there from the start."""

    def __init__(self, run_key: str) -> None:
        self._run_key = run_key
        self._made: dict[str, WarmProcess] = {}

    def of(self, env: Mapping[str, str]) -> WarmProcess:
        """That of this environment."""
        run = env[self._run_key]
        if run not in self._made:
            self._made[run] = WarmProcess(env)
        return self._made[run]

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
    for name in ("hfs.mounting.daemon_process", "hfs.mountd.daemon.daemon", "hfs.mountd.supervisor.keeper"):
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
    """Its first daemon is forked now, and gets its streams when it would be started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        _become_daemon(theirs.detach())
    theirs.close()
    _become_program(order, streams, ours.fileno())
    daemons = importlib.import_module("hfs.mountd.supervisor.daemons")

    def start(_command: Sequence[str], *, stdin: int, stdout: int, stderr: int, cwd: str, **how: Any) -> Any:
        daemons.subprocess = subprocess
        with ours:
            told = json.dumps({"directory": cwd, "environment": dict(how["env"])}).encode()
            sent = socket.send_fds(ours, [told], [stdin, stdout, stderr])
            ours.sendall(told[sent:])
        return SimpleNamespace(pid=pid)

    daemons.subprocess = SimpleNamespace(Popen=start)
    code = 1
    try:
        runpy.run_path(f"{ROOT}/hfs/mountd/supervisor/__main__.py", run_name="__main__")
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - what a program says of it goes to its standard error
        traceback.print_exc()
    finally:
        os._exit(code)


def _become_program(order: dict[str, Any], streams: Sequence[int], kept: int = 2) -> None:
    """What a started process has from the beginning: streams, environment, directory; `kept`: a descriptor besides."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    del sys.argv[1:]


def _become_daemon(ours: int) -> None:
    """Wait until it is to start."""
    os.closerange(3, ours)
    os.closerange(ours + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    with socket.socket(fileno=ours) as connection:
        message, streams, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        while part := connection.recv(_MESSAGE_BYTES):
            message += part
    if not message:
        os._exit(0)  # the keeper has ended without a daemon
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so the keeper has it
    _become_program(json.loads(message), streams)
    if "MOUNT_TEST_INJECTED" in os.environ:
        runpy.run_path(f"{ROOT}/tests/fuse/injected/sitecustomize.py")
    os._exit(importlib.import_module("hfs.mounting.daemon_process").main())


if __name__ == "__main__":
    main()
