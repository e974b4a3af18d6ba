"""The daemons of one mount, one after the other: which one serves, what follows its end, and who takes its place.

A daemon is loaded, is handed the mount, says that it is ready, serves, and ends. When it ends by itself, the next one
is started as `Restarts` allows; when that allows no more, every request is refused. Another release that takes the
mount over is loaded beside the daemon that serves, and follows it; if it fails, the program before it goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfs.mountd.supervisor.children import Children, Standby
from hfs.mountd.supervisor.connection import MountRefused
from hfs.mountd.supervisor.daemons import Daemon, Program, TakeOver, TakeOverRefused
from hfs.mountd.supervisor.desk import Reply
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.mounts import KeeperMount
from hfs.mountd.supervisor.pulse import Watch
from hfs.mountd.supervisor.refusing import Refusing

_YOUNG_S = 1.0
"""A request that ends every daemon is sent again to each, and ends it within milliseconds."""
_WITHIN_S = 60.0
_MOST = 5
_DELAYS_S = (0.0, 0.1, 0.5, 1.0, 2.0)
"""Before the first, second, ... start after a young death. In all below 4 s: readers wait meanwhile."""


class Restarts:
    """The ends of one mount's daemons."""

    def __init__(self) -> None:
        self.count = 0
        """Daemons that ended by themselves."""
        self._young: deque[float] = deque()
        self._hung_s: float | None = None

    def hung(self, now_s: float) -> bool:
        """A daemon was ended since it did not answer. Whether another one was just before: then it is not the daemons,
        and the connection should be given up with all that waits there."""
        before_s, self._hung_s = self._hung_s, now_s
        return before_s is not None and now_s - before_s < _WITHIN_S

    def ended(self, now_s: float, lived_s: float | None) -> float | None:
        """A daemon has ended that had answered for `lived_s` seconds (None: it never did).

        Seconds to wait before the next start; None: no other is started.
        """
        self.count += 1
        if lived_s is not None and lived_s >= _YOUNG_S:
            self._young.clear()
            return 0.0
        self._young.append(now_s)
        while self._young[0] < now_s - _WITHIN_S:
            self._young.popleft()
        return None if len(self._young) >= _MOST else _DELAYS_S[len(self._young) - 1]

    def forgive(self) -> None:
        """What comes now is something else: another release."""
        self._young.clear()

    @property
    def young(self) -> int:
        """Daemons that ended as soon as they began, of late."""
        return len(self._young)


_READY_S = 60.0
"""In which a daemon that follows another has to be loaded, and then to answer; opening the cache after a crash takes a
second at most."""
_READY_BESIDE_S = 10.0
"""The same beside one that was killed and stays: it may wait for what that one holds in the kernel."""


class Starter:
    """Whoever has started the mount: told once, by `answer`, `{"ready": pid}` or `{"error": text, "code": n}`."""

    def __init__(self, answer: Callable[[dict[str, Any]], None], when_mounted: Sequence[str], directory: str) -> None:
        """`when_mounted`: a command to run, in `directory`, once the mount answers; empty: none."""
        self._answer = answer
        self._when_mounted = when_mounted
        self._directory = directory
        self.is_told = False

    def tell(self, record: dict[str, Any]) -> None:
        """The first record is the answer; others change nothing."""
        if self.is_told:
            return
        self.is_told = True
        self._answer(record)
        if "ready" in record and self._when_mounted:
            started = subprocess.Popen(self._when_mounted, stdin=subprocess.DEVNULL, cwd=self._directory)
            started.returncode = 0  # waited for as all children are


class Succession:
    """`begin`, then turn the loop until there is a `code`, then `close`."""

    def __init__(
        self, mount: KeeperMount, program: Program, starter: Starter, loop: Loop, log: Log, *, standby: bool
    ) -> None:
        """`standby`: one daemon more waits for the next crash."""
        self.children = Children(loop, log, self._heard, self._gone)
        self.code: int | None = None
        """The keeper's exit code, once no daemon will follow."""
        self.error: dict[str, Any] | None = None
        """Why the mount could not be made, or has not answered: for whoever has started it. Nothing of it stays."""
        self._mount = mount
        self._program = program
        self._starter = starter
        self._loop = loop
        self._log = log
        self._current: Daemon | None = None
        self._standby = Standby(self.children, log, wanted=standby)
        self._taking: TakeOver | None = None
        self._refusing = Refusing(loop)
        self._restarts = Restarts()
        self._watch = Watch(loop, self.children, log)
        self._last_end = ""
        self._stopping = False

    def begin(self) -> None:
        """Start the first. Raises OSError."""
        # Before the mount is there: the program may lie where the mount will be.
        self._current = self.children.start(self._program)

    def status(self) -> dict[str, Any]:
        """For people: who serves, and what has happened."""
        return {
            "daemon": None if self._current is None else self._current.pid,
            "answers": self._current is not None and self._current.ready_s is not None,
            "refusing": self._refusing.why,
            "restarts": self._restarts.count,
            "hung": self._watch.hung,
            "last_end": self._last_end,
        }

    @property
    def given(self) -> Mapping[str, Any]:
        """What the daemon that serves was told: `config`, and the `origins` of that."""
        return self._program.given

    def stop(self, *, again: bool) -> None:
        """The mount has been taken away: end the daemon; `again`: kill it."""
        if self._current is None:
            self._finish(0)
        elif not self._stopping:
            self._current.signal(signal.SIGUSR2 if self._current.serving else signal.SIGKILL)
        elif again:
            self._current.signal(signal.SIGKILL)
        self._stopping = True

    def close(self) -> None:
        """End all that are left."""
        self._standby.dismiss()
        successor = None if self._taking is None else self._taking.successor
        for daemon in (self._current, successor):
            if daemon is not None:
                self.children.end(daemon)

    # -- one daemon ---------------------------------------------------------------------------------------------------

    def _heard(self, daemon: Daemon, record: dict[str, Any]) -> None:
        if self.code is not None:
            return
        if "imported" in record:
            if daemon is self._current:
                self._hand_over(daemon)
            elif self._taking is not None and daemon is self._taking.successor:
                self._make_room()
        elif "ready" in record and daemon is self._current:
            self._is_ready(daemon, record)

    def _hand_over(self, daemon: Daemon) -> None:
        if self._mount.connection is None and not self._stands():
            return
        connection = self._mount.connection
        assert connection is not None
        record, descriptors = self._mount.handover(self._watch.begin(daemon, connection))
        ours = {"keeper_pid": os.getpid(), "restarts": self._restarts.count, "last_end": self._last_end}
        ours |= {"hung": self._watch.hung, "lingers": self.children.lingers()}
        is_first = not self._starter.is_told and record["generation"] == 0
        ours["asked"] = is_first or (self._taking is not None and daemon is self._taking.given)
        ends = self._standby.fork_from(daemon)
        daemon.hand_over({**record, **ours}, [*descriptors, *ends])
        for descriptor in ends:
            os.close(descriptor)
        if self._starter.is_told:
            self._limit(daemon, "did not answer", lambda: daemon.ready_s is not None)

    def _limit(self, daemon: Daemon, fault: str, is_done: Callable[[], bool]) -> None:
        """Others wait for `daemon`: kill it if it has not done this in time."""

        def look() -> None:
            awaited = daemon is self._current or (self._taking is not None and daemon is self._taking.successor)
            if awaited and not is_done():
                daemon.hung_s = 0.0
                self.children.kill(daemon, f"{fault} within {limit_s:g} s")

        limit_s = _READY_BESIDE_S if self.children.lingers() else _READY_S
        self._loop.after(limit_s, look)

    def _is_ready(self, daemon: Daemon, record: dict[str, Any]) -> None:
        daemon.ready_s = time.monotonic()
        if self._starter.is_told:
            self._log.info(f"process {daemon.pid} answers")
        self._starter.tell(record)
        taking = self._taking
        if taking is not None and daemon is taking.given:
            self._program = daemon.program
            self._log.written_as(str(self.given["config"].get("log_format")))
            self._restarts.forgive()
            taking.reply({"ready": daemon.pid})
            self._taking = None
        elif taking is not None and taking.is_loaded:
            self._make_room()

    def _gone(self, daemon: Daemon) -> None:
        if self.code is not None or self._standby.lost(daemon):
            return
        if daemon is self._current:
            self._current = None
            self._ended(daemon)
        elif self._taking is not None and daemon is self._taking.successor:  # before it was given the mount
            self._take_back(daemon)

    # -- the next one -------------------------------------------------------------------------------------------------

    def _ended(self, daemon: Daemon) -> None:
        connection, taking = self._mount.connection, self._taking
        self._watch.ended(daemon, connection)
        if self._stopping:
            self._finish(0)
        elif not self._starter.is_told:
            code = int(daemon.said.get("code", 1))
            self._finish(code, daemon.said if "error" in daemon.said else {"died": daemon.exit_code, "code": code})
        elif connection is not None and connection.is_gone:
            if connection.is_mounted:
                self._log.warning("the connection was aborted; the mount stays, dead, until it is unmounted")
            self._finish(1 if connection.is_mounted else 0)
        elif taking is not None and daemon is taking.given:
            self._take_back(daemon)
        elif taking is not None and taking.is_loaded:
            self._change_places(taking)
        else:
            now_s = time.monotonic()
            lived_s = None if daemon.ready_s is None else now_s - daemon.ready_s - (daemon.hung_s or 0.0)
            if daemon.hung_s is not None and not daemon.was_stopped and self._restarts.hung(now_s):
                made = "made anew; what is open there gets errors" if self._mount.give_up() else "another's, and stays"
                self._log.warning(f"one daemon after the other does not answer: the mount is {made}")
            self._follow(f"process {daemon.pid}", daemon.how_it_ended(), lived_s)

    def _follow(self, which: str, how: str, lived_s: float | None) -> None:
        """`which` daemon has ended, `how`, `lived_s` after its first answer: start the next, if any."""
        self._last_end = how
        delay_s = self._restarts.ended(time.monotonic(), lived_s)
        lived = "before it answered" if lived_s is None else f"after {lived_s:.1f} s"
        if delay_s is not None:
            self._log.warning(f"the daemon, {which}, {how} {lived}; the next one is started")
            self._loop.after(delay_s, self._start_next)
        elif self._stands():
            assert self._mount.connection is not None
            self._standby.dismiss()
            why = f"{self._restarts.young} daemons ended as soon as they had begun, the last {how}"
            why = f"{why}; every request gets an I/O error; see {self._log.name}, end it: hfs umount"
            self._log.warning(why)
            self._refusing.begin(self._mount.connection, why, lambda: self._finish(0))

    def _start_next(self) -> None:
        if self._stopping or self.code is not None or self._current is not None:
            return
        if self._mount.connection is not None and not self._stands():
            return
        try:
            daemon = self._standby.take() or self.children.start(self._program)
        except OSError as error:  # its program is gone, or there is no process to be had
            self._follow("a new process", f"could not be started: {error.strerror}", None)
            return
        self._current = daemon
        if daemon.imported:
            self._hand_over(daemon)
        else:
            self._limit(daemon, "was not loaded", lambda: daemon.imported)

    def _stands(self) -> bool:
        """Whether another daemon can go on with the mount. If not it is made anew, on top of the old one, which is dead
        then."""
        if self._mount.takes_up:
            return True
        try:
            self._mount.make()
        except MountRefused as error:
            if self._starter.is_told:
                self._log.warning(f"the mount cannot be made again: {error}; it stays, dead")
                self._finish(1)
            else:
                self._finish(1, {"error": f"{error}", "code": 1})
            return False
        return True

    # -- another release ----------------------------------------------------------------------------------------------

    def take_over(self, request: dict[str, Any], reply: Reply) -> None:
        """Have another program go on; `reply` tells what has come of it. Raises TakeOverRefused."""
        taking = TakeOver.begin(request, self._program, reply)
        if self._taking is not None or self._stopping or (not self._refusing.why and self._current is None):
            raise TakeOverRefused("the mount is changing just now; try again", 1)
        if self._current is not None and self._current.ready_s is None:
            raise TakeOverRefused("the mount's daemon is just starting; try again", 1)
        name = taking.program.command[0]
        try:
            taking.successor = successor = self.children.start(taking.program)
        except (OSError, ValueError) as error:
            raise TakeOverRefused(f"{name}: the keeper cannot start it: {error}", 1) from None
        self._taking = taking
        self._limit(successor, "was not loaded", lambda: successor.imported)  # also once it serves
        self._log.info(f"{name} takes the mount over")

    def _make_room(self) -> None:
        """The successor is loaded: the daemon that serves answers what it can at once, and goes."""
        taking, current = self._taking, self._current
        assert taking is not None
        if current is None:  # none serves: all is refused, or the daemon has just crashed
            self._change_places(taking)
        elif current.ready_s is not None:  # else one has crashed meanwhile; the next one does not listen yet
            self._loop.after(taking.limit_s, lambda: self.children.kill(current, "did not make room"))
            current.signal(signal.SIGHUP)

    def _change_places(self, taking: TakeOver) -> None:
        """Nobody serves the mount: the successor's turn."""
        successor = taking.successor
        assert successor is not None
        self._refusing.end()
        self._standby.dismiss()  # of the old program
        taking.successor, taking.given = None, successor
        self._current = successor
        if self._stands():
            self._hand_over(successor)

    def _take_back(self, daemon: Daemon) -> None:
        """The successor has failed: the program that was there goes on."""
        assert self._taking is not None
        taking, self._taking = self._taking, None
        self._standby.dismiss(unless=self._program)
        text = f"{taking.program.command[0]} could not take the mount over: it {daemon.how_it_ended()}"
        self._log.warning(f"{text}; the program before it goes on")
        code = daemon.said.get("code", 1)
        taking.reply({"error": f"{text}; {self._program.command[0]} goes on", "code": code})
        if self._current is None and not self._refusing.why:
            self._start_next()

    def _finish(self, code: int, error: dict[str, Any] | None = None) -> None:
        if self.code is None:
            self.code, self.error = code, error
