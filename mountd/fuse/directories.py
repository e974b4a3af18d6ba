"""Directories that the kernel has opened: replies to OPENDIR, READDIR and RELEASEDIR.

A listing is shown as it was when it was opened or rewound. An entry is sent with its attributes, which is a reference
to its node and spares its reader a look-up, where it is known; else as a mere name, which costs nothing but its bytes:
no question to the source, no node. An error in place of a reply that already has entries would lose the references in
it, so such a reply is sent as it is.

`.` and `..` come first, as nearly every file system has them: there are programs that leave out two entries. They are
entries 0 and 1 to the kernel, so that entry `n` of a listing has the offset `n + 2`, and references to nothing.
"""

from __future__ import annotations

import errno
import math
import stat
import struct
from array import array

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import HfsError
from hfs.mountd.files import DirectoryHandle, Handles, Opening
from hfs.mountd.kernel.fastpath import Entries
from hfs.mountd.namespace import EXPECTED, ROOT_ID, Asker, Dentry, Namespace, Node, Permissions
from hfs.mountd.source import Block, Listing, WantedAccess

_SOON_S = 2.0
"""How long a listing may wait for attributes that nobody has asked for."""

_READDIR_AHEAD = 512
"""Names whose attributes are asked for at once while a directory is listed: 32 threads of 16 names."""

_RUN = 64
"""Names looked at for one that is known, before they are sent: a reply has room for some thirty, or two hundred."""

_DOTS = (b".", b"..")
_DOT_RECORD = struct.Struct("=QqHB5s")
"""Of getdents64(2)."""
_DOT_STARTS = array("I", [0, _DOT_RECORD.size])


class EntryReplies:
    """What the kernel is told of a name and of a node: replies to LOOKUP and GETATTR, and entries of a READDIR.

    Attributes, node id and for how long they hold, in pyfuse3's words.
    """

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


class DirectoryReplies:
    """What readers of directories are shown. Directory handles by number."""

    def __init__(self, namespace: Namespace, permissions: Permissions, handles: Handles, entries: EntryReplies) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._handles = handles
        self._entries = entries
        self._name_only = pyfuse3.EntryAttributes()
        self._name_only.generation = fastpath.NAME_ONLY

    async def open(self, node_id: int, asker: Asker) -> int:
        """The number of a handle, or of the one that an earlier daemon was about to answer this request with."""
        unique = fastpath.request().unique
        again = self._handles.answered(unique)
        if again is not None:
            return again
        node = self._namespace.node(node_id)
        await self._namespace.freshness.fresh(node)
        await self._permissions.check(node, WantedAccess.LIST, asker)
        return self._handles.add_directory(DirectoryHandle(node, unique=unique))

    async def read(self, number: int, offset: int, token: pyfuse3.ReaddirToken) -> None:
        """Add to the reply `token` the entries from `offset` on, as many as fit and can be had together."""
        plain = fastpath.request().wants_names
        handle = self._handles.directory(number)
        start = max(offset - len(_DOTS), 0)
        listing = await self._listing(handle, offset, start)
        is_more = await listing.reaches(start)
        if not self._add_dots(token, handle.node, listing, offset, plain=plain) or not is_more:
            return
        if self._handles.journal.on:
            await listing.hash_before(start)  # what is shown is noted with it
        # A reader that has looked up what it was shown so far is spared the look-ups of what follows.
        stat_ahead = self._namespace.stat_ahead
        handle.whole = handle.whole or stat_ahead.follows(handle.node, listing, start)
        if start == 0:
            handle.expected = stat_ahead.expects(handle.node)
        silent = self._namespace.silence.is_on()
        whole = handle.whole or (handle.expected and start < EXPECTED and not silent)
        end = None
        if whole and not plain:
            end = await self._add_whole_soon(token, handle, listing, start)
        if end is None:
            end = self._add_names(token, handle.node, listing, start, plain=plain)
        self._handles.show(number, end)

    def close(self, number: int) -> None:
        """The kernel lets go of a handle."""
        self._handles.remove_directory(number)

    async def _listing(self, handle: DirectoryHandle, offset: int, start: int) -> Listing:
        if handle.listing is not None and offset:
            return handle.listing
        listing = await self._namespace.listings.shown(handle.node)
        if start:
            await handle.go_on(listing, start)
        else:  # opened, or rewound: rewinddir(3) shows the directory anew
            handle.begin(listing)
        return listing

    def _add_dots(self, token: pyfuse3.ReaddirToken, node: Node, listing: Listing, offset: int, *, plain: bool) -> bool:
        """Whether all of `.` and `..` that come at `offset` or behind it are in the reply."""
        left = _DOTS[offset:]
        if not left:
            return True
        known = {b".": node, b"..": node.parent or node}
        inodes = {name: listing.dots.get(name, known[name].attributes.inode) for name in _DOTS}
        records = b"".join(
            _DOT_RECORD.pack(inodes[name], 0, _DOT_RECORD.size, stat.S_IFDIR >> 12, name) for name in _DOTS
        )
        how = Entries.NAMES if plain else Entries.SLOTS_WHOLE
        where = offset, len(_DOTS), offset + 1
        fastpath.answer_with_names(records, _DOT_STARTS, *where, directory_id=node.id, how=how)
        pyfuse3.readdir_reply(token, b"", self._name_only, 0)
        return fastpath.names_answered() == len(left)

    async def _add_whole_soon(
        self, token: pyfuse3.ReaddirToken, handle: DirectoryHandle, listing: Listing, start: int
    ) -> int | None:
        """The same; None: nothing was added. A listing does not fail, or wait, for one name that cannot be had."""
        with trio.move_on_after(_SOON_S):
            try:
                return await self._add_whole(token, handle, listing, start)
            except HfsError:
                pass
        handle.whole = handle.expected = False
        return None

    async def _add_whole(
        self, token: pyfuse3.ReaddirToken, handle: DirectoryHandle, listing: Listing, start: int
    ) -> int:
        """The position behind what was added."""
        position, added = start, False
        while position < len(listing):
            if not handle.batch_begin <= position < handle.batch_end:
                if added:
                    return position
                await self._ask(handle, listing, position)
            dentry = handle.batch.get(listing[position])
            if dentry is None:
                taken = self._add_slots(token, handle, listing, position)
                if taken:
                    position, added = position + taken, True
                    continue
                if added:
                    return position  # there is no room, or it is a slot no more
                if position > handle.batch_begin:  # past its time, as all that follow
                    handle.batch_end = position
                    continue
                dentry = await self._namespace.lookups.child(handle.node, listing[position])
            if not self._add_entry(token, listing[position], dentry, position):
                return position
            position, added = position + 1, added or dentry.node is not None
        return position

    async def _ask(self, handle: DirectoryHandle, listing: Listing, position: int) -> None:
        """Have it known what the names from `position` on are, and have what follows asked for."""
        after = min(position + _READDIR_AHEAD, len(listing))
        batch = await self._namespace.lookups.held(handle.node, listing.names(position, after))
        handle.batch, handle.batch_begin, handle.batch_end = batch, position, after
        self._namespace.asking.ahead_nowait(handle.node, listing.names(after, after + _READDIR_AHEAD))

    def _add_slots(self, token: pyfuse3.ReaddirToken, handle: DirectoryHandle, listing: Listing, position: int) -> int:
        """How many slots were added, from `position` on."""
        block, index = listing.block(position)
        count = min(len(block) - index, handle.batch_end - position)
        return self._add_run(token, handle.node, block, (index, index + count), position, Entries.SLOTS_ONLY)

    def _add_run(
        self,
        token: pyfuse3.ReaddirToken,
        node: Node,
        block: Block,
        run: tuple[int, int],
        position: int,
        how: Entries,
    ) -> int:
        """How many of these entries of one block, the first of which is entry `position`, were added."""
        where = *run, _offset_behind(position)
        fastpath.answer_with_names(block.records, block.starts, *where, directory_id=node.id, how=how)
        pyfuse3.readdir_reply(token, b"", self._name_only, 0)
        return fastpath.names_answered()

    def _add_names(self, token: pyfuse3.ReaddirToken, node: Node, listing: Listing, start: int, *, plain: bool) -> int:
        """Entries that are known go in whole, unless the request is `plain`, all others as names. As `_add_whole`."""
        position = start
        while position < len(listing):
            block, index = listing.block(position)
            names: int
            dentry: Dentry | None
            if plain:
                names, dentry = len(block) - index, None
            else:
                names, dentry = self._names_before(node, block, index)
            if names:
                how = Entries.NAMES if plain else Entries.SLOTS_WHOLE
                taken = self._add_run(token, node, block, (index, index + names), position, how)
                position += taken
                if taken < names:
                    return position
            if dentry is not None:
                if not self._add_entry(token, listing[position], dentry, position):
                    return position
                position += 1
        return position

    def _names_before(self, node: Node, block: Block, index: int) -> tuple[int, Dentry | None]:
        """How many entries of one block from `index` on to send as names, and what the next one is if it is known."""
        if not node.children:
            return len(block) - index, None
        end = min(len(block), index + _RUN)
        for i in range(index, end):
            name = block.name(i)
            if name in node.children and (dentry := self._namespace.names.known_nowait(node, name)) is not None:
                return i - index, dentry  # slots stay slots
        return end - index, None

    def _add_entry(self, token: pyfuse3.ReaddirToken, name: bytes, dentry: Dentry, position: int) -> bool:
        """False: it does not fit. One that has gone since it was listed is left out."""
        node = dentry.node
        if node is None:
            return True
        self._namespace.holds.referenced(node)
        if pyfuse3.readdir_reply(token, name, self._entries.entry(node, dentry.expires_s), _offset_behind(position)):
            return True
        self._namespace.holds.not_referenced(node)  # the kernel has not seen it
        return False


def _offset_behind(position: int) -> int:
    """Of entry `position` of a listing."""
    return position + len(_DOTS) + 1
