"""Owners: which node of the job stages a chunk, asking it before the source, and whose turn the source is.

Joins `peers` to nodes and staged files. A part of the source that must not be shared (another file system below it
that may differ between nodes) is everybody's own. Never raises: where a peer fails, the source is next.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.namespace import Node
from hfs.mountd.peers import JobPeers, PeerAnswer
from hfs.mountd.source import Source
from hfs.policies.cluster.stagger import Place, Stagger
from hfs.policies.geometry import Extent

_MAX_TOLD = 64
"""Files of which it is remembered what their owners were told: half a megabyte each at most."""


class Owners:
    """Event loop only. `reads_a_file`: chunks of one file that this node reads from the source at a time."""

    def __init__(self, peers: JobPeers | None, source: Source, *, reads_a_file: int) -> None:
        self._peers = peers
        self._source = source
        self._stagger = Stagger(reads_a_file)
        self._waiting: dict[Place, trio.Event] = {}
        self._told: OrderedDict[Version, set[int]] = OrderedDict()

    def asks(self, path: bytes, index: int, *, in_turn: bool = False) -> bool:
        """Whether another node of the job is asked for a chunk before the source: its owner, or who owned it before.

        `in_turn`: it is for a node that has asked this one, so that its owner is not.
        """
        if self._peers is None or self._source.file_systems.is_passing(path):
            return False
        owners = self._peers.owners
        return owners.asked_first(path, index) is not None and (not in_turn or owners.owned_here(path, index))

    def caches_locally(self, path: bytes, index: int) -> bool:
        """Whether a chunk is to be staged on this node, and not only on its owner."""
        if self._peers is None or self._source.file_systems.is_passing(path):
            return True
        return self._peers.owners.caches_locally(path, index)

    def is_kept(self, path: bytes, index: int) -> bool:
        """Whether any node of the job is to stage a chunk: all caches together may have no room for it."""
        if self._peers is None or self._source.file_systems.is_passing(path):
            return True
        return self._peers.owners.is_kept(path, index)

    async def have_staged(self, node: Node, file: StagedFile, index: int) -> bool:
        """Have its owner stage a chunk. False if that could not be."""
        if self._peers is None:
            return False
        return await self._peers.have_staged(node.path, file.version, file.chunk_bytes, file.chunk(index))

    async def tell(self, node: Node, file: StagedFile, index: int) -> None:
        """As `have_staged`, once for each chunk: a fill comes by again and again."""
        told = self._told.setdefault(file.version, set())
        if len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        if index not in told and await self.have_staged(node, file, index):
            told.add(index)

    async def fetch(
        self, node: Node, file: StagedFile, extent: Extent, into: memoryview, *, here_only: bool = False
    ) -> PeerAnswer:
        """Fill `into` with `extent`, which lies in one chunk, from the node that is asked for it.

        `here_only`: only if that has it already.
        """
        if self._peers is None or not self.asks(node.path, extent.start // file.chunk_bytes):
            return PeerAnswer.MISS
        return await self._peers.fetch(node.path, file.version, file.chunk_bytes, extent, into, here_only=here_only)

    def buffer_room(self, node: Node, index: int, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """To be entered before memory is taken that a peer may fill."""
        if self._peers is not None and self.asks(node.path, index):
            return self._peers.room(size, urgent=urgent)
        return contextlib.nullcontext()

    @contextlib.asynccontextmanager
    async def read_slot(
        self, node: Node, version: Version, index: int, size: int, *, urgent: bool
    ) -> AsyncIterator[None]:
        """To be entered around a read of `size` bytes of chunk `index` from the source, when it has its buffer.

        It waits while enough others read this file: on this node (policies/cluster/stagger.py), and on other nodes.
        """
        place = self._stagger.enter(version, index, urgent=urgent)
        try:
            if not place.may:
                event = self._waiting[place] = trio.Event()
                await event.wait()
            if self._peers is not None and size < node.attributes.size:  # one read of a small file is in order
                async with self._peers.read_slot(node.path, index, urgent=urgent):
                    yield
            else:
                yield
        finally:
            self._waiting.pop(place, None)
            following = self._stagger.leave(place)
            if following is not None:
                self._waiting[following].set()
