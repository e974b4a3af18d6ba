"""The keeper: one mount from its start to its end, and what it is asked meanwhile.

It is given its order as one JSON object: `config` and `origins` as a daemon gets them, and `keeper`, see order.py. It
answers whoever has started it with one line: `ready` or `error` (see hfs/mounting/mounting.py). What its daemons do is
told in succession.py.

Signals: SIGTERM, SIGINT (and SIGUSR1, by which a daemon that got one of them tells us) unmount and end the daemon; a
second SIGTERM kills it. What is sent to a daemon is told in mountd/daemon/ending.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from hfs.mountd.supervisor.daemons import Program
from hfs.mountd.supervisor.desk import Desk, DeskClient
from hfs.mountd.supervisor.kept_overlay import KeptOverlay
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.message import Malformed, field
from hfs.mountd.supervisor.mounts import KeptMount
from hfs.mountd.supervisor.order import KeeperOrder
from hfs.mountd.supervisor.references import GONE_S, References
from hfs.mountd.supervisor.source import CannotBecome
from hfs.mountd.supervisor.starter import Starter
from hfs.mountd.supervisor.succession import Succession
from hfs.mountd.supervisor.systemd import SystemdUnit
from hfs.mountd.supervisor.takeover import TakeOverRefused

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


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
        self._mount = KeptMount(
            config["mountpoint"],
            config["source"],
            options,
            resend=order.resend,
            given_fd=order.given,
            foreign_pids=order.foreign_pids,
        )
        self._overlay = KeptOverlay(self._mount, self._loop, self._log, noexec=options["noexec"])
        self._starter = Starter(self._tell(answer), order.when_mounted, order.directory)
        self._succession = Succession(self._mount, program, self._starter, self._loop, self._log, standby=order.standby)
        self._references = References(
            self._loop,
            self._unused,
            permanent=order.permanent,
            session=order.session,
            linger_s=order.linger_s,
            inherited=order.inherited is not None,
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
                self._mount.inherit(self._inherited, self._inherited["descriptors"])
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
            self._references.release_session(client.session)
            client.reply({"released": True})
        elif what == "release-job":
            released, is_ending = self._references.release_job(_job(request))
            client.reply({"released": released, "ending": is_ending})
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
        if what == "hold-session":
            references.hold_session(client.session, field(request, "command", str, ""))
            client.reply({"held": True})
            return
        if what == "hold-job":
            references.hold_job(_job(request))
            client.reply({"held": True})
            return
        command, linger_s = field(request, "command", str, ""), field(request, "linger_s", float, 0.0)
        inherits = field(request, "inherits", bool, default=False)
        reference = references.hold(client.pid, command, linger_s)
        bequest, descriptors = self._bequest() if inherits else ({}, [])
        client.keep(
            {"held": True, "takes_command": True, **bequest},
            lambda: {"last": references.is_last(reference), "unsettled": references.is_unsettled(reference)},
            reference.take_command,
            lambda: references.gone(reference),
            descriptors,
        )

    def _bequest(self) -> tuple[dict[str, Any], list[int]]:
        """What a command that holds the mount needs to have another keeper go on with it; nothing of a mount that
        somebody else has made: they start the next."""
        bequest, descriptors = ({}, []) if self._mount.is_given else self._mount.bequest()
        bequest |= {"given": self._succession.given, "overlay": self._overlay.told} if bequest else {}
        return {"bequest": bequest} if bequest else {}, descriptors

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
    names = ["objects", "top", "number", *(["makers"] if "makers" in told else [])]
    return {name: field(told, name, str) for name in names} if told else {}


def _job(request: Mapping[str, Any]) -> str:
    """Raises Malformed also for one without a name, which nobody could release."""
    if not (job := field(request, "job", str)):
        raise Malformed("job is empty")
    return job
