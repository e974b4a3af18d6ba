"""What the source says of a node beside its attributes, as one user may see it: xattrs, ACLs, where a link leads."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Sequence

from hfs.mountd.core.errors import SourceError, errno_of
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.printable import shown_path
from hfs.mountd.files import Overlays
from hfs.mountd.namespace import ROOT_ID, Asker, Namespace, Node, Permissions, Xattrs
from hfs.mountd.source import WantedAccess

_OWN = "user.hfs."


@dataclasses.dataclass(eq=False)
class XattrReplies:
    """Replies to GETXATTR, LISTXATTR and READLINK."""

    namespace: Namespace
    permissions: Permissions
    xattrs: Xattrs
    own: Callable[[Node, str], bytes | None]
    """The value of one of our own `user.hfs.` attributes, or None."""
    overlays: Overlays
    root_has_no_acl: Callable[[], None]
    """Called where the source has said so."""
    metrics: Metrics

    async def value(self, node_id: int, name: bytes, asker: Asker) -> bytes:
        """Of one attribute. Raises SourceError, ENODATA if it is not there."""
        text = os.fsdecode(name)
        if self.overlays.is_asked(text) and node_id != ROOT_ID:
            await self.overlays.wait()
        node = self.namespace.node(node_id)
        if text.startswith(_OWN):
            value = self.own(node, text)
            if value is None:
                raise SourceError(errno.ENODATA, f"{text} of {shown_path(node.path)}")
            return value
        if self.overlays.is_asked(text):
            if (told := await self.overlays.value(node, text, asker[0])) is None:
                raise SourceError(errno.ENODATA, f"{text} of {shown_path(node.path)}")
            if not told:  # `metacopy`, which is asked for once, and before the other
                self.metrics.add("overlay_look_ups")
                self.metrics.add("overlay_look_up_bytes", node.attributes.size)
            return told
        if not self.xattrs.is_acl(name):
            await self.permissions.check_xattr(node, name, asker)
        try:
            return await self.xattrs.get(node, name)
        except SourceError as error:
            is_of_root = node_id == ROOT_ID and name == b"system.posix_acl_access"
            # A source that is silent has said it some time ago.
            if is_of_root and errno_of(error) == errno.ENODATA and not self.namespace.silence.is_on():
                self.root_has_no_acl()
            raise

    async def names(self, node_id: int, asker: Asker) -> Sequence[bytes]:
        """Of all attributes but our own, and what overlays take for theirs. Raises SourceError."""
        node = self.namespace.node(node_id)
        await self.permissions.check_xattr(node, None, asker)
        names = await self.xattrs.names(node)
        return [name for name in names if not self.overlays.is_asked(os.fsdecode(name))]

    async def target(self, node_id: int, asker: Asker) -> bytes:
        """Where a symbolic link leads. Raises SourceError."""
        node = self.namespace.node(node_id)
        await self.permissions.check(node, WantedAccess.FOLLOW, asker)
        return await self.xattrs.target(node)
