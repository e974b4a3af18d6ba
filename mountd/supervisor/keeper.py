"""The keeper: what it does when it is started, when a daemon speaks or ends, and when somebody asks it to stop.

It is given its order as one JSON object: `config` and `origins` as a daemon gets them, and `keeper`, see order.py. It
answers whoever has started it with one line: `ready` or `error` (see hfs/mounting/mounting.py).

Signals: SIGTERM, SIGINT (and SIGUSR1, by which a daemon that got one of them tells us) unmount and end the daemon; a
second SIGTERM kills it. What is sent to a daemon is told in mountd/daemon/ending.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from mountd.supervisor.children import Children
from mountd.supervisor.connection import MountRefused
from mountd.supervisor.daemons import Daemon, Program
from mountd.supervisor.desk import Desk, Reply
from mountd.supervisor.log import Log
from mountd.supervisor.loop import Loop
from mountd.supervisor.mounts import KeptMount
from mountd.supervisor.order import KeeperOrder
from mountd.supervisor.refusing import ask_again, refuse_all, refuse_init
from mountd.supervisor.restarts import Restarts
from mountd.supervisor.takeover import TakeOver, TakeOverRefused

__all__ = ["Keeper"]

_READY_S = 60.0
"""In which a daemon that follows another has to be loaded, and then to answer; opening the cache after a crash takes a
second at most."""
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Keeper:
    """See the file's story. `run` until the mount has gone; the exit code."""

    def __init__(self, given: Mapping[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """`given`: the order; `answer` is called once, with the one line for whoever started the mount."""
        config = given["config"]
        self._order = KeeperOrder(**given["keeper"])
        options = {name: bool(config.get(name)) for name in ("allow_other", "noexec")}
        self._mount = KeptMount(config["mountpoint"], config["source"], options, resend=self._order.resend)
        self._log_file = config.get("log_file")
        self._log = Log(self._log_file, config.get("cache"))
        given = {"config": config, "origins": given["origins"]}
        self._program = Program(self._order.daemon, self._order.directory, dict(os.environ), given)
        self._answer = answer
        self._answered = False
        self._loop = Loop()
        self._children = Children(self._loop, self._log, self._heard, self._gone)
        self._desk: Desk | None = None
        self._current: Daemon | None = None
        self._standby: Daemon | None = None
        self._taking: TakeOver | None = None
        self._restarts = Restarts()
        self._last_end = ""
        self._refusing = ""
        self._stopping = False
        self._code: int | None = None

    def run(self) -> int:
        """Mount, keep a daemon on it, until unmounted."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with self._loop.signals((*_STOPS, signal.SIGCHLD), self._signalled):
            try:
                self._begin()
                while self._code is None:
                    self._loop.turn()
            except Exception as error:  # ours: the mount must not go, and a daemon that serves goes on serving
                self._log.warning(f"the keeper failed: {error!r}; the mount goes on without one")
                self._say({"error": f"the keeper failed: {error!r}", "code": 1})
                raise
        return self._code

    def _signalled(self, numbers: bytes) -> None:
        self._children.look()
        if any(number in _STOPS for number in numbers):
            self._stop(again=any(number in {signal.SIGTERM, signal.SIGINT} for number in numbers))

    def _say(self, record: dict[str, Any]) -> None:
        if not self._answered:
            self._answered = True
            self._answer(record)

    def _begin(self) -> None:
        try:
            self._mount.open_source()
        except OSError as error:
            text = f"source: {self._mount.source}: {error.strerror}; name a directory that you can read"
            self._give_up({"error": text, "code": 2})
            return
        try:
            if self._order.socket is not None:
                self._desk = Desk(self._order.socket, self._loop, self._asked)
        except OSError as error:
            self._log.warning(f"no socket of the keeper at {self._order.socket}: {error.strerror}")
        # Before the mount is there: the program may lie where the mount will be.
        self._current = self._children.start(self._program)

    # -- daemons ------------------------------------------------------------------------------------------------------

    def _heard(self, daemon: Daemon, record: dict[str, Any]) -> None:
        if "imported" in record:
            if daemon is self._current:
                self._hand_over(daemon)
            elif self._taking is not None and daemon is self._taking.successor:
                self._make_room()
        elif "ready" in record and daemon is self._current:
            self._is_ready(daemon, record)

    def _gone(self, daemon: Daemon) -> None:
        if daemon is self._standby:
            self._standby = None
        elif daemon is self._current:
            self._current = None
            self._ended(daemon)
        elif self._taking is not None and daemon is self._taking.successor:  # before it was given the mount
            self._take_back(daemon)

    def _hand_over(self, daemon: Daemon) -> None:
        if self._mount.connection is None:
            self._mount.feeds = self._mount.feeds and daemon.feeds
            try:
                self._mount.make()
            except MountRefused as error:
                self._give_up({"error": f"{error}", "code": 1})
                return
        record, descriptors = self._mount.handover()
        ours = {"keeper_pid": os.getpid(), "restarts": self._restarts.count, "last_end": self._last_end}
        ends = self._stand_by(daemon)
        daemon.hand_over({**record, **ours}, [*descriptors, *ends])
        for descriptor in ends:
            os.close(descriptor)
        if self._answered:
            self._loop.after(_READY_S, lambda: self._too_late(daemon))

    def _too_late(self, daemon: Daemon) -> None:
        if daemon is self._current and daemon.ready_s is None:
            daemon.said = {"error": f"did not answer within {_READY_S:g} s"}
            daemon.signal(signal.SIGKILL)

    def _is_ready(self, daemon: Daemon, record: dict[str, Any]) -> None:
        daemon.ready_s = time.monotonic()
        first = not self._answered
        self._say(record)
        if first and self._order.when_mounted:
            told = subprocess.Popen(self._order.when_mounted, stdin=subprocess.DEVNULL, cwd=self._order.directory)
            told.returncode = 0  # waited for as all children are
        if not first:
            self._log.info(f"process {daemon.pid} answers")
        taking = self._taking
        if taking is not None and daemon is taking.given:
            self._program = daemon.program
            self._restarts.forgive()
            taking.reply({"ready": daemon.pid})
            self._taking = None
        elif taking is not None and taking.is_loaded:
            self._make_room()

    def _stand_by(self, daemon: Daemon) -> list[int]:
        """Descriptors with which `daemon` forks the one that waits next."""
        if not self._order.standby:
            return []
        try:
            self._standby, ends = self._children.to_be_forked(daemon.program)
        except OSError as error:
            self._log.info(f"no daemon waits for the next crash: {error.strerror}")
            return []
        return ends

    def _load_in_time(self, daemon: Daemon) -> None:
        """`daemon` is started, and others wait for it."""
        self._loop.after(_READY_S, lambda: self._not_loaded(daemon))

    def _not_loaded(self, daemon: Daemon) -> None:
        awaited = daemon is self._current or (self._taking is not None and daemon is self._taking.successor)
        if awaited and not daemon.imported:
            daemon.said = {"error": f"was not loaded within {_READY_S:g} s"}
            daemon.signal(signal.SIGKILL)

    def _dismiss_standby(self) -> None:
        if self._standby is not None:
            self._children.end(self._standby)
            self._standby = None

    # -- the end of a daemon ------------------------------------------------------------------------------------------

    def _ended(self, daemon: Daemon) -> None:
        connection = self._mount.connection
        if self._stopping:
            self._finish(0)
        elif "unfed" in daemon.said and self._mount.feeds and self._taking is None:
            self._log.info(f"{daemon.said['unfed']}; after a crash the mount will be made again")
            self._mount.feeds = False
            if not self._answered:
                self._mount.discard()
            self._start_next()
        elif not self._answered:
            code = daemon.said.get("code", 1)
            self._give_up(daemon.said if "error" in daemon.said else {"died": daemon.exit_code, "code": code})
        elif connection is not None and connection.is_gone:
            if connection.is_mounted:
                self._log.warning("the connection was aborted; the mount stays, dead, until it is unmounted")
                self._code = 1
            self._finish(0)
        elif self._taking is not None and (daemon is self._taking.given or self._taking.is_loaded):
            self._take_over(daemon)
        else:
            self._crashed(daemon)

    def _crashed(self, daemon: Daemon) -> None:
        lived_s = None if daemon.ready_s is None else time.monotonic() - daemon.ready_s
        self._follow(f"process {daemon.pid}", daemon.how_it_ended(), lived_s)

    def _follow(self, which: str, how: str, lived_s: float | None) -> None:
        """`which` daemon has ended, `how`, `lived_s` after its first answer: start the next, if any."""
        self._last_end = how
        delay_s = self._restarts.ended(time.monotonic(), lived_s)
        lived = "before it answered" if lived_s is None else f"after {lived_s:.1f} s"
        if delay_s is None:
            self._refuse(f"{self._restarts.young} daemons ended as soon as they had begun, the last {how}")
            return
        self._log.warning(f"the daemon, {which}, {how} {lived}; the next one is started")
        self._loop.after(delay_s, self._start_next)

    def _start_next(self) -> None:
        if self._stopping or self._current is not None:
            return
        if self._mount.takes_up or self._mount.connection is None:
            self._take_up()
        else:
            self._start_anew()

    def _take_up(self) -> None:
        try:
            daemon = self._standby or self._children.start(self._program)
        except OSError as error:  # its program is gone, or there is no process to be had
            self._follow("a new process", f"could not be started: {error.strerror}", None)
            return
        self._standby, self._current = None, daemon
        if daemon.imported:
            self._hand_over(daemon)
        else:
            self._load_in_time(daemon)

    def _start_anew(self) -> None:
        """On a mount of its own, on top of the old one, which is dead then."""
        if self._make_again():
            self._take_up()

    def _make_again(self) -> bool:
        try:
            self._mount.make()
        except MountRefused as error:
            if self._answered:
                self._log.warning(f"the mount cannot be made again: {error}; it stays, dead")
                self._finish(1)
            else:
                self._give_up({"error": f"{error}", "code": 1})
            return False
        return True

    # -- no daemon any more -------------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        if not self._mount.takes_up and not self._make_again():
            return
        assert self._mount.connection is not None
        self._dismiss_standby()
        self._refusing = f"{why}; every request gets an I/O error; see {self._log_file or 'stderr'}, end it: hfs umount"
        self._log.warning(self._refusing)
        descriptor = self._mount.connection.fd
        os.set_blocking(descriptor, False)
        refuse_init(descriptor, self._mount.connection.init)
        with contextlib.suppress(OSError):
            ask_again(descriptor)
        self._loop.watch(descriptor, lambda: None if refuse_all(descriptor) else self._finish(0))

    # -- another release ----------------------------------------------------------------------------------------------

    def _asked(self, request: dict[str, Any], reply: Reply) -> None:
        if request.get("ask") == "status":
            reply(self._status())
        elif request.get("ask") == "take-over":
            try:
                self._begin_taking(TakeOver.begin(request, self._program, reply))
            except TakeOverRefused as error:
                reply({"error": str(error), "code": error.code})
        else:
            reply({"error": "this keeper does not know what it is asked; unmount, and mount again", "code": 1})

    def _begin_taking(self, taking: TakeOver) -> None:
        if self._taking is not None or self._stopping or (not self._refusing and self._current is None):
            raise TakeOverRefused("the mount is changing just now; try again", 1)
        if self._current is not None and self._current.ready_s is None:
            raise TakeOverRefused("the mount's daemon is just starting; try again", 1)
        program = taking.program.command[0]
        try:
            taking.successor = self._children.start(taking.program)
        except (OSError, ValueError) as error:
            raise TakeOverRefused(f"{program}: the keeper cannot start it: {error}", 1) from None
        self._taking = taking
        self._load_in_time(taking.successor)
        self._log.info(f"{program} takes the mount over")

    def _make_room(self) -> None:
        """The successor is loaded: the daemon that serves answers what it can at once, and goes."""
        assert self._taking is not None
        current = self._current
        if current is None:  # none serves: all is refused, or the daemon has just crashed
            self._take_over(None)
            return
        if current.ready_s is None:  # one has crashed meanwhile; the next one does not listen yet
            return
        self._loop.after(self._taking.limit_s, lambda: current.signal(signal.SIGKILL))
        current.signal(signal.SIGHUP)

    def _take_over(self, old: Daemon | None) -> None:
        """Nobody serves the mount: the successor's turn, or, if it was that which has ended, the old program's."""
        assert self._taking is not None
        successor = self._taking.successor
        if old is not None and old is self._taking.given:
            self._take_back(old)
            return
        assert successor is not None
        if self._refusing:
            assert self._mount.connection is not None
            self._loop.ignore(self._mount.connection.fd)
            self._refusing = ""
        self._dismiss_standby()  # of the old program
        self._taking.successor, self._taking.given = None, successor
        self._current = successor
        if self._mount.takes_up or self._make_again():
            self._hand_over(successor)

    def _take_back(self, daemon: Daemon) -> None:
        """The successor has failed: the program that was there goes on."""
        assert self._taking is not None
        taking, self._taking = self._taking, None
        if self._standby is not None and self._standby.program is not self._program:
            self._dismiss_standby()
        code = daemon.said.get("code", 1)
        text = f"{taking.program.command[0]} could not take the mount over: it {daemon.how_it_ended()}"
        self._log.warning(f"{text}; the program before it goes on")
        taking.reply({"error": f"{text}; {self._program.command[0]} goes on", "code": code})
        if self._current is None and not self._refusing:
            self._start_next()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _stop(self, *, again: bool) -> None:
        """Unmount, then end the daemon: nobody shall ask any more when it goes."""
        if self._stopping:
            if again and self._current is not None:
                self._current.signal(signal.SIGKILL)
            return
        self._stopping = True
        try:
            self._mount.detach()
        except OSError as error:
            self._log.warning(f"{self._mount.mountpoint}: cannot be unmounted ({error.strerror})")
        if self._current is None:
            self._finish(0)
        else:
            self._current.signal(signal.SIGUSR2 if self._current.serving else signal.SIGKILL)

    def _give_up(self, record: dict[str, Any]) -> None:
        """The mount could not be made, or its first daemon has failed: nothing of it stays."""
        with contextlib.suppress(OSError):
            self._mount.detach()
        self._finish(int(record.get("code", 1)))
        self._say(record)

    def _finish(self, code: int) -> None:
        self._code = code if self._code is None else self._code
        if self._desk is not None:
            self._desk.close()
        successor = self._taking.successor if self._taking is not None else None
        for daemon in (self._standby, self._current, successor):
            if daemon is not None:
                self._children.end(daemon)
        self._mount.close()

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "mountpoint": self._mount.mountpoint,
            "device": self._mount.device,
            "daemon": None if self._current is None else self._current.pid,
            "answers": self._current is not None and self._current.ready_s is not None,
            "refusing": self._refusing,
            "restarts": self._restarts.count,
            "last_end": self._last_end,
            "mounted_s": self._mount.made_s,
            "log_file": self._log_file,
        }
