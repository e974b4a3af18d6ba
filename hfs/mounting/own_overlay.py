"""The overlay of one command: tried wherever the daemon offers one, and renewed for as long as the command runs.

In place the command has a mount namespace of its own anyhow. With --at it gets one only where an overlay is asked for:
in the user namespace that a plain user needs for it, programs that are to have other rights (sudo, the starters of some
containers) have none.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

from hfs.client.client import Client, find_socket
from hfs.client.control_socket import DaemonSilent
from hfs.mountd.core.config import Config
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.overlay import Layers
from hfs.mounting.view import View


class OwnOverlay:
    """Tell it when the command has `started`; `look` now and then, and at each SIGIO and SIGCHLD."""

    def __init__(self, config: Config, mountpoint: str, place: str, device: str) -> None:
        """`place`: where the command sees the mount of this device, which is at `mountpoint`. Never raises."""
        self.generations: Generations | None = None
        """None: there is no overlay."""
        self._place = place
        self._why_not = "the daemon offers none"
        self._is_told = config.io_mode != "overlay" and config.log_level != "debug"
        if place == mountpoint and config.io_mode != "overlay":
            self._why_not = "the command sees the mount where all do, unless --io-mode overlay asks for one"
        elif config.io_mode != "overlay" and _is_here(place):
            self._why_not = "the command begins in it, and would keep the first one as its working directory"
        elif told := offered(mountpoint, is_made=True):
            try:
                layers = Layers.told(told, config.source, device, noexec=config.noexec)
                self.generations = Generations(layers, place)
            except OSError as error:
                self._why_not = error.strerror or str(error)

    def started(self, view: View) -> None:
        """The command runs, in its view."""
        if self.generations is None:
            return
        if view.why_no_overlay is not None:
            self._why_not = view.why_no_overlay
            self._end()
            return
        self.generations.began(view.watch, view.namespaces)
        descriptor = self.generations.descriptor
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)

    def look(self) -> str | None:
        """Make another generation if there is to be one. A line for people."""
        if self.generations is not None:
            return self.generations.look()
        if self._is_told:
            return None
        self._is_told = True
        return f"{self._place}: no overlay, all is read through the daemon: {self._why_not}"

    def ended(self) -> str | None:
        """The command has, or was never started; what it has left behind sees the mount itself from now on. A line for
        people."""
        said = self.look() if self.generations is None else None
        self._is_told = True
        self._end()
        return said

    def _end(self) -> None:
        if self.generations is not None:
            self.generations.end()
            self.generations = None


def _is_here(place: str) -> bool:
    """Whether our working directory lies below, as far as it has a name."""
    try:
        here = os.getcwd()
    except OSError:
        return False
    return here == place or here.startswith(place.rstrip("/") + "/")


def offered(mountpoint: str, *, is_made: bool) -> dict[str, Any] | None:
    """What overlays over this mount are made of; None: its daemon offers none. `is_made`: one is made next."""
    try:
        status = Client(find_socket(mountpoint)).status(makes_overlay=is_made)
        return (status.get("io_mode") or {}).get("overlays")
    except DaemonSilent:
        return None
