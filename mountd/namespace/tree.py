"""The tree as the source has shown it: each answer about a name is entered here, and nowhere else.

**One node id, one version.** The node of a regular file belongs to one version: when the file changes at the source its
name leads to a new node with a page cache of its own, and the old node lives on for the handles that have it open. A
directory keeps its node and is known by its source inode, so a rename of it changes one parent pointer and no table of
paths.

Never asks the source anything; `Asking` and `Lookups` do. Event loop only.
"""

from __future__ import annotations

import errno
import math
from collections import OrderedDict
from collections.abc import Callable

import trio

from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.background import Slices, start_guarded
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.answers import Silence
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import (
    Dentry,
    Node,
    expire,
    is_at,
    is_below,
    is_renumbered,
    recall,
    same_inode,
    same_version,
)
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.source import Lister, Listing, Source

_KEPT_BYTES = 32 << 20
"""A million names of 10 bytes."""


class _DirectoryListing:
    __slots__ = ("expires_s", "growing", "known")

    def __init__(self) -> None:
        self.known: Listing | None = None
        """The last one that is complete."""
        self.expires_s = -math.inf
        """Until when it is good."""
        self.growing: Listing | None = None
        """What will take its place."""

    @property
    def memory_bytes(self) -> int:
        return self.known.memory_bytes if self.known is not None else 0


class Listings:
    """The listings that the namespace keeps: one a directory, good for the time-to-live, bounded in bytes.

    Whoever asks gets a listing at once and follows it while it grows; the source is read in the background, so that its
    time and the readers' pass together, and once however many ask. A listing past its time is held until another is
    complete: it is shown while the source does not answer, and `namespace.statahead` wants the order of the names only.
    Event loop only.

    Listings by directory.
    """

    def __init__(
        self,
        lister: Lister,
        nursery: trio.Nursery,
        silence: Silence,
        *,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._lister = lister
        self._nursery = nursery
        self._silence = silence
        self._ttl_s = ttl_s
        self._clock = clock
        self._held: OrderedDict[Node, _DirectoryListing] = OrderedDict()
        self._bytes = 0
        self._slices = Slices()
        """For all that takes long with a large one."""

    def get(self, directory: Node) -> Listing:
        """The names in `directory`, within the time-to-live; perhaps still growing."""
        held = self._held.setdefault(directory, _DirectoryListing())
        self._held.move_to_end(directory)
        if held.known is not None and held.expires_s > self._clock():
            return held.known
        if held.growing is None or not self._ttl_s:
            held.growing = Listing(self._slices)
            start_guarded(self._nursery, "listing", self._grow, directory, held, held.growing)
        return held.growing

    async def shown(self, directory: Node) -> Listing:
        """The same; what was known where the source does not answer. Raises SourceError, VersionChanged."""
        held = self._held.get(directory)
        known = held.known if held is not None and held.expires_s <= self._clock() else None
        if known is not None and self._silence.is_on():
            self._silence.served()
            return known
        listing = self.get(directory)
        if known is None:
            return listing
        try:
            with trio.fail_after(self._silence.limit_s(known=True) or math.inf):
                await listing.reaches(0)
        except (SourceTimeout, trio.TooSlowError):
            if not self._silence.begin(known=True):
                raise
            self._silence.served()
            return known
        except SourceError:
            self._silence.end()
            raise
        self._silence.end()
        return listing

    async def whole(self, directory: Node) -> Listing:
        """All names in `directory`, within the time-to-live. Raises SourceError, VersionChanged."""
        listing = self.get(directory)
        await listing.whole()
        return listing

    def held(self, directory: Node) -> Listing | None:
        """The last listing of `directory`, past its time or not."""
        held = self._held.get(directory)
        return (held.growing or held.known) if held is not None else None

    def expire(self, directory: Node) -> None:
        """What is known of `directory`, and what is being read, is past its time."""
        held = self._held.get(directory)
        if held is None or held.known is None:
            self.drop(directory)
        else:
            held.growing, held.expires_s = None, -math.inf

    def drop(self, directory: Node) -> None:
        """Keep no listing of `directory`. Who reads one reads it to its end."""
        held = self._held.pop(directory, None)
        if held is not None:
            self._bytes -= held.memory_bytes

    async def _grow(self, directory: Node, held: _DirectoryListing, listing: Listing) -> None:
        error: Exception | None = SourceError(errno.EIO, "the daemon is stopping")
        try:
            attributes = directory.attributes
            where = attributes.inode, listing
            await self._lister.fill(directory.path, *where, file_system=attributes.file_system)
            error = None
        except VersionChanged as found:
            error = found
            expire(directory)  # another one stands in its place
        except Exception as found:  # noqa: BLE001 - every failure belongs to the readers, whatever it is
            error = found
        finally:
            is_last = held.growing is listing and self._held.get(directory) is held
            if is_last:
                held.growing = None
                if error is not None and (held.known is None or not isinstance(error, SourceTimeout)):
                    self.drop(directory)
            listing.finish(error)
        if is_last and error is None:
            self._bytes += listing.memory_bytes - held.memory_bytes
            held.known, held.expires_s = listing, self._clock() + self._ttl_s
            self._held.move_to_end(directory)
            while self._bytes > _KEPT_BYTES and len(self._held) > 1:
                self.drop(next(iter(self._held)))


class Tree:
    """The nodes and names below SOURCE, as they change."""

    def __init__(
        self,
        source: Source,
        nodes: NodeTable,
        names: Names,
        listings: Listings,
        metrics: Metrics,
        *,
        ttl_s: float,
        clock: Callable[[], float],
        changed: Callable[[Node], object],
    ) -> None:
        """`ttl_s`: for how long an answer is good. `changed` is told of each node whose file was found changed."""
        self._source = source
        self._nodes = nodes
        self._names = names
        self._listings = listings
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._clock = clock
        self._changed = changed

    def expires_s(self, said_s: float) -> float:
        """Until when an answer that was given at `said_s` is good."""
        return said_s + self._ttl_s

    def seen(self, directory: Node, name: bytes, attributes: Attributes) -> Dentry:
        """The source has just said what `name` in `directory` is."""
        expires_s = self.expires_s(self._clock())
        # It may have been found rewritten while the source was asked.
        attributes = self._source.second_looks.rewritten.named(attributes, self._source.source_id)
        node = self._node_of(directory, name, attributes)
        node.expires_s = expires_s
        before = self._names.remembered(directory, name)
        dentry = self._names.put(directory, name, node, expires_s)
        if node.children is not None and node.id:
            self._nodes.note(node)  # it may have been renamed, and whoever works in it does not look it up
        if before is not None and before.node is not None and not same_version(before.node, node):
            if is_renumbered(before.node.attributes, attributes):
                self._metrics.add("inodes_renumbered")
            self._goes_stale(before.node)
        return dentry

    def absent(self, directory: Node, name: bytes) -> Dentry:
        """The source has just said that there is no `name` in `directory`."""
        before = self._names.remembered(directory, name)
        dentry = self._names.put(directory, name, None, self.expires_s(self._clock()))
        if before is not None and before.node is not None:
            self._goes_stale(before.node)
        return dentry

    def _node_of(self, directory: Node, name: bytes, attributes: Attributes) -> Node:
        dentry = self._names.remembered(directory, name)
        before = dentry.node if dentry is not None else None
        if attributes.is_directory:
            if before is not None and is_at(before, attributes):
                before.see_again(attributes)
                return before
            return self._directory_of(directory, name, attributes)
        if not attributes.is_file:
            if before is not None and same_inode(before.attributes, attributes):
                before.attributes = attributes
                return before
            return Node(attributes, None, directory, name)
        version = attributes.version(self._source.source_id)
        known = self._with_version(before, version) if before is not None and before.version is not None else None
        if known is not None:
            known.attributes, known.stale = attributes, False
            return known
        node = Node(attributes, version, directory, name)
        self._nodes.enter(node)
        return node

    def _with_version(self, before: Node, version: Version) -> Node | None:
        """`before`, or one that had its name earlier, if the source has that version there again."""
        place = before.parent, before.name
        for known in [before] if before.version == version else self._nodes.of_version(version):
            if (known.parent, known.name, known.version) == (*place, version) and not known.retired:
                return known
        return None

    def _directory_of(self, directory: Node, name: bytes, attributes: Attributes) -> Node:
        """Of a directory that did not have this name a moment ago."""
        known = self._nodes.directory_at(attributes)
        node = Node(attributes, None, directory, name)
        if known is None:
            self._nodes.enter(node)
            self._source.directories.forget(node.path)  # another one may have stood here a moment ago
            return node
        if is_below(directory, known):
            return node  # mounted below itself: a node of its own, or its path would have no end
        self._source.directories.forget(known.path)
        self._source.directories.forget(node.path)
        self._listings.drop(known)
        known.see_again(attributes)
        return known

    def distrust(self, version: Version) -> None:
        """Bytes of `version` were of two states: who has its node open goes on, everybody else gets another one."""
        for node in self._nodes.of_version(version):
            expire(node)
            self._goes_stale(node)

    def _goes_stale(self, node: Node) -> None:
        """If it is a file: its name leads elsewhere now, or its bytes are not to be believed."""
        if node.version is None or node.stale:
            return
        recall(node)
        node.stale = True
        self._metrics.add("version_changes")
        self._changed(node)

    def renew(self, node: Node) -> Node | None:
        """The name of `node` leads to a new node of the same version from now on; `node` lives on for who has it open.

        For a file that is open through the page cache and could be passed through, or the reverse: the kernel allows a
        node one mode. Returns the node that the name leads to, None if its version has gone.
        """
        if node.version is None or node.stale:
            return None
        parent = node.parent
        assert parent is not None
        if node.retired:
            now = self._names.remembered(parent, node.name)
            return now.node if now is not None and now.node is not None and same_version(now.node, node) else None
        dentry = node.dentry
        recall(node)
        node.retired = True
        fresh = Node(node.attributes, node.version, node.parent, node.name)
        fresh.expires_s = node.expires_s
        self._nodes.enter(fresh)
        self._nodes.identify_later(fresh)
        if dentry is not None:
            self._names.put(parent, node.name, fresh, dentry.expires_s)
        return fresh
