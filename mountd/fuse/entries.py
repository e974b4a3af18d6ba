"""What the kernel is told of a name and of a node: replies to LOOKUP and GETATTR, and entries of a READDIR."""

from __future__ import annotations

import errno
import math
import stat

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.files import Opening
from hfs.mountd.namespace import ROOT_ID, Namespace, Node, Permissions


class EntryReplies:
    """Attributes, node id and for how long they hold, in pyfuse3's words."""

    def __init__(self, namespace: Namespace, permissions: Permissions, opening: Opening) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._opening = opening

    async def look_up(self, directory_id: int, name: bytes) -> pyfuse3.EntryAttributes:
        """The reply to a LOOKUP; the node that it names is referenced once more."""
        directory = self._namespace.node(directory_id)
        if self._opening.changed.as_before:
            before = self._namespace.names.remembered(directory, name)
            if before is not None and before.node is not None and before.node.lookups and self._may_show(before.node):
                self._namespace.holds.referenced(before.node)
                return self.entry(before.node, -math.inf)
        dentry = await self._opening.look_up(directory, name)
        while not self._may_show(dentry.node):
            assert dentry.node is not None
            await self._permissions.learn(dentry.node)
            dentry = await self._opening.look_up(self._namespace.node(directory_id), name)
        if dentry.node is None:
            return _absent(self._namespace.freshness.valid_s(dentry.expires_s))
        self._namespace.holds.referenced(dentry.node)
        return self.entry(dentry.node, dentry.expires_s)

    def _may_show(self, node: Node | None) -> bool:
        """Not what an overlay would keep before it is known who may come there."""
        return node is None or not self._permissions.is_overlaid or self._permissions.is_known_nowait(node)

    async def attributes(self, node_id: int) -> pyfuse3.EntryAttributes:
        """The reply to a GETATTR."""
        node = self._namespace.node(node_id)
        if not node.opens:  # who has it open keeps its version; who comes by its name has just looked that up
            await self._namespace.freshness.revalidate(node)
        await self._permissions.learn(node)
        await self._opening.see_unopened(node)
        entry = self.entry(node, node.expires_s)
        if node.id == ROOT_ID:
            entry.st_ino = node.attributes.inode  # here it is only what stat(2) shows: the root has no other name
        return entry

    def entry(self, node: Node, expires_s: float) -> pyfuse3.EntryAttributes:
        """`node` as it is shown, until `expires_s` on trio's clock."""
        entry = pyfuse3.EntryAttributes()
        _fill(entry, self._permissions.shown(node, stateless=self._opening.stateless))
        entry.st_ino = node.id
        shown = self._namespace.nodes.shown_inode(node)
        if shown != node.id and node.id != ROOT_ID:
            fastpath.show_inode(node.id, shown)
        # If it is not known who may come here, the kernel asks once more before it lets anybody in.
        known = self._permissions.is_known_nowait(node)
        entry.entry_timeout = entry.attr_timeout = self._namespace.freshness.valid_s(expires_s) if known else 0.0
        if not self._opening.is_tried(node):
            entry.attr_timeout = 0.0
        return entry


def _absent(valid_s: float) -> pyfuse3.EntryAttributes:
    """A negative entry: the kernel remembers for `valid_s` that the name does not exist. Raises FUSEError(ENOENT)."""
    if valid_s == 0:
        raise pyfuse3.FUSEError(errno.ENOENT)
    absent = pyfuse3.EntryAttributes()
    absent.st_ino = 0
    absent.entry_timeout = valid_s
    return absent


def _fill(entry: pyfuse3.EntryAttributes, attributes: Attributes) -> None:
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_rdev = attributes.rdev if not stat.S_ISREG(attributes.mode) else 0
    entry.st_size = attributes.size
    entry.st_blocks = attributes.blocks
    entry.st_blksize = max(attributes.block_bytes, 512)
    entry.st_atime_ns = attributes.atime_ns
    entry.st_mtime_ns = attributes.mtime_ns
    entry.st_ctime_ns = attributes.ctime_ns


assert ROOT_ID == pyfuse3.ROOT_INODE
