"""Who asks the daemon on one connection: the process, who it is for file systems, and what it may ask for.

Root and the owner of the mount may do everything. Others, who are let in where the mount is for others too, may ask how
the daemon is, where what is cached, and say in which order they read: nothing of that tells them names or bytes that
they could not have from the source. Looks at nothing but the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.socket_peer import HasPeer, socket_peer, socket_peer_groups
from hfs.mountd.wire.protocol import Cluster, Directory, History, Join, Request, Status

_FOR_ALL = (Status, History, Directory, Cluster, Join)


class Requester(NamedTuple):
    """One end of a connection."""

    pid: int
    who: Credentials
    is_owner: bool
    """Root, or the owner of the mount."""
    is_known: bool = True
    """`who` is all of it. False: it may have other groups."""

    @property
    def reader(self) -> Credentials | None:
        """Whose rights at the source count; None: the daemon's own."""
        return None if self.is_owner else self.who

    def why_not(self, request: Request) -> str | None:
        """Why this is not for the one who asks; None if it is."""
        if not self.is_owner and not self.is_known and isinstance(request, Join):
            return "the daemon does not see which groups you are in, so it does not know what you may read"
        if self.is_owner or isinstance(request, _FOR_ALL):
            return None
        return f"only root and the owner of the mount may ask for {type(request).__name__.lower()}"


def requester_of(connection: HasPeer, owners: frozenset[int]) -> Requester:
    """The other end of a connected Unix socket. Raises OSError."""
    pid, uid, gid = socket_peer(connection)
    is_owner = uid in owners
    groups = () if is_owner else tuple(sorted(socket_peer_groups(connection)))
    return Requester(pid, Credentials(uid, gid, groups), is_owner)


def requester_through_mount(
    pid: int, uid: int, gid: int, groups: tuple[int, ...] | None, owners: frozenset[int]
) -> Requester:
    """Whom the kernel has named with a request of the mount. `groups`: the supplementary ones; None: not known."""
    is_owner = uid in owners
    who = Credentials(uid, gid, () if is_owner else tuple(sorted(groups or ())))
    return Requester(pid, who, is_owner, groups is not None)
