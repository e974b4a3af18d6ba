"""How long a node's attributes are good for, and asking for them again.

A node is asked for by its names: a file that still has one of them is the version that it was. The kernel is never told
to remember longer than we would. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import SourceTimeout, VersionChanged
from hfs.mountd.core.printable import shown_path
from hfs.mountd.namespace.asking import Asking
from hfs.mountd.namespace.lookups import Lookups
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.silence import Silence
from hfs.mountd.source import MetadataReader

_FRESH_S = 0.5
"""What the source said so recently an open does not ask again: its own lookup has just asked. Asked again, a file that
somebody is writing could not be opened at all without a time-to-live, since each answer is another version."""

_LONGEST_S = 86_400.0
"""What the kernel is told where nothing ever goes out of date."""


class Freshness:
    """Whether nodes are what they were. `ttl_s`: math.inf for a source that never changes."""

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
