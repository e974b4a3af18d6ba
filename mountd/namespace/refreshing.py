"""Refreshing: what is known at and below a path is past its time, because somebody says that the source has changed.

Names (also those that did not exist), attributes, listings, slots, what the source has said of nodes besides, and what
the index knows of names: all of it is asked for again at the next look, as after its time-to-live. So what has changed
is seen, and what has not keeps its node, its pages and what is staged of it. Answers that are on their way, and may be
older, count for nothing.

Nothing is asked here, and the kernel is not told: `Refreshed` says of what it may know. Event loop only; slots are
gone over in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.background import start_guarded
from hfs.mountd.namespace.answers import expire_answers
from hfs.mountd.namespace.links import is_link
from hfs.mountd.namespace.namespace import Namespace
from hfs.mountd.namespace.nodes.node import Dentry, Node, expire

_AT_ONCE = 500
"""Names between two turns of the event loop: some 2 ms."""


class SecondLookOutcomes:
    """What follows from second looks at the source: bytes in doubt are committed, or their version is given up.

    Implements `source.second_looks.SecondLookListener`.
    """

    def __init__(
        self, cache: Cache, namespace: Namespace, nursery: trio.Nursery, distrust: Callable[[int], object]
    ) -> None:
        """`distrust(inode)`: files with this number are fetched by Python alone from now on."""
        self._distrust = distrust
        self._cache = cache
        self._namespace = namespace
        self._nursery = nursery

    def uncertain(self, version: Version) -> None:
        """Bytes of this version are in doubt."""
        self._namespace.nodes.note_uncertain(version, uncertain=True)

    def confirmed(self, version: Version) -> None:
        """The bytes of this version are right."""
        self._namespace.nodes.note_uncertain(version, uncertain=False)
        self._cache.committer.confirm(version)

    def refuted(self, version: Version) -> None:
        """They may be of two states."""
        self._distrust(version.inode)
        self._cache.committer.disbelieve(version)
        self._namespace.tree.distrust(version)
        # Also where no name is known of it.
        start_guarded(self._nursery, "supersede", self._cache.files.supersede, version)


@dataclass(slots=True)
class Refreshed:
    """What is to be told to the kernel, which may know it."""

    names: dict[int, list[bytes]] = field(default_factory=dict)
    """By node id of their directory."""
    directories: list[int] = field(default_factory=list)
    """Whose attributes it may remember."""
    count: int = 0
    """Names that are past their time now."""
    is_partial: bool = False
    """It may know more of them."""
    leads_on: bool = True
    """There may be a link at the path, or on the way."""

    def add(self, directory: Node, names: Sequence[bytes]) -> None:
        """It may know these names of a directory."""
        if directory.id and names:
            self.names.setdefault(directory.id, []).extend(names)


class Refreshing:
    """Of one mount."""

    def __init__(self, namespace: Namespace) -> None:
        self._nodes = namespace.nodes
        self._names = namespace.names
        self._slot_table = namespace.slots.table
        self._listings = namespace.listings
        self._asking = namespace.asking
        self._kept = namespace.kept

    async def refresh(
        self,
        path: bytes,
        recall_directory: Callable[[Collection[Node]], object],
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> Refreshed:
        """What is known at `path`, relative to the root, and below is past its time when this returns.

        `recall_directory`: others put no slots in these directories any more. `run_in_thread`: as
        trio.to_thread.run_sync. Raises StagingError where the index does not forget what it knows of names.
        """
        refreshed = Refreshed(is_partial=self._names.is_partial)
        async with self._kept.forgetting_below(path):
            node = self._find(path, refreshed)
            if node is not None:
                recall_directory(await self._directories(node))
            # From here on what is on its way is not entered any more, and what is asked for is newer than the change.
            self._asking.void()
            if node is not None:
                await self._expire_below(node, refreshed, run_in_thread)
        return refreshed

    async def _expire_below(
        self, node: Node, refreshed: Refreshed, run_in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        directories = await self._directories(node)
        for directory in directories:
            self._kept.void(directory)
            self._listings.expire(directory)
            expire(directory)
            expire_answers(directory)
            if directory.id:
                refreshed.directories.append(directory.id)
            await self._names_in(directory, refreshed)
        if node.children is None:
            expire(node)
            expire_answers(node)
        ids = [directory.id for directory in directories if directory.id]
        held = await run_in_thread(self._slot_table.expire, ids) if self._slot_table is not None else ()
        for directory_id, names in held:
            refreshed.names.setdefault(directory_id, []).extend(names)
            refreshed.count += len(names)

    def _find(self, path: bytes, refreshed: Refreshed) -> Node | None:
        """What is known to be there. Its name is past its time, and so is one on the way that is known not to exist."""
        node, links = self._nodes.root, 0
        parts = [name for name in path.split(b"/") if name]
        for depth, name in enumerate(parts, 1):
            dentry = self._names.remembered(node, name)
            is_last = depth == len(parts)
            if is_last or dentry is None or dentry.node is None:
                refreshed.add(node, [name])
            if dentry is None:
                return None
            if is_last or dentry.node is None:
                _expire_name(dentry)
                refreshed.count += 1
            if dentry.node is None:
                return None
            node = dentry.node
            links += is_link(node)
        refreshed.leads_on = links > 0
        return node

    async def _directories(self, top: Node) -> list[Node]:
        """Those that are known at and below `top`."""
        found: list[Node] = [top] if top.children is not None else []
        looked = 0
        for directory in found:  # which grows
            for dentry in list((directory.children or {}).values()):
                if dentry.node is not None and dentry.node.children is not None:
                    found.append(dentry.node)
                looked += 1
                if looked % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        return found

    async def _names_in(self, directory: Node, refreshed: Refreshed) -> None:
        for work, dentry in enumerate(list((directory.children or {}).values()), 1):
            node = dentry.node
            _expire_name(dentry)
            refreshed.count += 1
            if node is None or node.lookups:
                refreshed.add(directory, [dentry.name])
            if node is not None and node.children is None:
                expire(node)
                expire_answers(node)
            if work % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()


def _expire_name(dentry: Dentry) -> None:
    dentry.expires_s = float("-inf")
