"""Telling systemd how the service does, where it has asked for that: sd_notify(3) by hand, three words of it.

A keeper in the foreground is the main process of a unit of Type=notify. It says when the mount answers, and when it
ends; where the unit has a watchdog, it says in half of that time that it still turns. It does not say so for its
daemon, which it replaces by itself. Without $NOTIFY_SOCKET, and where nobody listens there, nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from hfs.mountd.supervisor.loop import Loop


class SystemdUnit:
    """What this process is to the service manager that has started it, if one has."""

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
