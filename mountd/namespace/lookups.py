"""Looking names up: what a name is now, within the time-to-live.

What is remembered of a name is good for the time-to-live. After it, one stat of the source; if that does not answer
within two seconds, what was known is served and counted. Event loop only; an await may change everything, so each is
followed by another look.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import SourceError, SourceTimeout
from hfs.mountd.namespace.asking import Asking
from hfs.mountd.namespace.kept import StoredNames
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Dentry, Node
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.namespace.silence import Silence
from hfs.mountd.namespace.statahead import StatAhead
from hfs.mountd.namespace.tree import Tree
from hfs.mountd.source import MetadataReader


class Lookups:
    """Names in, dentries and nodes out."""

    def __init__(
        self,
        metadata: MetadataReader,
        nodes: NodeTable,
        names: Names,
        tree: Tree,
        asking: Asking,
        stat_ahead: StatAhead,
        silence: Silence,
        kept: StoredNames,
    ) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._names = names
        self._tree = tree
        self._asking = asking
        self._stat_ahead = stat_ahead
        self._silence = silence
        self._kept = kept

    def child_nowait(self, parent: Node, name: bytes) -> Dentry | None:
        """As `child`, if that needs no waiting; else None."""
        dentry = self._names.known_nowait(parent, name)
        if dentry is None:
            if self._asking.is_coming(parent, name):
                return None  # what is on its way is older than what we would find, and would come after it
            dentry = self._kept.look_up_nowait(parent, name)
            if dentry is not None:
                return dentry  # and so will be those that come next
        if dentry is None:
            attributes = self._metadata.stat_nowait(parent.path, name)
            if attributes is None:
                return None
            dentry = self._tree.seen(parent, name, attributes)
        self._stat_ahead.looked_up(parent, name)
        return dentry

    async def child(self, parent: Node, name: bytes) -> Dentry:
        """What `name` in `parent` is now, within the time-to-live. A dentry without node means that it does not
        exist."""
        dentry = self._names.known_nowait(parent, name)
        if dentry is None and not self._asking.is_coming(parent, name):
            dentry = self._kept.look_up_nowait(parent, name)
            if dentry is not None:
                return dentry
        self._stat_ahead.looked_up(parent, name)
        if dentry is not None:
            return dentry
        known = self._names.remembered(parent, name)
        if known is not None and self._silence.is_on():
            return self._unanswered(known.node)
        limit_s = self._silence.limit_s(known=known is not None)
        try:
            flight = self._asking.flight(parent, name)
            if flight is not None:
                await flight.wait(limit_s)
                dentry = self._names.known_nowait(parent, name)
                if dentry is not None:
                    return dentry
            attributes = await self._asking.one(parent, name, limit_s=limit_s)
        except SourceTimeout:
            if not self._silence.begin(known=known is not None) or known is None:
                raise
            return self._unanswered(known.node)
        except SourceError as error:
            self._silence.end()
            if error.errno in (errno.ENOENT, errno.ENOTDIR):  # not ESTALE: a source that is lost has lost no file
                return self._tree.absent(parent, name)
            raise
        self._silence.end()
        return self._tree.seen(parent, name, attributes)

    def may_be_kept(self, parent: Node) -> bool:
        """Whether the index may know names in `parent` that are not known here yet."""
        return self._kept.may_come(parent)

    async def wait_kept(self, parent: Node) -> None:
        """Until the index has told what it knows, or some time has passed."""
        await self._kept.wait(parent, lambda: False)

    async def children(self, parent: Node, names: Sequence[bytes]) -> list[Dentry]:
        """What `names` in `parent` are now; the source is asked for those that are not known, many at a time."""
        await self._learn(parent, names, as_slots=False)
        # One that is not remembered any more (others took long, or there were many) has not gone: it is asked for.
        return [self._names.remembered(parent, name) or await self.child(parent, name) for name in names]

    async def held(self, parent: Node, names: Sequence[bytes]) -> dict[bytes, Dentry]:
        """The same of those of `names` that are no slots; all others are slots."""
        await self._learn(parent, names, as_slots=True)
        children = parent.children or {}
        no_slots = self._names.unknown_nowait(parent, names)
        no_slots += [name for name in names if name in children]
        return {name: self._names.remembered(parent, name) or await self.child(parent, name) for name in no_slots}

    async def attributes(self, parent: Node, names: Sequence[bytes]) -> list[Node | Attributes | None]:
        """What `names` in `parent` are now; slots stay slots, and of them these are the attributes."""
        if not parent.id:
            self._nodes.identify(parent)  # slots are known by it; the kernel has not asked for it yet
        dentries = await self.held(parent, names)
        slots = [name for name in names if name not in dentries]
        found = dict(zip(slots, self._names.slots_seen(parent, slots), strict=True))
        answers: list[Node | Attributes | None] = []
        for name in names:
            dentry = dentries.get(name)
            if dentry is None and found[name] is None:  # it was taken, or is past its time, since
                dentry = await self.child(parent, name)
            answers.append(dentry.node if dentry is not None else found[name])
        return answers

    async def _learn(self, parent: Node, names: Sequence[bytes], *, as_slots: bool) -> None:
        asking = self._asking
        await self._kept.wait(parent, lambda: not self._names.unknown_nowait(parent, names))
        unknown = self._names.unknown_nowait(parent, names)
        if unknown and self._silence.is_on() and self._are_remembered(parent, unknown):
            self._silence.served()
            return
        coming = asking.coming(parent, unknown)
        try:
            await asking.many(parent, [name for name in unknown if name not in coming], as_slots=as_slots)
            for flight in set(coming.values()):
                await flight.wait()
            failed = [name for name, flight in coming.items() if flight.failed]
            await asking.many(parent, self._names.unknown_nowait(parent, failed), as_slots=as_slots)
        except SourceTimeout:
            if not self._silence.begin(known=self._are_remembered(parent, unknown)):
                raise
            self._silence.served()

    def _are_remembered(self, parent: Node, names: Sequence[bytes]) -> bool:
        return all(self._names.remembered(parent, name) is not None for name in names)

    async def resolve(self, path: bytes) -> Node:
        """The node at `path`, relative to the root. Raises SourceError(ENOENT), or ENOTDIR on the way."""
        if b"\0" in path:
            raise SourceError(errno.EINVAL, path.decode("utf-8", "backslashreplace"))
        node = self._nodes.root
        for name in filter(None, path.split(b"/")):
            if name in (b".", b".."):
                raise SourceError(
                    errno.EINVAL, f"{path.decode('utf-8', 'backslashreplace')}: . and .. are not resolved here"
                )
            found = (await self.child(node, name)).node
            if found is None:
                raise SourceError(errno.ENOENT, path.decode("utf-8", "backslashreplace"))
            node = found
        return node

    def _unanswered(self, node: Node | None) -> Dentry:
        """What was known, though it is past its time."""
        self._silence.served()
        return Dentry(node, self._silence.good_until_s())
