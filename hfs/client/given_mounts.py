"""Mounts whose connection somebody else has given (`/dev/fd/N`, or a socket of `hfs fd-mount`): found by that name.

They may be seen in another mount namespace, or nowhere; so their keepers tell of them, which lie where our user's
sockets lie. Blocking, bounded in time; standard library and the control client only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from hfs.client.client import Client, known_sockets
from hfs.client.control_socket import DaemonSilent
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.mounting import mountinfo

if TYPE_CHECKING:
    from hfs.mounting.keeper import FoundKeeper

_LIMIT_S = 2.0


class ServedMount(NamedTuple):
    """A mount that was given, and is served by a process of ours."""

    name: str
    """What `hfs mount` was told as MOUNTPOINT."""
    source: str
    keeper: FoundKeeper

    @property
    def seen_at(self) -> str | None:
        """Where it lies in this mount namespace, if the kernel tells."""
        device = self.keeper.status.get("device")
        return next((mount.mountpoint for mount in mountinfo.mounts() if device and mount.device == device), None)

    def control(self) -> str:
        """The control socket of its daemon. Raises DaemonSilent."""
        given = self.keeper.config.get("control")
        found = [str(given)] if given else known_sockets(self.name, os.geteuid())
        for path in found:
            try:
                status = Client(path).status(_LIMIT_S)
            except HfsError:
                continue
            if (status.get("keeper") or {}).get("pid") == self.keeper.status.get("pid"):
                return path
        why = self.keeper.why_refused or "the daemon does not answer"
        raise DaemonSilent(f"{self.name}: {why}")


def served_mounts() -> list[ServedMount]:
    """All of our user's that answer."""
    from hfs.mounting import keeper  # `hfs status MOUNT` of a usual mount needs none

    return [
        ServedMount(str(kept.config.get("mountpoint")), str(kept.config.get("source")), kept)
        for kept in keeper.ours()
        if kept.status.get("given")
    ]


def named(path: str) -> ServedMount | None:
    """The one whose name this is, or lies above it; None: there is none. Raises ConfigError if there are several."""
    found = [each for each in served_mounts() if path == each.name or path.startswith(f"{each.name}/")]
    if len(found) > 1:
        which = ", ".join(f"process {each.keeper.pid} ({each.source})" for each in found)
        raise ConfigError(f"{path}: several mounts have this name: {which}; give the place where it is mounted")
    return found[0] if found else None
