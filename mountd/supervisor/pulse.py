"""Whether the daemon that serves goes on: it says so in memory that is made here, and that is looked at twice a second.

Its event loop writes another number once a second (mountd/fuse/fuse.py), each thread that reads requests at each step,
with what it does: it works, or it sleeps until there is something to do, or it waits for Python, of which the event
loop's number tells. So what works on one thing for seconds is hung, whatever it waits for; and so is a mount whose
requests nobody takes. How many requests wait says nothing: where the source hangs, all do.

Only time in which we ran counts, and in which the daemon could run: a machine that is frozen, or where each has to wait
for a processor or for its pages from the disk, is slow, and nobody on it hung.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import NamedTuple

from hfs.mountd.supervisor.children import Children
from hfs.mountd.supervisor.connection import Connection
from hfs.mountd.supervisor.daemons import Daemon
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop

LOOK_S = 0.5
"""Between two looks: what passes beyond that counts for nothing, since we did not run."""
_HUNG_S = 6.0
"""With the end of the process and the start of the next daemon some 8 s in all."""
_MOST_S = 60.0
"""However busy the machine is."""
_SUSPECT_S = 2.0
"""What keeps the daemon from running is asked from here on: it takes a look at each of its threads."""

_BEAT = struct.Struct("=QQ48x")
"""struct beat of mountd/native/plane/plane.h: `turns` and `unique`. The first is the event loop's."""
_BEATS = 1 + 64
_SLEEPS, _WORKS = 0, 1
_STATE = 3
_UNTAKEN = -1
"""Stands for all threads: none of them takes the requests that there are."""
_MAJOR_FAULTS = 9
"""In /proc/PID/stat behind the name and the state: proc_pid_stat(5)."""


class Process:
    """What has kept a process from running."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._delays_ns: dict[str, int] = {}
        self._faults: int | None = None

    @property
    def state(self) -> str:
        """As of proc(5), of its first thread: T if it is stopped, Z if it has ended; empty: it is not there."""
        return (self._stat() or [""])[0]

    def hindered_s(self, passed_s: float) -> float:
        """Of the time since the last call, which was `passed_s` ago."""
        before_ns, self._delays_ns = self._delays_ns, self._delays()
        waited_ns = (
            self._delays_ns[thread] - was_ns for thread, was_ns in before_ns.items() if thread in self._delays_ns
        )
        before, stat = self._faults, self._stat()
        self._faults = int(stat[_MAJOR_FAULTS]) if stat else None
        if before is not None and self._faults != before:
            return passed_s
        return min(passed_s, max(waited_ns, default=0) / 1e9)

    def _stat(self) -> list[str]:
        try:
            with open(f"/proc/{self._pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rpartition(") ")[2].split()
        except OSError:
            return []

    def _delays(self) -> dict[str, int]:
        """For how long each of its threads has waited for a processor so far."""
        found = {}
        tasks = f"/proc/{self._pid}/task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(tasks):
                try:
                    with open(f"{tasks}/{thread}/schedstat", encoding="ascii") as file:
                        found[thread] = int(file.read().split()[1])
                except (OSError, ValueError, IndexError):  # it has ended; a kernel that does not count
                    continue
        return found


class Still(NamedTuple):
    """Since when something has not gone on."""

    counted_s: float
    passed_s: float


class Pulse:
    """One daemon's."""

    def __init__(self, process: Process) -> None:
        self.fd = os.memfd_create("hfs-beats", os.MFD_CLOEXEC)
        """For the daemon."""
        try:
            os.posix_fallocate(self.fd, 0, _BEATS * _BEAT.size)  # where there is no memory, writing there would kill it
        except BaseException:
            os.close(self.fd)
            raise
        self._process = process
        self._beats = self._read()
        self._still: dict[int, Still] = {}
        self._looked_s: float | None = None

    def close(self) -> None:
        """What the daemon has of it stays."""
        os.close(self.fd)

    def looked(self, now_s: float, *, is_asked: bool) -> str:
        """How the daemon hangs, in a clause; empty: it does not. To be called every LOOK_S. `is_asked`: requests wait
        to be taken."""
        ran_s = 0.0 if self._looked_s is None else min(LOOK_S, now_s - self._looked_s)
        self._looked_s = now_s
        still = self._stand_still(is_asked=is_asked)
        is_suspect = any(self._still[which].counted_s >= _SUSPECT_S for which in still if which in self._still)
        could_s = ran_s - (self._process.hindered_s(ran_s) if is_suspect else 0.0)
        none = Still(0.0, 0.0)
        self._still = {
            which: Still(before.counted_s + could_s, before.passed_s + ran_s)
            for which in still
            for before in [self._still.get(which, none)]
        }
        hung = [which for which, how in self._still.items() if how.counted_s >= _HUNG_S or how.passed_s >= _MOST_S]
        return _told(hung) if hung else ""

    @property
    def stands_s(self) -> float:
        """For how long something has not gone on."""
        return max((how.passed_s for how in self._still.values()), default=0.0)

    def taken(self) -> list[int]:
        """The requests that threads which do not go on were about to answer."""
        uniques = [self._beats[which][1] for which in self._still if which > 0]
        return [unique for unique in uniques if unique]

    def _read(self) -> list[tuple[int, int]]:
        return list(_BEAT.iter_unpack(os.pread(self.fd, _BEATS * _BEAT.size, 0)))

    def _stand_still(self, *, is_asked: bool) -> list[int]:
        """Who has not gone on since the last look and should have."""
        before, self._beats = self._beats, self._read()
        same = [now[0] == then[0] != 0 for now, then in zip(self._beats, before, strict=True)]
        states = [turns & _STATE for turns, _ in self._beats]
        still = [which for which in range(_BEATS) if same[which] and states[which] == _WORKS]
        readers = [which for which in range(1, _BEATS) if self._beats[which][0]]
        if is_asked and readers and all(same[which] and states[which] == _SLEEPS for which in readers):
            still.append(_UNTAKEN)
        return still


def _told(hung: list[int]) -> str:
    if 0 in hung:
        return "its event loop stands still"
    return "nobody takes its requests" if _UNTAKEN in hung else "a thread that reads requests stands still"


class Watch:
    """Of the daemon that was handed the mount last."""

    def __init__(self, loop: Loop, children: Children, log: Log) -> None:
        self._loop = loop
        self._children = children
        self._log = log
        self._daemon: Daemon | None = None
        self._pulse: Pulse | None = None
        self.hung = 0
        """Daemons that were ended since they did not answer."""

    def begin(self, daemon: Daemon, connection: Connection) -> int:
        """From here on; the memfd that it is to be handed; -1: there is none, and nobody looks."""
        self.end()
        process = Process(daemon.pid)
        try:
            pulse = self._pulse = Pulse(process)
        except OSError as error:
            self._log.warning(f"nobody watches process {daemon.pid}: {error.strerror}")
            return -1
        self._daemon = daemon

        def look() -> None:
            if pulse is not self._pulse:
                return
            how = pulse.looked(time.monotonic(), is_asked=connection.is_asked)
            state = process.state
            if state == "Z":  # killed by somebody, or about to end: gone by the next look, or a thread sleeps
                self._children.kill(daemon)
            elif how:
                daemon.hung_s = pulse.stands_s
                daemon.was_stopped = state in {"T", "t"}
                self.hung += 1
                how = "it was stopped by a signal or a debugger" if daemon.was_stopped else how
                self._children.kill(daemon, f"did not answer for {daemon.hung_s:.1f} s ({how})")
            else:
                self._loop.after(LOOK_S, look)

        self._loop.after(LOOK_S, look)
        return pulse.fd

    def ended(self, daemon: Daemon, connection: Connection | None) -> None:
        """It has, or is let go of."""
        if daemon is not self._daemon or self._pulse is None:
            return
        if self._children.lingers(daemon):
            self._log.warning(f"process {daemon.pid} was killed and stays: a thread of it sleeps in the kernel")
            if connection is not None:
                for unique in self._pulse.taken():
                    connection.refuse(unique)
        self.end()

    def end(self) -> None:
        """Nobody is watched."""
        if self._pulse is not None:
            self._pulse.close()
        self._pulse = self._daemon = None
