"""The processes of one mount: started or to be forked, listened to, noticed when they end, and waited for.

A daemon has ended when its process has. One whose descriptors are all closed is as good as ended, and so is one that
has not gone a moment after it was killed: a thread of it waits in the kernel, not to be killed, perhaps for an answer
that only the next daemon can give. It is waited for later. But one whose threads only wait for a processor goes by
itself, and nothing is begun before.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from hfs.mountd.supervisor.daemons import Daemon, Program
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop

_LINGER_S = 0.2
"""Between the end of all that a process has open and its own: more, and a thread of it waits in the kernel."""
_KILLED_S = 1.0
"""The same after SIGKILL: to give back some GiB of memory takes some tenths of a second."""
_BUSY_S = 10.0
"""However busy the machine is."""
_END_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


class Children:
    """`said(daemon, record)` is called for each line of each, `ended(daemon)` once."""

    def __init__(
        self, loop: Loop, log: Log, said: Callable[[Daemon, dict[str, Any]], None], ended: Callable[[Daemon], None]
    ) -> None:
        self._loop = loop
        self._log = log
        self._said = said
        self._ended = ended
        self._all: list[Daemon] = []
        self._lingering: list[Daemon] = []
        # What a daemon has forked becomes ours when that has ended.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, program: Program) -> Daemon:
        """A new process. Raises OSError."""
        log = self._log.open()
        try:
            return self._listen(Daemon.start(program, log))
        finally:
            os.close(log)

    def to_be_forked(self, program: Program) -> tuple[Daemon, list[int]]:
        """One that another daemon will fork, and what becomes its stdin, stdout and stderr; the caller closes these."""
        daemon, ends = Daemon.to_be_forked(program)
        return self._listen(daemon), [*ends, self._log.open()]

    def _listen(self, daemon: Daemon) -> Daemon:
        self._all.append(daemon)
        self._loop.watch(daemon.output, lambda: self._hear(daemon))
        return daemon

    def _hear(self, daemon: Daemon) -> None:
        said = daemon.hear()
        if said is None:
            self._loop.ignore(daemon.output)
            self._let_go_in(_LINGER_S, daemon)
            self.look()
            return
        for record in said:
            self._said(daemon, record)

    def look(self) -> None:
        """Notice who has ended; to be called after SIGCHLD."""
        for daemon in [*self._all, *self._lingering]:
            if daemon.has_ended():
                self._let_go(daemon)
        self._reap_strangers()

    def kill(self, daemon: Daemon, why: str = "") -> None:
        """End it by force; `ended` is called, also where it does not go. `why`: its last words, if it has none."""
        if why and not daemon.said:
            daemon.said = {"error": why}
        daemon.signal(signal.SIGKILL)
        self._let_go_in(_KILLED_S, daemon)

    def lingers(self, daemon: Daemon | None = None) -> bool:
        """Whether it has ended but for a thread in the kernel; None: any of those that were before."""
        self._lingering = [each for each in self._lingering if not each.has_ended()]
        return daemon in self._lingering if daemon is not None else bool(self._lingering)

    def end(self, daemon: Daemon) -> None:
        """Kill it and wait; `ended` is not called."""
        daemon.end(_END_S)
        self._forget(daemon)

    def _let_go_in(self, seconds: float, daemon: Daemon) -> None:
        until_s = time.monotonic() + seconds + _BUSY_S
        self._loop.after(seconds, lambda: self._let_go(daemon, until_s))

    def _let_go(self, daemon: Daemon, until_s: float = 0.0) -> None:
        """It has ended, or is taken for ended; but until then only if a thread of it waits in the kernel."""
        if daemon in self._lingering and daemon.has_ended():
            self._lingering.remove(daemon)
        if daemon not in self._all:
            return
        if not daemon.has_ended():
            daemon.signal(signal.SIGKILL)
            if time.monotonic() < until_s and daemon.is_running():
                self._loop.after(_LINGER_S, lambda: self._let_go(daemon, until_s))
                return
            self._lingering.append(daemon)
        daemon.hear()  # its last words
        self._forget(daemon)
        self._ended(daemon)

    def _forget(self, daemon: Daemon) -> None:
        if daemon in self._all:
            self._all.remove(daemon)
            self._loop.ignore(daemon.output)
            daemon.close()

    def _reap_strangers(self) -> None:
        """Children of a daemon that was killed are only waited for."""
        known = {daemon.pid for daemon in [*self._all, *self._lingering]}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in known:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


class Standby:
    """The daemon that waits for the next crash: forked by the one that serves, before that begins, and already loaded.
    Where there can be none, the next one is started when it is needed."""

    def __init__(self, children: Children, log: Log, *, wanted: bool) -> None:
        self._children = children
        self._log = log
        self._wanted = wanted
        self._daemon: Daemon | None = None

    def fork_from(self, daemon: Daemon) -> list[int]:
        """Descriptors with which `daemon` forks it; the caller closes them. Empty: there is none."""
        if not self._wanted:
            return []
        try:
            self._daemon, ends = self._children.to_be_forked(daemon.program)
        except OSError as error:
            self._log.info(f"no daemon waits for the next crash: {error.strerror}")
            return []
        return ends

    def take(self) -> Daemon | None:
        """It is needed now, and waits no more."""
        daemon, self._daemon = self._daemon, None
        return daemon

    def lost(self, ended: Daemon) -> bool:
        """A daemon has ended. True: it was this one, and nobody waits now."""
        if ended is not self._daemon:
            return False
        self._daemon = None
        return True

    def dismiss(self, *, unless: Program | None = None) -> None:
        """End it, unless it is of this program."""
        if self._daemon is not None and (unless is None or self._daemon.program is not unless):
            self._children.end(self._daemon)
            self._daemon = None
