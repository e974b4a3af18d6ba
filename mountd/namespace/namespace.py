"""Inodes and names: what the kernel knows of the tree, and what the daemon remembers of the source.

**One node id, one version.** The FUSE node of a regular file belongs to one version: when the file changes at the
source its name leads to a new node with a page cache of its own, and the old node lives on for the handles that have it
open. A directory keeps its node and is known by its source inode, so a rename of it changes one parent pointer and no
table of paths. The node id is the source's inode number where that is free (then `st_ino` is equal), else a number of
our own.

What is remembered of a name is good for the time-to-live. After it, one stat of the source; if that does not answer
within two seconds, what was known is served and counted. The kernel is never told to remember longer than we would.

Called by `read_path`, `prefetch`, `fuse` and `commands`. Does no I/O of its own: it asks `source`. Event loop only; an
await may change everything, so each is followed by another look.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Sequence

import trio

from mountd.base.attributes import Attributes
from mountd.base.errors import SourceError, SourceTimeout, VersionChanged
from mountd.base.version import Version
from mountd.core.metrics import Metrics
from mountd.namespace.asking import Asking
from mountd.namespace.ids import ROOT_ID, NodeIds
from mountd.namespace.inherited import inherit
from mountd.namespace.journal import Journal, NodeFact
from mountd.namespace.listings import Listings
from mountd.namespace.names import Names
from mountd.namespace.node import Dentry, Node, is_at, is_below, place_of, same_file, same_inode, same_version
from mountd.namespace.silence import Silence
from mountd.namespace.statahead import StatAhead
from mountd.source import Listing, Source

__all__ = ["ROOT_ID", "Namespace", "seconds"]

_FRESH_S = 0.5
"""What the source said so recently an open does not ask again: its own lookup has just asked. Asked again, a file that
somebody is writing could not be opened at all without a time-to-live, since each answer is another version."""

_NAMES_AT_MOST = 1 << 20
"""Names kept besides those that the kernel holds, where nobody says otherwise: 0.8 GB."""


class Namespace:
    """The tree below SOURCE. Construct, then `await start()` before anything else."""

    def __init__(
        self,
        source: Source,
        metrics: Metrics,
        nursery: trio.Nursery,
        *,
        ttl_s: float,
        strict: bool,
        names_at_most: int = _NAMES_AT_MOST,
        clock: Callable[[], float] = trio.current_time,
        journal: Journal | None = None,
        changed: Callable[[Node], object] = lambda _node: None,
    ) -> None:
        """`ttl_s`: math.inf for `--immutable`. `strict`: wait for the source instead of serving what was known.
        `names_at_most`: how many names are remembered besides those that the kernel holds.

        `journal`: notes what the kernel is told. The kernel may hold node ids of daemons that have served the mount
        before, with pages of other versions, so none of them is given out again.

        `changed` is told of each node whose file was found changed.

        `nursery`: for what nobody waits for, listings as they grow and attributes asked for ahead.
        """
        self._source = source
        self._metrics = metrics
        self._clock = clock
        self.ttl_s = ttl_s
        self._ids = NodeIds(journal or Journal(), source.doubts.holds)
        self._by_version: dict[Version, Node] = {}
        self._directories: dict[tuple[str, int, int], Node] = {}
        self.names = Names(self._ids.__len__, self._let_go, at_most=names_at_most, clock=clock)
        self._asking = Asking(source.metadata, metrics, nursery, self._seen, self._absent, shared=ttl_s > 0)
        self._listings = Listings(source.listings, nursery, self.expire, ttl_s=ttl_s, clock=clock)
        self._stat_ahead = StatAhead(self._listings, nursery, self.ask_nowait)
        self.silence = Silence(metrics, clock, strict=strict)
        self._changed = changed

    async def start(self, inherited: Sequence[NodeFact] = ()) -> None:
        """Ask the source for its root, or go on with what an earlier daemon has noted. Raises SourceError if the root
        cannot be had."""
        if inherited:
            self.root = inherit(inherited, self._ids.nodes, self._by_version, self._directories, self.names)
            return
        attributes = await self._source.metadata.stat(b"", b"")
        self.root = Node(attributes, None, None, b"")
        self.root.id, self.root.lookups = ROOT_ID, 1
        self.root.expires_s = self._clock() + self.ttl_s
        self._ids.nodes[ROOT_ID] = self.root
        self._directories[place_of(attributes)] = self.root
        self._ids.note(self.root)

    def __len__(self) -> int:
        return len(self._ids)

    def node(self, node_id: int) -> Node:
        """The node the kernel knows as `node_id`. Raises SourceError(ESTALE) for an id that is not there."""
        return self._ids.node(node_id)

    def valid_s(self, expires_s: float) -> float:
        """Seconds for which the kernel may remember what expires at `expires_s`; never more than a day."""
        return max(0.0, min(expires_s - self._clock(), 86_400.0))

    # -- names --------------------------------------------------------------------------------------------------------

    def known_nowait(self, parent: Node, name: bytes) -> Dentry | None:
        """What `name` in `parent` is known to be, if that is still good."""
        children = parent.children
        if children is None:
            raise SourceError(errno.ENOTDIR, f"{parent.path!r}")
        dentry = children.get(name)
        if dentry is None or dentry.expires_s <= self._clock():
            return None
        if dentry.node is not None and dentry.node.stale:
            return None  # a hard link: its file was found changed under another name
        if dentry.node is not None and dentry.node.retired:
            return None  # a hard link again: its other name was given the new node
        dentry.used = True
        return dentry

    def child_nowait(self, parent: Node, name: bytes) -> Dentry | None:
        """As `child`, if that needs no waiting; else None."""
        dentry = self.known_nowait(parent, name)
        if dentry is None:
            if self._asking.flight(parent, name) is not None:
                return None  # what is on its way is older than what we would find, and would come after it
            attributes = self._source.metadata.stat_nowait(parent.path, name)
            if attributes is None:
                return None
            return self._seen(parent, name, attributes)  # what costs so little is not asked for ahead
        self._stat_ahead.looked_up(parent, name)
        return dentry

    async def child(self, parent: Node, name: bytes) -> Dentry:
        """What `name` in `parent` is now, within the time-to-live. A dentry without node means that it does not
        exist."""
        dentry = self.known_nowait(parent, name)
        self._stat_ahead.looked_up(parent, name)
        if dentry is not None:
            return dentry
        known = (parent.children or {}).get(name)
        if known is not None and self.silence.is_on():
            return self._unanswered(known.node)
        limit_s = self.silence.limit_s(known=known is not None)
        try:
            flight = self._asking.flight(parent, name)
            if flight is not None:
                await flight.wait(limit_s)
                dentry = self.known_nowait(parent, name)
                if dentry is not None:
                    return dentry
            attributes = await self._asking.one(parent, name, limit_s=limit_s)
        except SourceTimeout:
            if not self.silence.begin(known=known is not None) or known is None:
                raise
            return self._unanswered(known.node)
        except SourceError as error:
            self.silence.end()
            if error.errno in (errno.ENOENT, errno.ENOTDIR):  # not ESTALE: a source that is lost has lost no file
                return self._absent(parent, name)
            raise
        self.silence.end()
        return self._seen(parent, name, attributes)

    async def children(self, parent: Node, names: Sequence[bytes]) -> list[Dentry]:
        """What `names` in `parent` are now; the source is asked for those that are not known, many at a time."""
        unknown = [name for name in names if self.known_nowait(parent, name) is None]
        coming = {name: flight for name in unknown if (flight := self._asking.flight(parent, name)) is not None}
        await self._asking.many(parent, [name for name in unknown if name not in coming])
        for flight in set(coming.values()):
            await flight.wait()
        failed = [name for name, flight in coming.items() if flight.failed]
        await self._asking.many(parent, [name for name in failed if self.known_nowait(parent, name) is None])
        held = parent.children or {}
        # One that is not remembered any more (others took long, or there were many) has not gone: it is asked for.
        return [held.get(name) or await self.child(parent, name) for name in names]

    def is_coming(self, parent: Node, name: bytes) -> bool:
        """Whether the source is being asked for `name`."""
        return self._asking.flight(parent, name) is not None

    def ask_nowait(self, parent: Node, names: Sequence[bytes]) -> None:
        """Begin to ask for those of `names` in `parent` that are not known: they will be wanted soon."""
        if not self.silence.is_on():
            self._asking.ahead_nowait(parent, [name for name in names if self.known_nowait(parent, name) is None])

    def found(self, parent: Node, name: bytes, attributes: Attributes, asked_s: float) -> Node | None:
        """`name` was opened at the source, not before `asked_s`, and was this. None if something newer may be known."""
        known = (parent.children or {}).get(name)
        if self._asking.flight(parent, name) is None and (known is None or known.expires_s < asked_s + self.ttl_s):
            return self._seen(parent, name, attributes).node
        dentry = self.known_nowait(parent, name)
        return dentry.node if dentry is not None else None

    async def resolve(self, path: bytes) -> Node:
        """The node at `path`, relative to the root. Raises SourceError(ENOENT), or ENOTDIR on the way."""
        if b"\0" in path:
            raise SourceError(errno.EINVAL, f"{path!r}")
        node = self.root
        for name in filter(None, path.split(b"/")):
            if name in (b".", b".."):
                raise SourceError(errno.EINVAL, f"{path!r}: . and .. are not resolved here")
            found = (await self.child(node, name)).node
            if found is None:
                raise SourceError(errno.ENOENT, path.decode("utf-8", "backslashreplace"))
            node = found
        return node

    def _unanswered(self, node: Node | None) -> Dentry:
        """What was known, though it is past its time."""
        self.silence.served()
        return Dentry(node, self._clock() + 1.0)

    def _seen(self, parent: Node, name: bytes, attributes: Attributes) -> Dentry:
        """The source has just said what `name` is."""
        expires_s = self._clock() + self.ttl_s
        node = self._node_of(parent, name, attributes)
        node.expires_s = expires_s
        before = (parent.children or {}).get(name)
        dentry = self.names.put(parent, name, node, expires_s)
        if node.children is not None and node.id:
            self._ids.note(node)  # it may have been renamed, and whoever works in it does not look it up
        if before is not None and before.node is not None and not same_version(before.node, node):
            self._replaced(before.node, node)
        return dentry

    def _absent(self, parent: Node, name: bytes) -> Dentry:
        before = (parent.children or {}).get(name)
        dentry = self.names.put(parent, name, None, self._clock() + self.ttl_s)
        if before is not None and before.node is not None:
            self._replaced(before.node, None)
        return dentry

    def _node_of(self, parent: Node, name: bytes, attributes: Attributes) -> Node:
        if attributes.is_directory:
            before = (parent.children or {}).get(name)
            if before is not None and before.node is not None and is_at(before.node, attributes):
                before.node.attributes = attributes
                return before.node
            known = self._directories.get(place_of(attributes))
            node = Node(attributes, None, parent, name)
            if known is None:
                self._directories[place_of(attributes)] = node
                self._source.directories.forget(node.path)  # another one may have stood here a moment ago
                return node
            if is_below(parent, known):
                return node  # mounted below itself: a node of its own, or its path would have no end
            self._source.directories.forget(known.path)
            self._source.directories.forget(node.path)
            self._listings.drop(known)
            known.attributes = attributes
            return known
        if not attributes.is_file:
            before = (parent.children or {}).get(name)
            if before is not None and before.node is not None and same_inode(before.node.attributes, attributes):
                before.node.attributes = attributes
                return before.node
            return Node(attributes, None, parent, name)
        version = attributes.version(self._source.source_id)
        known = self._by_version.get(version)
        if known is not None:
            known.attributes, known.stale = attributes, False
            return known
        node = Node(attributes, version, parent, name)
        self._by_version[version] = node
        return node

    def _replaced(self, node: Node, new: Node | None) -> None:
        """A name that led to `node` leads to `new` now, or to nothing."""
        if node.version is None or node.stale:
            return
        links = self.names.of(node)
        if links and (new is None or new.version is None or not same_file(node.version, new.version)):
            # The file lives on under other names, though perhaps as another version: its count of links has changed.
            node.expires_s = -math.inf
            for dentry in links:
                dentry.expires_s = -math.inf
            return
        node.stale = True
        self._metrics.add("version_changes")
        self._changed(node)

    # -- attributes ---------------------------------------------------------------------------------------------------

    def is_fresh_nowait(self, node: Node) -> bool:
        """Whether `fresh` would neither ask the source nor raise."""
        return not node.stale and node.expires_s + _FRESH_S > self._clock()

    async def fresh(self, node: Node) -> None:
        """`node` may be opened: the source has it under its name within the time-to-live. Else VersionChanged."""
        if not node.stale and not self.is_fresh_nowait(node):
            await self.revalidate(node)
        if node.stale:
            raise VersionChanged(f"{node.path!r} has changed at the source")

    async def revalidate(self, node: Node) -> Attributes:
        """The attributes of `node`, asked for again past the time-to-live.

        Raises VersionChanged if its name leads to another node or nowhere now and nobody has it open; with handles open
        the old attributes are given, since those handles keep their version.
        """
        if node.stale and not node.opens:
            raise VersionChanged(f"{node.path!r} has changed at the source")
        if node.stale or node.expires_s > self._clock():
            return node.attributes
        if node.parent is None:
            return await self._revalidate_root(node)
        for directory, name in node.places:
            if (await self.child(directory, name)).node is node:
                return node.attributes
        if not node.opens:
            raise VersionChanged(f"{node.path!r} has changed at the source")
        return node.attributes

    async def _revalidate_root(self, node: Node) -> Attributes:
        if self.silence.is_on():
            return node.attributes
        try:
            attributes = await self._source.metadata.stat(b"", b"", limit_s=self.silence.limit_s(known=True))
        except SourceTimeout:
            if not self.silence.begin(known=True):
                raise
            self.silence.served()
            return node.attributes
        node.attributes, node.expires_s = attributes, self._clock() + self.ttl_s
        return attributes

    def expire(self, node: Node) -> None:
        """The source has refused bytes of this version: ask for its names at the next look."""
        node.expires_s = -math.inf
        for dentry in self.names.of(node):
            dentry.expires_s = -math.inf

    def doubted(self, version: Version, *, still: bool) -> None:
        """What was read of `version` may be wrong; with `still` False, it was not."""
        node = self._by_version.get(version)
        if node is not None:
            self._ids.doubt(node, doubted=still)

    def distrust(self, version: Version) -> None:
        """Bytes of `version` were of two states: who has its node open goes on, everybody else gets another one."""
        node = self._by_version.get(version)
        if node is not None and not node.stale:
            self.expire(node)
            node.stale = True
            self._metrics.add("version_changes")
            self._changed(node)

    def renew(self, node: Node) -> Node | None:
        """The names of `node` lead to a new node of the same version from now on; `node` lives on for who has it open.

        For a file that is open through the page cache and could be passed through, or the reverse: the kernel allows a
        node one mode. Returns the node that the name leads to, None if its version has gone.
        """
        if node.version is None or node.stale:
            return None
        if node.retired:
            return self._by_version.get(node.version)
        node.retired = True
        fresh = Node(node.attributes, node.version, node.parent, node.name)
        fresh.expires_s = node.expires_s
        self._by_version[node.version] = fresh
        for dentry in self.names.of(node):
            if dentry.directory is not None:
                self.names.put(dentry.directory, dentry.name, fresh, dentry.expires_s)
        return fresh

    # -- listings -----------------------------------------------------------------------------------------------------

    async def listing(self, node: Node) -> Listing:
        """All names in directory `node`, within the time-to-live."""
        listing = self._listings.get(node)
        await listing.whole()
        return listing

    def listing_nowait(self, node: Node) -> Listing:
        """The same while it grows."""
        return self._listings.get(node)

    def stats_follow(self, node: Node, listing: Listing, position: int) -> bool:
        """Whether somebody looks up each name of `listing` as it is shown, and has come to `position`."""
        return self._stat_ahead.follows(node, listing, position)

    # -- what the kernel holds ----------------------------------------------------------------------------------------

    def referenced(self, node: Node) -> None:
        """A reply with `node` goes to the kernel now: one lookup count more, and an id if it had none."""
        if node.id == 0:
            self._ids.give(node)
            self._link(node)  # it may have been dropped while an open directory still held it
        node.lookups += 1
        self._ids.told(node)

    def note(self, node: Node) -> None:
        """Have `node` in the journal: the kernel may ask for it without having opened it."""
        self._ids.note(node)

    def shown_inode(self, node: Node) -> int:
        """The number that stat(2) shows of `node`: that of the source, also of a second node of one file.

        Not of another file system mounted below the source, where it may be taken: equal numbers would make hard links
        of files, and loops of directories. So would a directory that is mounted below itself.
        """
        if not self._ids.is_own(node):
            return node.id
        again = node.children is not None and self._directories.get(place_of(node.attributes)) is not node
        return node.id if again else node.attributes.inode

    def not_referenced(self, node: Node) -> None:
        """The reply with `node` did not reach the kernel after all; another with it may follow."""
        node.lookups -= 1

    def _link(self, node: Node) -> None:
        if node.version is not None:
            self._by_version.setdefault(node.version, node)
        elif node.children is not None:
            self._directories.setdefault(place_of(node.attributes), node)
        if node.parent is not None and node.name not in (node.parent.children or {}):
            self.names.put(node.parent, node.name, node, node.expires_s)

    def forget(self, node_id: int, count: int) -> None:
        """The kernel gives back `count` lookup counts. Unknown ids are not an error: an unmount forgets the root
        too."""
        node = self._ids.nodes.get(node_id)
        if node is None or node is self.root:
            return
        node.lookups -= count
        self._drop_if_unused(node)

    def opened(self, node: Node) -> None:
        """One open handle more."""
        node.opens += 1
        self._ids.note(node)

    def closed(self, node: Node) -> None:
        """One open handle less."""
        node.opens -= 1
        self._drop_if_unused(node)

    def hold(self, node: Node) -> None:
        """Keep the id of `node` from being given to another file until `release`."""
        node.holds += 1

    def release(self, node: Node) -> None:
        """Undo one `hold`."""
        node.holds -= 1
        self._drop_if_unused(node)

    def _drop_if_unused(self, node: Node) -> None:
        if node.is_held:
            return
        node.pushed = False
        if node.children:  # their paths need it; it goes when they have gone
            self._ids.take(node)
            return
        self._let_go(node)
        for dentry in self.names.of(node):
            self.names.drop(dentry)

    def _let_go(self, node: Node) -> None:
        """Nothing holds `node` any more, and no name leads to it, or none will."""
        self._ids.take(node)
        if node.version is not None and self._by_version.get(node.version) is node:
            del self._by_version[node.version]
        if node.children is not None:
            self._listings.drop(node)
            if self._directories.get(place_of(node.attributes)) is node:
                del self._directories[place_of(node.attributes)]

    async def sweep(self) -> int:
        """Drop names that are past their time and unknown to the kernel. How many went. Called now and then."""
        if self.ttl_s == math.inf and self.names.gone <= len(self.names):
            return 0  # none is ever past its time
        return await self.names.sweep()

    def files(self) -> Iterator[Node]:
        """The regular files that the kernel knows."""
        return (node for node in self._ids.nodes.values() if node.version is not None)


def seconds(ttl_s: float, *, immutable: bool) -> float:
    """The time-to-live to work with: infinite for a source that never changes."""
    return math.inf if immutable else ttl_s
