"""The keeper: one mount from its start to its end, and what it is asked meanwhile.

It is given its order as one JSON object: `config` and `origins` as a daemon gets them, and `keeper` (`KeeperOrder`). It
answers whoever has started it with one line: `ready` or `error` (see hfs/mounting/mounting.py). What its daemons do is
told in succession.py.

Signals: SIGTERM, SIGINT (and SIGUSR1, by which a daemon that got one of them tells us) unmount and end the daemon; a
second SIGTERM kills it. What is sent to a daemon is told in mountd/daemon/ending.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from hfs.mountd.supervisor.daemons import Malformed, Program, TakeOverRefused, field
from hfs.mountd.supervisor.desk import Desk, DeskClient
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.mounts import CannotBecome, KeeperMount, MountOverlay
from hfs.mountd.supervisor.references import GONE_S, References
from hfs.mountd.supervisor.succession import Starter, Succession

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclasses.dataclass(frozen=True)
class KeeperOrder:
    """What the keeper is told of itself: the key `keeper` of what it reads, written by hfs/mounting/mounting.py."""

    daemon: list[str]
    """The command that is a daemon."""
    directory: str
    """Where it is started."""
    socket: str | None = None
    """Where the keeper listens."""
    foreground: bool = False
    """Answer in words on stderr, as the command does whose place the keeper has taken."""
    when_mounted: list[str] = dataclasses.field(default_factory=list)
    """A command to run then."""
    permanent: bool = True
    """The mount stays until it is unmounted; else until the last command that uses it has ended."""
    given: int = -1
    """A descriptor of this process: the connection of a mount that somebody else has made. -1: it is made here."""
    giver: int = -1
    """A descriptor that tells whoever has given it, by being closed, that all has ended; -1: nobody waits for that."""
    foreign_pids: bool = False
    """It may have been mounted in another pid namespace than ours."""
    session: int = 0
    """Of whoever makes a permanent one."""
    linger_s: float = 0.0
    """How long one that is not permanent waits for the next command."""
    inherited: dict[str, Any] | None = None
    """The mount of a keeper that was killed, as it told it (`KeeperMount.inheritance`), to go on with; `descriptors`
    besides: the numbers of those that come with it."""
    resend: bool = True
    """False: as on a kernel that cannot send requests again. For tests."""
    standby: bool = True


class SystemdUnit:
    """Tells systemd how the service does, where it has asked for that: sd_notify(3) by hand, three words of it.

    A keeper in the foreground is the main process of a unit of Type=notify. It says when the mount answers, and when it
    ends; where the unit has a watchdog, it says in half of that time that it still turns. It does not say so for its
    daemon, which it replaces by itself. Without $NOTIFY_SOCKET, and where nobody listens there, nothing is said.
    """

    def __init__(self, environ: Mapping[str, str], loop: Loop) -> None:
        """Nothing is sent before `ready`."""
        self._loop = loop
        path = environ.get("NOTIFY_SOCKET", "")
        self._path = "\0" + path[1:] if path.startswith("@") else path
        pid, limit_us = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
        is_watched = limit_us.isdecimal() and pid in {"", str(os.getpid())}
        self._again_s = int(limit_us) / 2e6 if is_watched else 0.0

    def ready(self) -> None:
        """The mount answers."""
        self._send(b"READY=1")
        self._turns()

    def stopping(self) -> None:
        """It ends, by a signal or since it was unmounted."""
        self._send(b"STOPPING=1")

    def _turns(self) -> None:
        if self._again_s and self._path:
            self._send(b"WATCHDOG=1")
            self._loop.after(self._again_s, self._turns)

    def _send(self, message: bytes) -> None:
        if not self._path:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a service manager that is stuck must not stop us
            sender.sendto(message, self._path)


class Keeper:
    """Of one mount. `run` until that has gone."""

    def __init__(self, given: Mapping[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """`given`: the order; `answer` is called once, with the one line for whoever started the mount."""
        config = given["config"]
        order = KeeperOrder(**given["keeper"])
        options = {name: bool(config.get(name)) for name in ("allow_other", "noexec")}
        program = Program(
            order.daemon, order.directory, dict(os.environ), {"config": config, "origins": given["origins"]}
        )
        self._socket = order.socket
        self._inherited = order.inherited
        self._log_file = config.get("log_file")
        self._log = Log(self._log_file, config.get("cache"), str(config.get("log_format")))
        self._loop = Loop()
        self._unit = SystemdUnit(os.environ if order.foreground else {}, self._loop)
        for descriptor in (order.given, order.giver):
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)  # daemons are handed what they need
        self._mount = KeeperMount(
            config["mountpoint"],
            config["source"],
            options,
            resend=order.resend,
            given_fd=order.given,
            foreign_pids=order.foreign_pids,
        )
        self._overlay = MountOverlay(self._mount, self._loop, self._log, noexec=options["noexec"])
        self._starter = Starter(self._tell(answer), order.when_mounted, order.directory)
        self._succession = Succession(self._mount, program, self._starter, self._loop, self._log, standby=order.standby)
        self._descriptors: list[int] = [] if order.inherited is None else order.inherited["descriptors"]
        self._references = References(
            self._loop,
            self._unused,
            permanent=order.permanent,
            session=order.session,
            linger_s=order.linger_s,
            inherited=self._descriptors.pop() if self._descriptors else -1,
        )
        self._stopping = False

    def run(self) -> int:
        """Mount, keep a daemon on it, until unmounted; the exit code."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with self._loop.signals((*_STOPS, signal.SIGCHLD), self._signalled):
            try:
                return self._keep()
            except Exception as error:  # ours: the mount must not go, and a daemon that serves goes on serving
                self._log.warning(f"the keeper failed: {error!r}; the mount goes on without one")
                self._starter.tell({"error": f"the keeper failed: {error!r}", "code": 1})
                raise

    def _keep(self) -> int:
        try:
            if self._inherited is not None:
                self._mount.inherit(self._inherited, self._descriptors)
            else:
                self._mount.open_source(self._succession.given["config"].get("as_user"))
        except CannotBecome as error:
            self._starter.tell({"error": str(error), "code": 1})
            return 1
        except OSError as error:
            text = f"source: {self._mount.source}: {error.strerror}; name a directory that you can read"
            self._starter.tell({"error": text, "code": 2})
            return 2
        desk = self._open_desk()
        self._succession.begin()
        while self._succession.code is None:
            self._loop.turn()
        self._overlay.end()
        why_none = self._succession.error
        if why_none is not None:
            with contextlib.suppress(OSError):
                self._mount.detach()
        if desk is not None:
            desk.close()
        self._references.close()
        self._succession.close()
        self._mount.close()
        if why_none is not None:
            self._starter.tell(why_none)
        return self._succession.code

    def _open_desk(self) -> Desk | None:
        try:
            return None if self._socket is None else Desk(self._socket, self._loop, self._asked)
        except OSError as error:
            self._log.warning(f"no socket of the keeper at {self._socket}: {error.strerror}")
            return None

    def _signalled(self, numbers: bytes) -> None:
        self._succession.children.look()
        self._overlay.look()
        if any(number in _STOPS for number in numbers):
            self._stop(again=any(number in {signal.SIGTERM, signal.SIGINT} for number in numbers))

    def _stop(self, *, again: bool) -> None:
        """Unmount, then end the daemon: nobody shall ask any more when it goes."""
        if not self._stopping:
            self._stopping = True
            self._unit.stopping()
            self._overlay.end()
            try:
                self._mount.detach()
            except OSError as error:
                self._log.warning(f"{self._mount.mountpoint}: cannot be unmounted ({error.strerror})")
        self._succession.stop(again=again)

    def _tell(self, answer: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def tell(record: dict[str, Any]) -> None:
            if "ready" in record:
                self._references.answers()
                self._unit.ready()
                if self._inherited is not None and self._inherited.get("overlay"):
                    self._overlay.begin(self._inherited["overlay"])
            answer(record)

        return tell

    def _unused(self) -> None:
        """Nobody holds the mount any more."""
        connection = self._mount.connection
        if self._mount.is_given or connection is None or not connection.is_mounted:
            return  # not ours to take away; or it was, and goes with whoever uses it still
        self._log.info(f"{self._mount.mountpoint}: the last that used it has ended")
        self._stop(again=False)

    def _asked(self, request: dict[str, Any], client: DeskClient) -> None:
        what = field(request, "ask", str)
        if what == "status":
            client.reply(self._status())
        elif what == "take-over":
            try:
                self._succession.take_over(request, client.reply)
            except TakeOverRefused as error:
                client.reply({"error": str(error), "code": error.code})
        elif what == "unmount":
            how = {name: field(request, name, bool, default=False) for name in ("lazy", "sure")}
            client.reply(self._unmounted(client.session, **how))
        elif what == "overlay":
            self._overlay.begin(_overlay(request), client.reply)
        elif what == "release-session":
            self._references.release(client.session)
            client.reply({"released": True})
        elif what == "release-job":
            released, is_ending = self._references.release_job(_job(request))
            client.reply({"released": released, "ending": is_ending})
        elif what == "leave":
            client.reply({"last": self._references.leave()})
        elif what in {"hold", "hold-session", "hold-job"}:
            self._held(what, request, client)
        else:
            client.reply({"error": "this keeper does not know what it is asked; unmount, and mount again", "code": 1})

    def _unmounted(self, session: int, *, lazy: bool, sure: bool) -> dict[str, Any]:
        """Somebody is about to unmount, and does so if nobody holds it. `sure`: who has looked that nobody uses an
        overlay that was replaced."""
        held = self._references.unmount(session, lazy=lazy)
        if held:
            return {"held": held}
        if not self._overlay.end(lazily=lazy, sure=sure):
            self._references.stays()
            return {"held": [], "busy": True, "replaced": self._overlay.replaced}
        self._loop.after(GONE_S, lambda: None if self._stopping else self._overlay.again())
        return {"held": []}

    def _held(self, what: str, request: dict[str, Any], client: DeskClient) -> None:
        """Somebody joins."""
        references = self._references
        if references.ending or self._stopping:
            client.reply({"ending": True})
            return
        if what == "hold":
            linger_s = field(request, "linger_s", float, 0.0)
            inheritance, descriptors = self._inheritance()
            users = references.hold(linger_s)
            client.reply({"held": True, "bequest": inheritance}, [*descriptors, users])
            os.close(users)
            return
        if what == "hold-session":
            references.hold_session(client.session)
        else:
            references.hold_job(_job(request))
        client.reply({"held": True})

    def _inheritance(self) -> tuple[dict[str, Any], list[int]]:
        """What a command that holds the mount needs to have another keeper go on with it; nothing of a mount that
        somebody else has made: they start the next."""
        inheritance, descriptors = ({}, []) if self._mount.is_given else self._mount.inheritance()
        inheritance |= {"given": self._succession.given, "overlay": self._overlay.told} if inheritance else {}
        return inheritance, descriptors

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "mountpoint": self._mount.mountpoint,
            "device": self._mount.device,
            "given": self._mount.is_given,
            "identity": self._mount.identity,
            **self._succession.status(),
            "mounted_s": self._mount.made_s,
            "overlay": {"is_there": self._overlay.is_there, "why_none": self._overlay.why_none},
            "log_file": self._log_file,
            "config": self._succession.given["config"],
            "held_by": self._references.told(),
            "ending": self._references.ending or self._stopping,
        }


def _overlay(request: Mapping[str, Any]) -> dict[str, str]:
    """What one is to be made of; nothing: there is to be none. Raises Malformed."""
    told = field(request, "overlay", dict)
    return {name: field(told, name, str) for name in ("objects", "top", "number", "makers")} if told else {}


def _job(request: Mapping[str, Any]) -> str:
    """Raises Malformed also for one without a name, which nobody could release."""
    if not (job := field(request, "job", str)):
        raise Malformed("job is empty")
    return job
