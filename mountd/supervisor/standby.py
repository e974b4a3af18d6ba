"""The daemon that waits for the next crash: forked by the one that serves, before that begins, and already loaded."""

from __future__ import annotations

from hfs.mountd.supervisor.children import Children
from hfs.mountd.supervisor.daemons import Daemon, Program
from hfs.mountd.supervisor.log import Log


class Standby:
    """At most one daemon. Where there can be none, the next one is started when it is needed."""

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
