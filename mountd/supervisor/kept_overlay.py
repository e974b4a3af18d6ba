"""The overlay over the mountpoint of a mount of root's: made and renewed by its keeper, for all who look there.

The mount itself is seen nowhere else then. Whoever takes the overlay away by hand, as `umount MOUNTPOINT` does, means
the mount: that follows a moment later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfs.mountd.supervisor.connection import unmount
from hfs.mountd.supervisor.desk import Reply
from hfs.mountd.supervisor.generations import Generations
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.mounts import KeeperMount
from hfs.mountd.supervisor.overlay import Layers
from hfs.mountd.supervisor.table import device_at

_LOOK_S = 5.0
"""Besides whenever there is something to do."""
_UNMOUNTED_S = 1.0
"""In which whoever takes away the overlay may take away the mount too (`umount -R`)."""


class MountOverlay:
    """Of one mount; none until `begin`. Where there can be none, all is read through the daemon."""

    def __init__(self, mount: KeeperMount, loop: Loop, log: Log, *, noexec: bool) -> None:
        self._mount = mount
        self._noexec = noexec
        self._loop = loop
        self._log = log
        self._generations: Generations | None = None
        self._device = ""
        self._reply: Reply | None = None
        self.told: Mapping[str, Any] | None = None
        """What it is made of, as the daemon has told it; None: there is to be none."""
        self.why_none = ""
        """Why there is none, though there was to be one."""

    @property
    def is_there(self) -> bool:
        """It was put in place, and not taken away here."""
        return self._generations is not None and self._generations.is_made

    def begin(self, told: Mapping[str, Any], reply: Reply = lambda _: None) -> None:
        """Make one of this from here on, none of nothing; `reply` tells what has come of it."""
        self.end()
        self.told, self.why_none = told or None, ""
        connection = self._mount.connection
        if not told or connection is None or self._mount.is_given:
            self._none("there is to be none", reply)
            return
        self._device = connection.device
        layers = Layers.told(told, self._mount.source, self._device, noexec=self._noexec)
        try:
            generations = Generations(layers, self._mount.mountpoint)
        except (OSError, ValueError) as error:
            self._none(str(getattr(error, "strerror", None) or error), reply)
            return
        self._generations, self._reply = generations, reply
        self._loop.watch(generations.descriptor, self.look)
        self._look_again(generations)
        self.look()

    def look(self) -> None:
        """To be called after SIGCHLD, too."""
        generations = self._generations
        if generations is None:
            return
        said = generations.look()
        if self._reply is not None and generations.is_made:
            self._answer({"made": True})
        elif self._reply is not None and said is not None:
            reply, self._reply = self._reply, None
            self.end()
            self._none(generations.why, reply)
            return
        elif said is not None:
            self._log.warning(said)
        if generations.was_taken_away:
            self._loop.after(_UNMOUNTED_S, lambda: self._settle(generations))

    @property
    def replaced(self) -> list[int]:
        """As of `Generations`."""
        return [] if self._generations is None else self._generations.replaced

    def end(self, *, lazily: bool = True, sure: bool = False) -> bool:
        """As of `Generations`."""
        generations = self._generations
        if generations is None:
            return True
        descriptor = generations.descriptor
        self._loop.ignore(descriptor)
        if not generations.end(lazily=lazily, sure=sure):
            self._loop.watch(descriptor, self.look)
            return False
        self._generations = None
        self._answer({"why": "it was taken away again"})
        return True

    def again(self) -> None:
        """It was taken away. Make it again where the mount has stayed, and not only a daemon that still writes."""
        connection = self._mount.connection
        stays = connection is not None and not connection.is_gone and connection.is_mounted
        if stays and self._generations is None and self.told is not None and not self.why_none:
            self.begin(self.told)

    def _settle(self, generations: Generations) -> None:
        """Somebody has taken it away."""
        if generations is not self._generations or not generations.was_taken_away:
            return
        connection, told = self._mount.connection, self.told
        if connection is None or told is None:
            return
        if connection.device != self._device:
            self.begin(told)  # with the mount below, which was made anew
            return
        self.end()
        self.told = None
        try:
            if device_at(self._mount.mountpoint) == self._device:
                unmount(self._mount.mountpoint, self._device)
        except OSError as error:
            self._log.warning(f"{self._mount.mountpoint}: cannot be unmounted ({error.strerror})")

    def _look_again(self, generations: Generations) -> None:
        if generations is self._generations:
            self._loop.after(_LOOK_S, lambda: self._looked_again(generations))

    def _looked_again(self, generations: Generations) -> None:
        if generations is self._generations:
            self.look()
            self._look_again(generations)

    def _none(self, why: str, reply: Reply) -> None:
        self.why_none = why
        if self.told is not None:
            self._log.warning(f"{self._mount.mountpoint}: no overlay, all is read through the daemon: {why}")
        reply({"why": why})

    def _answer(self, record: dict[str, Any]) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply(record)
