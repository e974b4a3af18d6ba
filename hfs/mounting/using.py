"""A mount for one command: the one that is there, or a new one that ends with the last command that uses it."""

from __future__ import annotations

import time

from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import HfsError, MountError
from hfs.mounting import joining, keeper, mounting, processes, taking_away
from hfs.mounting.inheriting import Lost, inherit
from hfs.mounting.keeper import HeldMount
from hfs.mounting.own_overlay import OwnOverlay
from hfs.mounting.preflight import check_mountpoint, check_places
from hfs.mounting.view import View

_END_S = 15.0
"""A daemon that makes room for the next writes what it holds for ten seconds at most."""
_AGAIN_S = 0.1
_SEEN_S = 2.0
"""A mount that nobody sees any more is gone from the kernel within milliseconds."""


class UsedMount:
    """Until `held` is closed, or this process ends."""

    def __init__(
        self,
        mountpoint: str,
        place: str,
        device: str,
        held: HeldMount,
        config: Config,
        *,
        is_joined: bool,
    ) -> None:
        self.mountpoint = mountpoint
        self.place = place
        """Where the command sees it."""
        self._overlay = OwnOverlay(config, mountpoint, place, device)
        generations = self._overlay.generations
        self.view: View | None = None
        """None: as everybody sees it."""
        if place != mountpoint or generations is not None:
            self.view = View(mountpoint, place, device, config.as_user, generations)
        self.held = held
        self.is_joined = is_joined
        """It was there before us, and others may read it."""
        self._device = device
        self._config = config
        self._is_lost = False

    def command_started(self) -> None:
        """It has its view."""
        if self.view is not None:
            self._overlay.started(self.view)

    def command_ended(self) -> str | None:
        """Or was never started. A line for people."""
        return self._overlay.ended()

    def look(self) -> str | None:
        """Where the keeper of the mount was killed, with the job that had started it, have another one go on; and have
        overlays made anew. A line about what was done; None: there is nothing to do, or not yet."""
        if (said := self._overlay.look()) is not None:
            return said
        if self._is_lost or self.held.has_keeper():
            return None
        try:
            found = inherit(self._config, self.held)
        except Lost as lost:
            self._is_lost = True
            self.held.close()  # else whoever reads would wait for ever
            return f"{self.mountpoint}: its keeper has ended, and nobody goes on: {lost}"
        if found is None:
            return None
        found.follow(self.held)
        self.held = found
        return f"{self.mountpoint}: its keeper has ended; process {found.keeper.pid} goes on"

    def wait_kept(self) -> str | None:
        """`look`, until the mount has a keeper or nobody can be one: what was said; None: it has had one all along."""
        until_s = time.monotonic() + _END_S
        while (said := self.look()) is None and not self._is_lost and not self.held.has_keeper():
            if time.monotonic() > until_s:
                break
            time.sleep(_AGAIN_S)
        return said

    def wait_gone(self, limit_s: float) -> str | None:
        """Wait until the mount, which was taken away, and its daemon have ended. Why they have not; None: they have."""
        kept = self.held.keeper
        if self.held.wait_gone(_SEEN_S):
            return None
        if kept.is_seen():
            lines = [f"  {user}" for user in processes.seeing(self._device) if user.pid != kept.pid]
            lines = lines or ["  (in another mount namespace, by no process that this user may see)"]
            return "\n".join([f"{self.mountpoint}: stays until these end, which still see it", *lines])
        if self.held.wait_gone(limit_s):
            return None
        return f"process {kept.pid} still works on the cache {limit_s:g} s after the unmount"


def use_mount(config: Config, origins: dict[str, str], place: str) -> UsedMount:
    """A mount of config.source, made at config.mountpoint if there is none. `place`: where it is to be seen.

    Raises ConfigError, MountError. Whatever is raised after a mount was made, it ends.
    """
    if (used := _joined(config, origins, place)) is not None:
        return used
    try:
        check_places(config)
    except HfsError:
        with joining.turn_if_any(config):
            if (used := _joined(config, origins, place)) is not None:  # of one that was just mounting there
                return used
        raise
    with joining.turn(config):
        if (used := _joined(config, origins, place)) is not None:
            return used
        daemon = mounting.start(config, origins, permanent=False)
        daemon.leave()
        try:
            kept = keeper.find(config.mountpoint)
            held = None if kept is None else kept.hold(config.linger_s)
            if kept is None or held is None:
                text = f"{config.mountpoint}: the mount has no keeper that answers; its log is {config.log_file}"
                raise MountError(text)
            device = str(kept.status.get("device"))
            return UsedMount(config.mountpoint, place, device, held, config, is_joined=False)
        except BaseException:
            taking_away.detach(config.mountpoint, lazy=True)
            raise


def _joined(config: Config, origins: dict[str, str], place: str) -> UsedMount | None:
    while (found := joining.wait_running(config)) is not None:
        found.check(config, origins)
        if place == config.mountpoint != found.mountpoint:
            check_mountpoint(config)
        try:
            held = found.keeper.hold(config.linger_s)
        except OSError as error:
            why = f"the keeper of the mount does not answer: {error.strerror}; hfs doctor says more"
            raise MountError(f"{found.mountpoint}: {why}") from None
        if held is not None:
            return UsedMount(found.mountpoint, place, found.device, held, config, is_joined=True)
        time.sleep(_AGAIN_S)
    return None
