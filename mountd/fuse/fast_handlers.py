"""Answers at once: requests that need no waiting, answered without a turn of the event loop.

The extension shows every LOOKUP, GETATTR, OPEN, READ, RELEASE and FORGET to a method here before pyfuse3 hears of it
(mountd/native/_fastpath.c). A method gives the answer, or an errno, or None: then the request goes to the handler of
its name in `fuse`. An open and a close that cost 250 us of the daemon's time cost 60.
The one IOCTL that there is has no other handler than the method here.

Each method decides before it changes anything: after None the handler begins anew. Errors are left to the handlers too,
whose boundary knows the table. Never awaits; event loop only.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import Protocol

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import HfsError
from hfs.mountd.files import Handles, Opening, Readers, ReadPath
from hfs.mountd.fuse.boundary import RequestQuota
from hfs.mountd.kernel import fastpath
from hfs.mountd.namespace import Namespace, Node, Permissions, wanted_by

Entry = tuple[int, int, Attributes | None, float]
"""Node id, inode number that is shown, attributes and seconds for which they are good, as the extension takes them."""


class ControlTunnels(Protocol):
    """Control connections through the mount."""

    def exchange(self, argument: bytes, thread: int, uid: int, gid: int, /) -> bytes | int:
        """The answer to one exchange of a thread that waits for it, or an errno; at once."""


@dataclasses.dataclass(eq=False)
class FastHandlers:
    """The names are those of the handlers; the arguments are the extension's."""

    read_path: ReadPath
    opening: Opening
    namespace: Namespace
    handles: Handles
    readers: Readers
    permissions: Permissions
    tunnels: ControlTunnels
    quota: RequestQuota

    def lookup(self, parent: int, name: bytes) -> Entry | int | None:
        """A name that is known, or can be at once. Node id 0 and no attributes: known not to exist."""
        namespace = self.namespace
        if self.opening.changed.held:
            return None
        try:
            directory = namespace.node(parent)
            if directory.delegated and name not in (directory.children or ()):
                return None  # the data plane may be about to have it: that is waited for
            dentry = namespace.lookups.child_nowait(directory, name)
        except HfsError:
            return None
        if dentry is None:
            return None
        valid_s = namespace.freshness.valid_s(dentry.expires_s)
        node = dentry.node
        if node is None:
            return (0, 0, None, valid_s) if valid_s else errno.ENOENT
        if not self.opening.is_tried(node):
            return None
        if not self.permissions.is_known_nowait(node):
            if self.permissions.is_overlaid:
                return None
            valid_s = 0.0
        namespace.holds.referenced(node)
        return node.id, namespace.nodes.shown_inode(node), self._shown(node), valid_s

    def getattr(self, node_id: int) -> Entry | None:
        """Attributes that are known."""
        namespace = self.namespace
        try:
            node = namespace.node(node_id)
        except HfsError:
            return None
        valid_s = namespace.freshness.valid_s(node.expires_s)
        if not (node.opens or (valid_s and not node.stale)) or not self.permissions.is_known_nowait(node):
            return None
        if not self.opening.is_tried(node):
            return None
        return node_id, namespace.nodes.shown_inode(node), self._shown(node), valid_s

    def _shown(self, node: Node) -> Attributes:
        return self.permissions.shown(node, stateless=self.opening.stateless)

    def open(self, node_id: int, flags: int, thread_id: int, uid: int, gid: int) -> tuple[int, int] | int | None:
        """A file whose version is known to be good and whose bytes, if it is small, are in memory.

        The handle and the backing file, 0 for none.
        """
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            return errno.EROFS
        if self.opening.stateless:
            return None  # the handler says so, once for all
        unique = fastpath.request().unique
        if unique >> 63:
            return None  # sent again: an earlier daemon may have answered it
        try:
            node = self.namespace.node(node_id)
            if not self.permissions.allows_nowait(node, wanted_by(flags), (uid, gid, thread_id)):
                return None
            opened = self.opening.open_nowait(node, thread_id, unique)
        except HfsError:
            return None
        return None if opened is None else (opened[0], opened[1] or 0)

    def read(
        self, node_id: int, handle: int, offset: int, size: int, thread_id: int
    ) -> bytes | bytearray | memoryview | None:
        """Staged bytes that are in memory."""
        try:
            if handle == 0 or self.opening.stateless:
                file = self.opening.stateless_handle_nowait(node_id, thread_id)
            else:
                file = self.handles.file(handle)
        except HfsError:
            return None
        data = self.read_path.read_nowait(file, offset, size) if file is not None else None
        if data is not None:
            self.readers.served(thread_id, len(data))
        return data

    def release(self, handle: int) -> None:
        """A handle is closed."""
        self.opening.close(handle)

    def exchange(self, argument: bytes, thread_id: int, uid: int, gid: int) -> bytes | int:
        """Bytes of a control connection, both ways: the one ioctl that there is. It has no handler."""
        return self.tunnels.exchange(argument, thread_id, uid, gid)

    def puts_off(self, which: int, uid: int, token: int, thread_id: int) -> bool:
        """Whether a request that was not answered waits until its user has room for it."""
        return self.quota.puts_off(which, uid, token, thread_id)

    def forget(self, node_id: int, count: int) -> None:
        """The kernel gives back lookup counts."""
        self.namespace.holds.forget(node_id, count)
