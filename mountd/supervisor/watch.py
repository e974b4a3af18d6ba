"""The daemon that serves is watched: one that does not answer is ended as if it had crashed, and the next one follows.

A thread of it may sleep in the kernel and cannot be killed. The process is let go then; requests that such a thread has
taken get an error from here, since the next daemon, which would be sent them again, might sleep on them as well.
"""

from __future__ import annotations

import time

from hfs.mountd.supervisor.children import Children
from hfs.mountd.supervisor.connection import Connection
from hfs.mountd.supervisor.daemons import Daemon
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.pulse import LOOK_S, Process, Pulse


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
