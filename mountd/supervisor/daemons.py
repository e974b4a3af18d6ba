"""Daemons as processes: started, given the mount's connection, heard, and how they ended in words.

A daemon is there before it is needed. It imports what it will use, says so, and waits on its stdin, a socket: what is
sent there makes it the daemon of the mount. Before it begins it forks the one that waits next, which so costs neither
the time nor most of the memory of importing again. If the keeper dies, one that still waits reads the end and goes.
What a daemon says comes on its stdout, one JSON object a line:

    {"imported": pid}               it waits
    {"ready": pid}                  the mount answers
    {"error": text, "code": n}      it will end with exit code n
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

Kind = TypeVar("Kind")


_LIMIT_S = 30.0
"""For the daemon that goes: what it holds is written to the cache within ten seconds, or fetched again later."""
_FIXED = {
    "source": "SOURCE",
    "mountpoint": "MOUNTPOINT",
    "as_user": "as-user",
    "allow_other": "allow-other",
    "noexec": "noexec",
    "peers": "peers",
}
"""What was fixed when the mount was made, as people call it."""


def _written(value: object) -> str:
    """As one would write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "nothing" if value is None else str(value)


class TakeOverRefused(Exception):
    """It cannot be; the text says why. `code`: 2 for what was given wrongly."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class TakeOver:
    """Another release takes a running mount over: what it wants, what cannot be changed, and how far it is.

    The new program is loaded first. Then the daemon that serves is asked to end: it answers what it can and writes down
    what it holds, while requests wait in the kernel. Then the new one is given the mount. If it fails, the old program
    is started again; the mount outlives either.

    One attempt.
    """

    program: Program
    reply: Callable[[dict[str, Any]], None]
    limit_s: float = _LIMIT_S
    successor: Daemon | None = None
    """The new program, until it is given the mount."""
    given: Daemon | None = None
    """The same afterwards."""

    @property
    def is_loaded(self) -> bool:
        """The new program waits for the mount."""
        return self.successor is not None and self.successor.imported

    @classmethod
    def begin(cls, request: dict[str, Any], before: Program, reply: Callable[[dict[str, Any]], None]) -> TakeOver:
        """From what was asked. Raises TakeOverRefused."""
        try:
            config = field(request, "config", dict)
            given = {"config": config, "origins": field(request, "origins", dict)}
            command, directory = field(request, "daemon", list), field(request, "directory", str)
            environment = field(request, "environment", dict)
            environment = {name: field(environment, name, str) for name in environment}
        except Malformed:
            raise TakeOverRefused("the request is not understood; the two releases are too far apart", 1) from None
        faults = [
            f"{name}: the mount was made with {_written(now)}, and {_written(then)} is asked for"
            for key, name in _FIXED.items()
            if (now := before.given["config"].get(key)) != (then := config.get(key))
        ]
        if faults:
            raise TakeOverRefused("; ".join([*faults, "unmount, and mount again"]), 2)
        environment.setdefault("PATH", os.defpath)
        return cls(Program(command, directory, environment, given), reply)


class Malformed(Exception):
    """It is not what it should be; the text says what is wrong."""


def read(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None: it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def field(record: Mapping[str, Any], name: str, kind: type[Kind], default: Kind | None = None) -> Kind:
    """One of its fields, which is of this type. `default` stands for one that is not there; None: it has to be. A float
    may come as an integer, and is finite; a list is of texts. Raises Malformed."""
    value = record.get(name, default)
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    is_right = type(value) is kind and (not isinstance(value, float) or math.isfinite(value))
    if isinstance(value, list):
        is_right = is_right and bool(value) and all(isinstance(part, str) for part in value)
    if not is_right:
        raise Malformed(f"{name} is no {kind.__name__}")
    assert isinstance(value, kind)
    return value


def received(connection: socket.socket, most_bytes: int, most: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """A message, and the descriptors that come with it, `most` of them: no program that we start has them. (Those of
    `socket.recv_fds` it has, up to Python 3.11, which drops the flags that it is given.) Raises OSError."""
    numbers = array.array("i")
    room = socket.CMSG_LEN(most * numbers.itemsize)
    data, ancillary, _, _ = connection.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC | flags)
    for level, kind, part in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(part[: len(part) - len(part) % numbers.itemsize])
    return data, list(numbers)


class Program(NamedTuple):
    """What is started as a daemon, and what it is told: its configuration is passed on as it came."""

    command: Sequence[str]
    directory: str
    """Where it is started: `python -m` looks there first."""
    environment: Mapping[str, str]
    given: Mapping[str, Any]


class Daemon:
    """One process. `hand_over` once; `hear` whenever `output` is readable."""

    def __init__(self, program: Program, connection: socket.socket, output: int) -> None:
        """`connection`: the other end of its stdin. `output`: its stdout. See `start` and `to_be_forked`."""
        self.program = program
        self.pid = 0
        """0 until it is known."""
        self.output = output
        self.imported = False
        self.serving = False
        self.ready_s: float | None = None
        """When it began to answer, by the monotonic clock."""
        self.said: dict[str, Any] = {}
        """Its last words: an `error`."""
        self.hung_s: float | None = None
        """For how long it had not answered when it was ended for that."""
        self.was_stopped = False
        """By a signal, for which it can do nothing."""
        self.exit_code: int | None = None
        """As of subprocess: negative for a signal; None while it runs, and if its parent was another one."""
        self._connection = connection
        self._unread = b""
        self._silent = False
        self._pidfd = -1
        os.set_blocking(output, False)

    @classmethod
    def start(cls, program: Program, log: int) -> Daemon:
        """A new process; `log` is its stderr. Raises OSError."""
        daemon, theirs = cls.to_be_forked(program)
        try:
            process = subprocess.Popen(
                program.command,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=log,
                cwd=program.directory,
                env=program.environment,
                close_fds=False,  # ours are not inherited; what a launcher has given us is for the daemon
            )
        except BaseException:
            daemon.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        process.returncode = 0  # waited for here, by pid
        daemon.is_process(process.pid)
        return daemon

    @classmethod
    def to_be_forked(cls, program: Program) -> tuple[Daemon, list[int]]:
        """One that another daemon will fork, and the descriptors that become its stdin and stdout. Raises OSError."""
        ours, theirs = socket.socketpair()
        output, their_output = os.pipe2(os.O_CLOEXEC)
        return cls(program, ours, output), [theirs.detach(), their_output]

    def is_process(self, pid: int) -> None:
        """It has this pid."""
        self.pid = pid
        with contextlib.suppress(OSError):  # gone already, or a kernel before 5.3
            self._pidfd = os.pidfd_open(pid)

    def hand_over(self, handover: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Make it the mount's daemon. The descriptors arrive in this order. A process that has ended takes nothing."""
        self.serving = True
        self.signal(signal.SIGCONT)  # it may have been stopped while it waited
        message = json.dumps({**self.program.given, "handover": dict(handover)}).encode()
        try:
            sent = socket.send_fds(self._connection, [message], list(descriptors))
            self._connection.sendall(message[sent:])
        except OSError:  # it has ended: the caller will hear of that
            pass
        self._connection.close()

    def hear(self) -> list[dict[str, Any]] | None:
        """What it has said since; None once it has nothing more to say, or to say it with."""
        try:
            part = os.read(self.output, 65536)
        except BlockingIOError:
            return []
        if not part:
            self._silent = True
            return None
        *lines, self._unread = (self._unread + part).split(b"\n")
        found = []
        for line in lines:
            record = read(line)
            if record is None:  # a library that prints
                continue
            with contextlib.suppress(Malformed):
                self._understand(record)
                found.append(record)
        return found

    def _understand(self, record: dict[str, Any]) -> None:
        if "imported" in record:
            pid = field(record, "imported", int)
            if not 0 < pid < 1 << 31:
                raise Malformed("imported is no pid")
            if not self.pid:
                self.is_process(pid)
            self.imported = True
        elif "error" in record:
            field(record, "error", str)
            field(record, "code", int, 1)
            self.said = record

    def has_ended(self) -> bool:
        """Whether the process has ended. Its parent must ask, or it stays a zombie."""
        if self.exit_code is not None:
            return True
        if not self.pid:
            return self._silent  # it was never forked
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # its parent is the daemon before it, or was, and has waited
            return self._pidfd < 0 or _is_readable(self._pidfd, 0)
        if pid:
            self.exit_code = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def is_running(self) -> bool:
        """Whether it goes on, or would on another processor: none of its threads waits for something else."""
        found = set()
        with contextlib.suppress(OSError):  # it has just ended, or a thread of it
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{thread}/stat", "rb") as file:
                    found.add(file.read().rpartition(b") ")[2][:1])
        return found <= {b"R", b"Z", b"X"}

    def signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
        elif self.pid and not self.has_ended():
            os.kill(self.pid, number)

    def how_it_ended(self) -> str:
        """In a clause: "was ended by SIGSEGV", "failed: the disk is gone"."""
        code = self.exit_code
        why = self.said.get("error")
        if why:
            return f"failed: {why}"
        if code is None:
            return "ended"
        if code < 0:
            try:
                return f"was ended by {signal.Signals(-code).name}"
            except ValueError:
                return f"was ended by signal {-code}"
        return f"ended with exit code {code}"

    def end(self, limit_s: float) -> None:
        """Kill it and wait; a thread of it that waits in the kernel may make it outlast the limit."""
        self.signal(signal.SIGKILL)
        if self._pidfd >= 0:
            _is_readable(self._pidfd, limit_s)
        self.has_ended()

    def close(self) -> None:
        """Let go of its descriptors. One that waits on its stdin then ends."""
        self._connection.close()
        for descriptor in (self.output, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.output = self._pidfd = -1


def _is_readable(descriptor: int, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
