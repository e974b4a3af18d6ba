"""Joining: the daemons of a job agree on who they are, or all refuse with the difference that keeps them apart; and
what follows from that: which node owns a chunk or a small file.

Every node has the same `NodeInfo` of all, so every node comes to the same answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from hfs.mountd.core.errors import ConfigError
from hfs.mountd.peers.messages import NodeInfo
from hfs.policies.cluster.placement import NOBODY, Nodes, Placement, choose, owner, would_own

_SAME: tuple[tuple[str, Callable[[NodeInfo], object], str], ...] = (
    ("the version of hfs", lambda info: info.hfs_version, "install the same release on all nodes"),
    ("the source", lambda info: info.source_id, "give all the same SOURCE, or its identity with --source-id"),
    ("the directory of the source", lambda info: info.root_inode, "give all the same SOURCE"),
    ("--as-user", lambda info: info.reader, "give all the same: they share what they have read"),
    ("--chunk", lambda info: info.chunk_bytes, "give all the same"),
    ("--placement", lambda info: info.placement, "give all the same"),
    ("-o stagger-job", lambda info: info.stagger_job, "give all the same"),
    ("-o peer-timeout", lambda info: info.peer_timeout_s, "give all the same"),
)
"""What must be the same, where `NodeInfo` has it, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """What this daemon may take and wait for, as it was configured."""

    buffer_bytes: int
    source_timeout_s: float
    """So long a request lasts at most, however often the owner asks for patience; 0: for ever."""
    peer_timeout_s: float
    stagger: int
    """Chunks of one file that each node reads from the source at a time."""
    stagger_job: int
    """Chunks of one file that all nodes together read from the source at a time."""

    @property
    def patience_s(self) -> float:
        """So often a node says that it is there, five times before it is taken for one that hangs."""
        return self.peer_timeout_s / 5


@dataclass(frozen=True)
class Agreed:
    """What all daemons of a job know of it."""

    names: tuple[str, ...]
    """One each, in the order of their numbers: its host, and a number where several are on one."""
    nodes: Nodes
    placement: Placement
    data_bytes: int | None = None
    """What all data takes in a cache; None: nobody has looked, or more than could be told."""
    is_under_way: bool = False
    """Some of them share already: what this node owns others may have."""

    def share_bytes(self, number: int) -> int | None:
        """How much of it node `number` would stage if it had room; None: see `data_bytes`."""
        weights = self.nodes.weights
        if self.data_bytes is None or self.placement == "replicate":
            return self.data_bytes
        return int(self.data_bytes * weights[number] / sum(weights)) if weights[number] else 0


def encode_info(info: NodeInfo) -> bytes:
    """As it is sent."""
    return msgspec.msgpack.encode(info)


def decode_infos(infos: Sequence[bytes]) -> list[NodeInfo]:
    """Those of all nodes. Raises ConfigError where one is not of this release."""
    found = []
    for number, data in enumerate(infos):
        try:
            found.append(msgspec.msgpack.decode(data, type=NodeInfo))
        except msgspec.DecodeError:
            raise ConfigError(
                f"peers: daemon {number} is of another release of hfs; install the same on all nodes"
            ) from None
    return found


def agree(infos: Sequence[NodeInfo]) -> Agreed:
    """What follows from those of all nodes, the same on every node. Raises ConfigError, with what differs and where."""
    names = _names([info.host for info in infos])
    faults = [
        f"peers: {name} cannot start: {info.fault}" for name, info in zip(names, infos, strict=True) if info.fault
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    for what, of, remedy in _SAME:
        values: dict[object, list[str]] = {}
        for name, info in zip(names, infos, strict=True):
            values.setdefault(of(info), []).append(name)
        if len(values) > 1:
            shown = "; ".join(f"{value} on {_some(nodes)}" for value, nodes in values.items())
            faults.append(f"peers: {what} differs: {shown}; {remedy}")
    if faults:
        raise ConfigError("\n".join(faults))
    capacities = [info.capacity_bytes for info in infos]
    # Of those that share already, which all say the same, else of whoever has looked.
    looked = [info for info in infos if info.settled] or infos
    data_bytes = max((info.data_bytes for info in looked if info.data_bytes is not None), default=None)
    wanted = next((info.settled for info in infos if info.settled), infos[0].placement)
    placement: Placement = "replicate" if wanted == "replicate" else "partition"
    if wanted == "auto" and data_bytes is not None:
        placement = choose(data_bytes, capacities)
    hashes = tuple(xxhash.xxh3_64_intdigest(os.fsencode(name)) for name in names)
    # Where each has all of it, or is to keep it encoded because it does not fit, nothing is left out for want of room.
    data = 0 if placement == "replicate" or any(info.encodes for info in infos) else data_bytes or 0
    nodes = Nodes(hashes, tuple(float(capacity) for capacity in capacities), float(data))
    return Agreed(names, nodes, placement, data_bytes, any(info.settled for info in infos))


def _names(hosts: Sequence[str]) -> tuple[str, ...]:
    count = Counter(hosts)
    seen: Counter[str] = Counter()
    names = []
    for host in hosts:
        names.append(host if count[host] == 1 else f"{host}#{seen[host]}")
        seen[host] += 1
    return tuple(names)


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


class OwnerTable:
    """Which node owns what, by what was agreed and who has come and gone since.

    The table is made anew, in a thread, when that changes; until then the old one holds, and what a lost node owned has
    no owner. Event loop only. `path`: relative to the root of the mount. `index`: of a chunk, 0 of a small file.
    """

    def __init__(self, agreed: Agreed, number: int, run_in_thread: Callable[..., Awaitable[Any]]) -> None:
        """`number`: of this node. `run_in_thread`: as trio.to_thread.run_sync."""
        self.agreed = agreed
        self.number = number
        self.gone: set[int] = set()
        """Nodes that were lost."""
        self._run_in_thread, self._is_renewing = run_in_thread, False
        self.table, self.asked = _tables(agreed.nodes, frozenset(), number, NOBODY if agreed.is_under_way else number)
        """int32 [slots], others after each change: as `policies.cluster.placement` says; and whom this node asks before
        the source: the owner, of what has only become its own who would own it without it, or itself for nobody."""

    def owner(self, path: bytes, index: int) -> int:
        """The node that stages chunk `index` of the file at `path`; NOBODY, or less for what no cache has room for."""
        found = owner(self.table, xxhash.xxh3_64_intdigest(path), index)
        return NOBODY if would_own(found) in self.gone else found  # the table is being made anew

    def asked_first(self, path: bytes, index: int) -> int | None:
        """The node that this one asks for it before the source, if there is one."""
        found = owner(self.asked, xxhash.xxh3_64_intdigest(path), index)
        return None if found in self.gone or found <= NOBODY or found == self.number else found

    def owned_here(self, path: bytes, index: int) -> bool:
        """Whether this node owns it."""
        return self.owner(path, index) == self.number

    def caches_locally(self, path: bytes, index: int) -> bool:
        """Whether this node stages it; else that is left to its owner, or no cache has room for it."""
        return self.agreed.placement == "replicate" or self.owner(path, index) in (self.number, NOBODY)

    def is_kept(self, path: bytes, index: int) -> bool:
        """Whether any node is to stage it."""
        return self.owner(path, index) >= NOBODY

    def lose(self, node: int) -> None:
        """A node has gone: what it owned belongs to others once the table is renewed, and to nobody until then."""
        self.gone.add(node)

    def admit(self, node: int, name: str, capacity_bytes: int) -> None:
        """A node has come, or come back: it owns its share once the table is renewed. `node`: known, or the next."""
        known, nodes = self.agreed.names, self.agreed.nodes
        hashes = (*nodes.hashes[:node], xxhash.xxh3_64_intdigest(os.fsencode(name)), *nodes.hashes[node + 1 :])
        weights = (*nodes.weights[:node], float(capacity_bytes), *nodes.weights[node + 1 :])
        names = (*known[:node], name, *known[node + 1 :])
        self.agreed = replace(self.agreed, names=names, nodes=Nodes(hashes, weights, nodes.data))
        self.gone.discard(node)

    async def renew(self) -> None:
        """Have the tables say so. While that is being done the next change is part of it."""
        if self._is_renewing:
            return
        self._is_renewing = True
        try:
            while True:
                nodes, gone = self.agreed.nodes, frozenset(self.gone)
                tables = await self._run_in_thread(_tables, nodes, gone, self.number, self.asked)
                if nodes is self.agreed.nodes and gone == self.gone:  # else there was one more change meanwhile
                    self.table, self.asked = tables
                    return
        finally:
            self._is_renewing = False  # also where it has failed: the next change has all of it


def _tables(nodes: Nodes, gone: frozenset[int], number: int, asked: NDArray[np.int32] | int) -> list[NDArray[np.int32]]:
    table = nodes.table(gone)
    new = np.flatnonzero((table == number) & (asked != number))
    without, now_asked = nodes.table(gone | {number}, new), table.copy()
    now_asked[new] = np.where(without <= NOBODY, number, without)
    return [table, now_asked]
