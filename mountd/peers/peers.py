"""Peers: the daemons of the job's other nodes, from which a chunk may come instead of from the source.

`fetcher` asks them after staging and before the source. They can only make it faster: whatever ails a peer, the answer
is "not from here", and the source is next. `NoPeers` is one node alone; `peers_job.JobPeers` is the real thing, over
MPI (`peers.mpi`) or, in tests, a fake network.
"""
# ruff: noqa: ARG002 - one node alone has no use for what it is asked

from __future__ import annotations

import enum
import os
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

import xxhash

from mountd.base.version import Version
from policies.geometry import Extent

__all__ = ["NoPeers", "PeerAnswer", "Peers"]


class PeerAnswer(enum.Enum):
    """How asking the peers has ended."""

    HIT = enum.auto()
    MISS = enum.auto()
    """The source is next."""
    BUFFER_IN_USE = enum.auto()
    """The source is next, and it must not use the buffer: a peer may still write to it."""


class Peers(Protocol):
    """Event loop only."""

    @property
    def active(self) -> bool:
        """False where there is nobody to ask: then nothing else needs to be called."""

    def keeps(self, path: bytes, index: int) -> bool:
        """Whether this node stages chunk `index` of the file at `path`; the others leave it to its home."""

    def is_elsewhere(self, path: bytes, index: int) -> bool:
        """Whether another node is home of it, and is to be asked."""

    def room(self, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """Waits until a buffer of so many bytes may be taken to be filled by a peer.

        Only part of the memory may wait for peers: their answers need memory there, and what they wait for may be ours.
        """

    async def fetch(
        self,
        path: bytes,
        version: Version,
        chunk_bytes: int,
        extent: Extent,
        into: memoryview,
        *,
        here_only: bool = False,
    ) -> PeerAnswer:
        """Fill `into[:extent.size]` with `extent`, which lies in one chunk, from its home. Never raises.

        `here_only`: not if the home would have to ask the source for it.
        """

    async def have_staged(self, path: bytes, version: Version, chunk_bytes: int, extent: Extent) -> bool:
        """Have its home stage a chunk, and wait for it. False if that could not be. Never raises."""

    def turn(self, path: bytes, index: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """Wait until this node may read a chunk of a large file from the source (`peers.read_slots`). Never fails."""

    def directory(self) -> dict[str, object]:
        """What is needed to compute homes: see `protocol.Directory`."""

    async def cluster(self, own: dict[str, int]) -> list[dict[str, object]]:
        """All nodes, as `protocol.Cluster` says; `own`: the figures of this one."""

    def shown(self) -> dict[str, object]:
        """For `hfs status`."""


class NoPeers:
    """One node alone; `reason` says why, for people."""

    active = False

    def __init__(self, reason: str, chunk_bytes: int = 0, *, wanted: bool = False) -> None:
        """`wanted`: peers were asked for."""
        self._reason = reason
        self._chunk_bytes = chunk_bytes
        self._wanted = wanted

    def keeps(self, path: bytes, index: int) -> bool:
        """Everything."""
        return True

    def is_elsewhere(self, path: bytes, index: int) -> bool:
        """Nothing."""
        return False

    def room(self, size: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """At once."""
        return nullcontext()

    async def fetch(
        self,
        path: bytes,
        version: Version,
        chunk_bytes: int,
        extent: Extent,
        into: memoryview,
        *,
        here_only: bool = False,
    ) -> PeerAnswer:
        """From nowhere."""
        return PeerAnswer.MISS

    async def have_staged(self, path: bytes, version: Version, chunk_bytes: int, extent: Extent) -> bool:
        """By nobody."""
        return False

    def turn(self, path: bytes, index: int, *, urgent: bool) -> AbstractAsyncContextManager[None]:
        """At once."""
        return nullcontext()

    def directory(self) -> dict[str, object]:
        """One node."""
        name = os.uname().nodename
        return {
            "nodes": [name],
            "hashes": [xxhash.xxh3_64_intdigest(os.fsencode(name))],
            "weights": [1.0],
            "node": 0,
            "placement": "replicate",
            "chunk_bytes": self._chunk_bytes,
            "gone": [],
            **({"alone": self._reason} if self._wanted else {}),
        }

    async def cluster(self, own: dict[str, int]) -> list[dict[str, object]]:
        """This one."""
        return [{"node": os.uname().nodename, "figures": own}]

    def shown(self) -> dict[str, object]:
        """Why it is alone."""
        return {"mode": "none", "reason": self._reason}
