"""What is simulated: pieces of a data set, the epochs that read them, the rates, and the settings of a mount.

A *piece* is what is fetched and staged as one: a small file, or a chunk of a large one. Data only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hfs.policies.cache.eviction import DEFAULT, POLICIES

HINTED = "hinted"
WAYS = (*POLICIES, HINTED)
"""The evictions of a mount, and the default one with the orders of the epochs told ahead."""

MANY = 10_000
"""Pieces that are simulated one by one. Of more a part stands for all (Waldspurger et al., 2015, have shown that a
thousandth does for LRU): a point in hits at most, and some seconds a simulation."""


_MANY_DIRECTORIES = 500


@dataclass(frozen=True)
class Pieces:
    """Arrays of one length."""

    sizes: NDArray[np.int64]
    """Bytes, at least 1."""
    files: NDArray[np.int64]
    """The number of its file; the pieces of a file are evicted together."""
    directories: NDArray[np.int64]
    """Of a small file: a number of its directory; -1 of a chunk of a large one, which has no siblings."""
    names: Sequence[bytes]
    """Of small files, within their directories."""
    keys: NDArray[np.uint64]
    """By which owner nodes are placed (`policies.cluster.placement.keys`)."""

    def __len__(self) -> int:
        return len(self.sizes)

    def some(self, kept: NDArray[np.bool_], epochs: Sequence[Epoch]) -> tuple[Pieces, list[Epoch]]:
        """Only these, with all that is read of them."""
        names = [self.names[i] for i in np.flatnonzero(kept).tolist()]
        part = Pieces(self.sizes[kept], self.files[kept], self.directories[kept], names, self.keys[kept])
        numbers = np.cumsum(kept) - 1
        found = []
        for epoch in epochs:
            reads = kept[epoch.pieces]
            found.append(Epoch(numbers[epoch.pieces[reads]], epoch.sizes[reads]))
        return part, found


@dataclass(frozen=True)
class Epoch:
    """The reads of one epoch, in their order: which piece, and how many bytes of it."""

    pieces: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def part(self, node: int, nodes: int) -> Epoch:
        """The share of one of several nodes."""
        return Epoch(self.pieces[node::nodes], self.sizes[node::nodes])


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds, and bytes a second; `math.inf` for what costs nothing."""

    latency_s: float
    """What a fetch from the source takes besides its bytes: of a small file its look-up, open and read."""
    source_rate: float = math.inf
    """Of all fetches of all nodes together."""
    look_s: float = 0.0
    """What it takes to ask the source whether a file is still what it was."""
    compute_s: float = 0.0
    """From when its bytes are there until the reader comes to its next read."""
    peer_rate: float = math.inf
    """From other nodes, all nodes together."""
    peer_s: float = 0.0
    """And what one question takes."""

    def slower(self, factor: float) -> Rates:
        """All of it takes so many times as long."""
        return replace(
            self,
            **{name: getattr(self, name) * factor for name in self.__slots__ if name.endswith("_s")},
            **{name: getattr(self, name) / factor for name in self.__slots__ if name.endswith("_rate")},
        )


@dataclass(frozen=True, slots=True)
class SimulatedMount:
    """One daemon of the job, all alike."""

    cache_bytes: int
    way: str = DEFAULT
    nodes: int = 1
    readers: int = 1
    """Of each node: threads or processes that read."""
    ttl_s: float = 60.0
    siblings_bytes: int = 256 * 1000**2
    buffer_bytes: int = 128 << 20
    fetches_ahead: int = 32
    """At a time."""
    part: float = 1.0
    """Of the data that stands for all of it; `cache_bytes` and `siblings_bytes` are of this part."""

    @property
    def eviction(self) -> str:
        """Name of the policy."""
        return DEFAULT if self.way == HINTED else self.way


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """What an epoch has come to, all nodes together."""

    seconds: float
    reads: int
    read_bytes: int
    source_reads: int
    source_bytes: int
    peer_bytes: int
    staged_bytes: int
    """At its end, of all caches."""

    def of_all(self, epoch: Epoch) -> EpochOutcome:
        """Of the whole epoch of which this is a part, in the same time."""
        factor = float(epoch.sizes.sum()) / max(1, self.read_bytes)
        counts = {name: round(value * factor) for name, value in asdict(self).items() if name != "seconds"}
        return replace(self, **{**counts, "reads": len(epoch.pieces)})

    @property
    def hit_share(self) -> float:
        """The part of what was read that the source did not have to give in this epoch, at most 1; less than 0 where it
        gave more than was read, such as what was fetched ahead and evicted before its use."""
        return 1 - self.source_bytes / self.read_bytes if self.read_bytes else 0.0


def thinned(pieces: Pieces, epochs: Sequence[Epoch], many: int = MANY) -> tuple[Pieces, list[Epoch], float]:
    """A part of the files, by chance but always the same, with all that is read of them; and how large a part it is.

    The caches must be made as much smaller, and everything as much slower, so that an epoch takes its time. Of many
    directories whole ones are taken: in each then goes on what went on before.
    """
    if len(pieces) <= many:
        return pieces, list(epochs), 1.0
    are_many = pieces.directories.min() >= 0 and len(np.unique(pieces.directories)) >= _MANY_DIRECTORIES
    groups = pieces.directories if are_many else pieces.files
    count = int(groups.max()) + 1
    drawn = np.random.default_rng(0).permutation(count) < max(1.0, count * many / len(pieces))
    kept = drawn[groups]
    if not kept.any():
        return pieces, list(epochs), 1.0
    return *pieces.some(kept, epochs), float(pieces.sizes[kept].sum() / pieces.sizes.sum())
