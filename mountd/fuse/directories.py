"""Directories that the kernel has opened: replies to OPENDIR, READDIR and RELEASEDIR.

A listing is shown as it was when it was opened or rewound. An entry is sent with its attributes, which is a reference
to its node, or as a mere name (see `listing`); an error in place of a reply that already has entries would lose the
references in it, so such a reply is sent as it is.
"""

from __future__ import annotations

from mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3

from mountd.files import DirectoryHandle, Handles
from mountd.fuse.entries import EntryReplies
from mountd.fuse.listing import names_before
from mountd.namespace import Asker, Dentry, Namespace, Node, Permissions
from mountd.source import Listing, WantedAccess

_READDIR_AHEAD = 512
"""Names whose attributes are asked for at once while a directory is listed: 32 threads of 16 names."""


class DirectoryReplies:
    """What readers of directories are shown. Directory handles by number."""

    def __init__(self, namespace: Namespace, permissions: Permissions, handles: Handles, entries: EntryReplies) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._handles = handles
        self._entries = entries
        self._name_only = pyfuse3.EntryAttributes()
        if fastpath.NAME_ONLY is not None:
            self._name_only.generation = fastpath.NAME_ONLY

    async def open(self, node_id: int, asker: Asker) -> int:
        """The number of a handle, or of the one that an earlier daemon was about to answer this request with."""
        unique = fastpath.unique_of_request()
        again = self._handles.answered(unique)
        if again is not None:
            return again
        node = self._namespace.nodes.node(node_id)
        await self._namespace.freshness.fresh(node)
        await self._permissions.check(node, WantedAccess.LIST, asker)
        return self._handles.add_directory(DirectoryHandle(node, unique=unique))

    async def read(self, number: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Add to the reply `token` the entries from position `start` on, as many as fit and can be had together."""
        plain = fastpath.wants_names()
        handle = self._handles.directory(number)
        listing = await self._listing(handle, start)
        if not await listing.reaches(start):
            return
        # A reader that has looked up what it was shown so far is spared the look-ups of what follows.
        handle.whole = handle.whole or self._namespace.stat_ahead.follows(handle.node, listing, start)
        if fastpath.takes_names() and (plain or not handle.whole):
            end = self._add_names(token, handle.node, listing, start, plain=plain)
        else:
            end = await self._add_whole(token, handle, listing, start)
        self._handles.show(number, end)

    def close(self, number: int) -> None:
        """The kernel lets go of a handle."""
        self._handles.remove_directory(number)

    async def _listing(self, handle: DirectoryHandle, start: int) -> Listing:
        if handle.listing is not None and start:
            return handle.listing
        listing = self._namespace.listings.get(handle.node)
        if start:
            await handle.go_on(listing, start)
        else:  # opened, or rewound: rewinddir(3) shows the directory anew
            handle.begin(listing)
        return listing

    async def _add_whole(
        self, token: pyfuse3.ReaddirToken, handle: DirectoryHandle, listing: Listing, start: int
    ) -> int:
        """The position behind what was added."""
        added = False
        for position in range(start, len(listing)):
            dentry = handle.known(position)
            if dentry is None:
                if added:
                    return position
                names = listing.names(position, position + _READDIR_AHEAD)
                handle.batch, handle.batch_start = await self._namespace.lookups.children(handle.node, names), position
                dentry = handle.batch[0]
                after = position + len(names)
                self._namespace.asking.ahead_nowait(handle.node, listing.names(after, after + _READDIR_AHEAD))
            if not self._add_entry(token, listing[position], dentry, position + 1):
                return position
            added = added or dentry.node is not None
        return len(listing)

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
                names, dentry = names_before(self._namespace, node, listing, position)
            if names:
                fastpath.answer_with_names(
                    block.records, block.starts, index, index + names, position + 1, wants_names=plain
                )
                pyfuse3.readdir_reply(token, b"", self._name_only, 0)
                taken = fastpath.names_answered()
                position += taken
                if taken < names:
                    return position
            if dentry is not None:
                if not self._add_entry(token, listing[position], dentry, position + 1):
                    return position
                position += 1
        return position

    def _add_entry(self, token: pyfuse3.ReaddirToken, name: bytes, dentry: Dentry, next_position: int) -> bool:
        """False: it does not fit. One that has gone since it was listed is left out."""
        node = dentry.node
        if node is None:
            return True
        self._namespace.holds.referenced(node)
        if pyfuse3.readdir_reply(token, name, self._entries.entry(node, dentry.expires_s), next_position):
            return True
        self._namespace.holds.not_referenced(node)  # the kernel has not seen it
        return False
