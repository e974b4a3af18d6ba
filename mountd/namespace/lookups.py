"""Looking names up: what a name is now, within the time-to-live.

What is remembered of a name is good for the time-to-live. After it, one stat of the source; if that does not answer
within two seconds, what was known is served and counted. Event loop only; an await may change everything, so each is
followed by another look.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import trio

from hfs.mountd.cache import StoredPage
from hfs.mountd.core.attributes import Attributes, SeenNames
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged, shown_path
from hfs.mountd.namespace.answers import Silence
from hfs.mountd.namespace.asking import Asking
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Dentry, Node
from hfs.mountd.namespace.nodes.slots import Slots
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.namespace.statahead import StatAhead
from hfs.mountd.namespace.tree import Tree
from hfs.mountd.source import MetadataReader

_MAX_DIRECTORIES = 1 << 16
"""Of which it is remembered that they were brought in; of others it is done again."""

_LISTING_WAITS_S = 1.0
"""For names of its directory: 100 000 come in half a second. Then the source is asked for those that it needs."""


_FRESH_S = 0.5
"""What the source said so recently an open does not ask again: its own lookup has just asked. Asked again, a file that
somebody is writing could not be opened at all without a time-to-live, since each answer is another version."""

_LONGEST_S = 86_400.0
"""What the kernel is told where nothing ever goes out of date."""


class Freshness:
    """How long a node's attributes are good for, and asking for them again.

    A node is asked for by its names: a file that still has one of them is the version that it was. The kernel is never
    told to remember longer than we would. Event loop only.

    Whether nodes are what they were. `ttl_s`: math.inf for a source that never changes.
    """

    def __init__(
        self,
        metadata: MetadataReader,
        asking: Asking,
        lookups: Lookups,
        silence: Silence,
        *,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._metadata = metadata
        self._asking = asking
        self._lookups = lookups
        self._silence = silence
        self._ttl_s = ttl_s
        self._clock = clock

    def valid_s(self, expires_s: float) -> float:
        """Seconds for which the kernel may remember what expires at `expires_s`; never more than a day."""
        return max(0.0, min(expires_s - self._clock(), _LONGEST_S))

    def is_fresh_nowait(self, node: Node) -> bool:
        """Whether `fresh` would neither ask the source nor raise."""
        return not node.stale and node.expires_s + _FRESH_S > self._clock()

    async def fresh(self, node: Node) -> None:
        """`node` may be opened: the source has it under its name within the time-to-live. Else VersionChanged."""
        if not node.stale and not self.is_fresh_nowait(node):
            await self.revalidate(node)
        if node.stale:
            raise VersionChanged(f"{shown_path(node.path)} has changed at the source")

    async def revalidate(self, node: Node) -> Attributes:
        """The attributes of `node`, asked for again past the time-to-live.

        Raises VersionChanged if its name leads to another node or nowhere now and nobody has it open; with handles open
        the old attributes are given, since those handles keep their version.
        """
        if node.stale and not node.opens:
            raise VersionChanged(f"{shown_path(node.path)} has changed at the source")
        if node.stale or node.expires_s > self._clock():
            return node.attributes
        if node.parent is None:
            return await self._revalidate_root(node)
        if (await self._lookups.child(node.parent, node.name)).node is node:
            return node.attributes
        if not node.opens:
            raise VersionChanged(f"{shown_path(node.path)} has changed at the source")
        return node.attributes

    async def _revalidate_root(self, root: Node) -> Attributes:
        if self._silence.is_on():
            return root.attributes
        asked_s = self._clock()
        try:
            attributes = await self._metadata.stat(b"", b"", limit_s=self._silence.limit_s(known=True))
        except SourceTimeout:
            if not self._silence.begin(known=True):
                raise
            self._silence.served()
            return root.attributes
        if asked_s <= self._asking.voided_s:
            return await self._revalidate_root(root)
        root.see_again(attributes)
        root.expires_s = self._clock() + self._ttl_s
        return attributes


class StoredFiles(Protocol):
    """What is kept of the files of this source. Directories are known by what they are now."""

    async def page(self, directory: Attributes, after_name: bytes, /) -> StoredPage | None:
        """Some names of a directory, after this `last_name`, or the first; None: the end."""

    def named_nowait(self, directory: Attributes, name: bytes, /) -> Attributes | None:
        """Of the staged file with this name."""

    def forgetting_below(self, path: bytes, /) -> AbstractAsyncContextManager[None]:
        """Names at and below this path are not found any more, in this mount nor in later ones. Until the block ends
        nothing is kept, and none is found."""


class _Loading:
    def __init__(self) -> None:
        self.ended = False
        self.void = False
        """What comes is not to be believed."""
        self.grown = trio.Event()

    def wake(self) -> None:
        grown, self.grown = self.grown, trio.Event()
        grown.set()


class StoredNames:
    """Names that the index of the cache knows: of a source that never changes, so that a later job does not ask it.

    The first look-up in a directory has what is kept of its files brought in, page by page, as slots. A name that is
    looked up before its page has come is asked of the index by itself; a listing waits a moment. What is not kept is
    asked for as ever.

    Such a slot knows the number of its object: what is staged of it is found by its id alone. Event loop only.

    What was brought in of each directory. `kept`: None: nothing is.
    """

    def __init__(
        self, kept: StoredFiles | None, nodes: NodeTable, names: Names, slots: Slots, tree: Tree, nursery: trio.Nursery
    ) -> None:
        self._kept = kept
        self._nodes = nodes
        self._names = names
        self._slots = slots
        self._tree = tree
        self._nursery = nursery
        self._directories: dict[Node, _Loading] = {}

    def may_come(self, directory: Node) -> bool:
        """Whether names of `directory` may be kept that are not brought in yet."""
        if self._kept is None or directory.children is None or directory.changes:
            return False
        loading = self._directories.get(directory)
        return loading is None or not loading.ended

    def look_up_nowait(self, directory: Node, name: bytes) -> Dentry | None:
        """What is kept of this name, though its page has not come yet. Has it brought in."""
        if self._kept is None or not self.may_come(directory):
            return None
        self._loading(self._kept, directory)
        attributes = self._kept.named_nowait(directory.attributes, name)
        return self._tree.seen(directory, name, attributes) if attributes is not None else None

    async def wait(self, directory: Node, is_enough: Callable[[], object]) -> None:
        """Until all that is kept of `directory` is known, or `is_enough()`, or some time has passed."""
        if self._kept is None or not self.may_come(directory):
            return
        loading = self._loading(self._kept, directory)
        with trio.move_on_after(_LISTING_WAITS_S):
            while not loading.ended and not is_enough():
                await loading.grown.wait()

    def forgetting_below(self, path: bytes) -> AbstractAsyncContextManager[None]:
        """What the index has of names at and below this path is not to be believed any more. In the block what was
        brought in of it is `void`."""
        return contextlib.nullcontext() if self._kept is None else self._kept.forgetting_below(path)

    def void(self, directory: Node) -> None:
        """What is being brought in of this directory was read before that."""
        loading = self._directories.get(directory)
        if loading is not None:
            loading.void = loading.ended = True
            loading.wake()

    def _loading(self, kept: StoredFiles, directory: Node) -> _Loading:
        loading = self._directories.get(directory)
        if loading is None:
            loading = self._directories[directory] = _Loading()
            if len(self._directories) > _MAX_DIRECTORIES:
                del self._directories[next(iter(self._directories))]  # who waits there has it in hand
            start_guarded(self._nursery, "names from the index", self._load, kept, directory, loading)
        return loading

    async def _load(self, kept: StoredFiles, directory: Node, loading: _Loading) -> None:
        last_name = b""
        try:
            while (page := await kept.page(directory.attributes, last_name)) is not None and not loading.void:
                self._put(directory, page)
                last_name = page.last_name
                loading.wake()
        finally:
            loading.ended = True
            loading.wake()

    def _put(self, directory: Node, page: StoredPage) -> None:
        found = SeenNames(page.names, page.seen, bytearray(b"\1") * len(page.names), {})
        left = dict(self._slots.put(directory, found, objects=page.objects))
        for name in self._names.unknown_nowait(directory, list(left)):  # of all others something newer is known
            attributes = left[name]
            if attributes is not None:
                self._tree.seen(directory, name, attributes)


@dataclass(eq=False, repr=False)
class Lookups:
    """Names in, dentries and nodes out."""

    _metadata: MetadataReader
    _nodes: NodeTable
    _names: Names
    _tree: Tree
    _asking: Asking
    _stat_ahead: StatAhead
    _silence: Silence
    _kept: StoredNames

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
