"""What a node knows of all nodes, for people, launchers and samplers: who they are, what they own, how they are.

`JobView` is that of a job, `LoneView` that of a node without one; both answer alike. Event loop only.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

import numpy as np
import trio
import xxhash

from hfs.mountd.peers.asking import SilentPeers
from hfs.mountd.peers.joining import OwnerTable
from hfs.mountd.peers.messages import Figures, Question, Transport, encode

_FIGURES_S = 5.0
"""A node answers from memory, whatever it waits for itself."""


@dataclass
class LoneView:
    """One node alone; `reason` says why, for people. `wanted`: peers were asked for."""

    _reason: str
    _chunk_bytes: int
    _: KW_ONLY
    wanted: bool

    def directory(self) -> dict[str, object]:
        """What is needed to compute owners, as `protocol.Directory` says: of one node, which owns everything."""
        name = os.uname().nodename
        return {
            "nodes": [name],
            "hashes": [xxhash.xxh3_64_intdigest(os.fsencode(name))],
            "weights": [1.0],
            "data": 0.0,
            "node": 0,
            "placement": "replicate",
            "chunk_bytes": self._chunk_bytes,
            "gone": [],
            **({"alone": self._reason} if self.wanted else {}),
        }

    async def figures(self, own: dict[str, int]) -> list[dict[str, object]]:
        """This one."""
        return [{"node": os.uname().nodename, "figures": own}]

    def shown(self) -> dict[str, object]:
        """Why it is alone."""
        return {"mode": "none", "reason": self._reason}


class JobView:
    """All nodes of a job, which are asked for their figures."""

    def __init__(self, transport: Transport, owners: OwnerTable, silent: SilentPeers, chunk_bytes: int) -> None:
        self._transport, self._owners, self._silent, self._chunk_bytes = transport, owners, silent, chunk_bytes
        self._asked: dict[int, tuple[trio.Event, dict[int, dict[str, int]]]] = {}
        """Number of a question -> whether more has come, and the figures by node."""
        self._question = 0
        self.links: Counter[str] = Counter()
        """Bytes that have come from each node, and microseconds of the requests for them, by name."""

    def directory(self) -> dict[str, object]:
        """The nodes as all have agreed on them, and which have gone since; where they come and go, those that are here,
        in one order for all."""
        agreed, numbers = self._owners.agreed, list(range(self._transport.count))
        if self._transport.kind == "zeromq":
            numbers = sorted(set(numbers) - self._owners.gone, key=agreed.names.__getitem__)
        return {
            "nodes": [agreed.names[number] for number in numbers],
            "hashes": [agreed.nodes.hashes[number] for number in numbers],
            "weights": [agreed.nodes.weights[number] for number in numbers],
            "data": agreed.nodes.data,
            "node": numbers.index(self._owners.number),
            "placement": agreed.placement,
            "chunk_bytes": self._chunk_bytes,
            "gone": sorted(self._owners.gone.intersection(numbers)),
        }

    async def figures(self, own: dict[str, int]) -> list[dict[str, object]]:
        """An entry for each node, as `protocol.Cluster` says: its figures (`own` of this one), or why there are none.
        Takes 5 s at most."""
        me, gone = self._owners.number, self._owners.gone
        others = set(range(self._transport.count)) - {me} - gone
        self._question += 1
        number, more, found = self._question, trio.Event(), {me: self.said(own)}
        self._asked[number] = more, found
        for node in others:
            self._transport.send_nowait(node, encode(Question(number)))
        try:
            with trio.move_on_after(_FIGURES_S):
                while others - found.keys() - gone:
                    await more.wait()
                    more = trio.Event()
                    self._asked[number] = more, found
        finally:
            del self._asked[number]
        return [
            {"node": name, "figures": found[node]}
            if node in found
            else {"node": name, "error": "gone" if node in gone else "no answer"}
            for node, name in enumerate(self._owners.agreed.names)
        ]

    def said(self, own: dict[str, int]) -> dict[str, int]:
        """`own`, and what only the peers know: this node's part of the data, in millionths, and its `links`."""
        return {**own, "share": int(1e6 * np.mean(self._owners.table == self._owners.number)), **self.links}

    def shown(self) -> dict[str, object]:
        """Who is there, who has gone, and who is left alone for a while."""
        names = self._owners.agreed.names
        return {
            "mode": self._transport.kind,
            "node": names[self._owners.number],
            "nodes": len(names),
            "placement": self._owners.agreed.placement,
            "gone": [names[node] for node in sorted(self._owners.gone)],
            "resting": [name for node, name in enumerate(names) if self._silent.rests(node)],
        }

    def heard(self, sender: int, message: Figures) -> None:
        """Figures of another node have come."""
        if message.request in self._asked:
            more, found = self._asked[message.request]
            found[sender] = message.figures
            more.set()


ClusterView: TypeAlias = LoneView | JobView
