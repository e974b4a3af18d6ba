"""What the source says of a node beside its attributes, as one user may see it: xattrs, ACLs, where a link leads."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from hfs.mountd.base.errors import SourceError
from hfs.mountd.base.printable import shown_path
from hfs.mountd.namespace import Asker, Namespace, Node, Permissions, Xattrs
from hfs.mountd.source import WantedAccess

_OWN = "user.hfs."


class XattrReplies:
    """Replies to GETXATTR, LISTXATTR and READLINK."""

    def __init__(
        self,
        namespace: Namespace,
        permissions: Permissions,
        xattrs: Xattrs,
        own: Callable[[Node, str], bytes | None],
    ) -> None:
        """`own(node, name)`: the value of one of our own `user.hfs.` attributes, or None."""
        self._namespace = namespace
        self._permissions = permissions
        self._xattrs = xattrs
        self._own = own

    async def value(self, node_id: int, name: bytes, asker: Asker) -> bytes:
        """Of one attribute. Raises SourceError, ENODATA if it is not there."""
        node, text = self._namespace.node(node_id), os.fsdecode(name)
        if text.startswith(_OWN):
            value = self._own(node, text)
            if value is None:
                raise SourceError(errno.ENODATA, f"{text} of {shown_path(node.path)}")
            return value
        if not self._xattrs.is_acl(name):
            await self._permissions.check_xattr(node, name, asker)
        return await self._xattrs.get(node, name)

    async def names(self, node_id: int, asker: Asker) -> Sequence[bytes]:
        """Of all attributes but our own. Raises SourceError."""
        node = self._namespace.node(node_id)
        await self._permissions.check_xattr(node, None, asker)
        return await self._xattrs.names(node)

    async def target(self, node_id: int, asker: Asker) -> bytes:
        """Where a symbolic link leads. Raises SourceError."""
        node = self._namespace.node(node_id)
        await self._permissions.check(node, WantedAccess.FOLLOW, asker)
        return await self._xattrs.target(node)
