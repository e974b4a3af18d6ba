"""Placement: which node of a job owns a chunk or a small file, so that nobody has to ask where it is.

Rendezvous hashing (Thaler and Ravishankar, 1998): each node draws a number for each key, weighted by its capacity, and
the highest draw owns it. So every daemon and every training job computes the same owners from the same list of nodes
(the directory of locality-aware loading: Yang and Cong, 2019), and when a node is lost only its keys move. Keys are
drawn for in 262 144 slots and not one by one: a million keys of 1 024 nodes are a look-up each, and the largest node of
8 has less than 2 % more than its share, of 64 less than 5 %. Of 1 024 it would have 20 %: with more nodes than 64 each
has a hundredth more than its share at most, and what is beyond goes to the next highest draw that has room (consistent
hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2018). Then some keys more than those of the lost node
move, 2 % at 1 024.

Pure; hashes no paths: a key starts as the 64-bit xxh3 of a path relative to the root of the mount.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Placement = Literal["partition", "replicate"]
"""partition: each node stages its share, and reads the rest from its peers. replicate: each stages all, which its owner
has read from the source."""

_SLOT_BITS = 18
_SLOTS = 1 << _SLOT_BITS
_BLOCK_DRAWS = 1 << 15
"""So many draws at a time stay in the processor's cache: four times as fast as a megabyte of them."""

_UNBOUNDED_NODES = 64
_MOST_SHARE = 1.01

NOBODY = -1
"""No node has room for anything. Below it: what all caches together have no room for; its owner, if it had one, is
`would_own` of the number."""

_Draws = NDArray[np.uint64] | NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def keys(path_hashes: NDArray[np.uint64], indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 [n]: the keys of chunks `indexes` (int64 [n], 0 for a whole small file) of files of these hashes."""
    with np.errstate(over="ignore"):
        return _mixed(path_hashes + _GOLDEN * (indexes.astype(np.uint64) + np.uint64(1)))


def choose(data_bytes: int, capacities: Sequence[int]) -> Placement:
    """`replicate` where every node that stages at all has room for all of the data, else `partition`."""
    with_room = [capacity for capacity in capacities if capacity > 0]
    return "replicate" if with_room and min(with_room) >= data_bytes else "partition"


def would_own(number: int) -> int:
    """The owner that something of this number in a table has, or would have if the caches were larger."""
    return NOBODY - 1 - number if number < NOBODY else number


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of each depends on all bits of it: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = values >> np.uint64(30)
    for shift, factor in zip((27, 31), _FACTORS, strict=True):
        mixed ^= values
        mixed *= np.uint64(factor)
        values = mixed
        mixed = values >> np.uint64(shift)
    mixed ^= values
    return mixed


@dataclass(frozen=True)
class Nodes:
    """The nodes of a job, as agreed when it starts: a hash of each one's name, all different, and the weight of each.

    A weight is its capacity in any unit, 0 for a node that stages nothing. `data`: all that there is to be staged, in
    the same unit; where those that are here have room for a part of it only (alpha of Yang and Cong), the rest is
    staged by nobody. Fewer nodes stage a part of what more do. Raises ValueError for what does not fit.
    """

    hashes: tuple[int, ...]
    weights: tuple[float, ...]
    data: float = 0.0

    def __post_init__(self) -> None:
        if not self.hashes or len(self.hashes) != len(self.weights):
            raise ValueError(f"{len(self.hashes)} nodes with {len(self.weights)} weights")
        if len(set(self.hashes)) != len(self.hashes):
            raise ValueError("two nodes of the same name")
        if not all(weight >= 0 and math.isfinite(weight) for weight in self.weights):
            raise ValueError("a weight that is negative or no number")
        if not 0 <= self.data < math.inf:
            raise ValueError(f"data of a weight of {self.data}")

    def table(self, gone: Collection[int] = (), at: NDArray[np.intp] | None = None) -> NDArray[np.int32]:
        """int32 [slots]: the owner of each slot, a number in [0, len(hashes)), or NOBODY or less; none of `gone`.
        `at`: of these slots alone, each where its highest draw is, however many that gives to one."""
        members = [i for i, weight in enumerate(self.weights) if weight > 0 and i not in gone]
        slots = _mixed(np.arange(1, _SLOTS + 1, dtype=np.uint64) * _GOLDEN)[slice(None) if at is None else at]
        if not members:
            return np.full(len(slots), NOBODY, np.int32)
        # Draws are compared as 64-bit numbers u; -w / ln(u) of weights that differ orders them by weight (Resch).
        salts = _mixed(np.array([self.hashes[i] % (1 << 64) for i in members], np.uint64))[:, None]
        weights = np.array([self.weights[i] for i in members])[:, None]
        equal = bool((weights == weights[0]).all())
        best = np.empty(len(slots), np.intp)
        highest: _Draws = np.empty(len(slots), np.uint64) if equal else np.empty(len(slots))

        def drawn(some: NDArray[np.uint64]) -> _Draws:
            draws = _mixed(some[None, :] ^ salts)
            if equal:
                return draws
            unit = (draws.astype(np.float64) + 0.5) * 2.0**-64
            return np.asarray(-weights / np.log(np.minimum(unit, 1 - 2.0**-53)))

        step = max(1, _BLOCK_DRAWS // len(members))
        for start in range(0, len(slots), step):
            draws = drawn(slots[start : start + step])
            best[start : start + step] = draws.argmax(axis=0)
            highest[start : start + step] = draws.max(axis=0)
        kept = (_mixed(slots) >> np.uint64(11)) * 2.0**-53 * self.data < weights.sum()
        if len(members) > _UNBOUNDED_NODES and at is None:
            room = np.ceil(_MOST_SHARE * _SLOTS * weights[:, 0] / weights.sum()).astype(np.intp)
            _bound(best, highest, room, lambda some: drawn(slots[some]))
        found = np.array(members, np.int32)[best]
        return np.where(kept, found, NOBODY - 1 - found)


def _bound(
    best: NDArray[np.intp],
    highest: _Draws,
    room: NDArray[np.intp],
    drawn: Callable[[NDArray[np.intp]], _Draws],
) -> None:
    """Have no member more slots than it has room for: each keeps its highest draws, others go to the next highest with
    room. `best`, `highest`: of each slot, `best` changed in place; `drawn(slots)`: [members, slots]."""
    room, out = room.copy(), np.arange(len(best))
    wanted = best
    while len(out):
        order = np.lexsort((-highest.astype(np.float64), wanted))  # by member, of each the highest draws first
        of = wanted[order]
        rank = np.arange(len(of)) - np.searchsorted(of, of)
        takes = rank < room[of]
        best[out[order[takes]]] = of[takes]
        room -= np.bincount(of[takes], minlength=len(room))
        out = out[order[~takes]]
        draws = drawn(out)
        draws[room <= 0] = 0
        wanted, highest = draws.argmax(axis=0), draws.max(axis=0)


def owners(table: NDArray[np.int32], wanted: NDArray[np.uint64]) -> NDArray[np.int32]:
    """int32 [n]: the owner of each key, or NOBODY or less, by a table of `Nodes.table`."""
    return table[(wanted >> np.uint64(64 - _SLOT_BITS)).astype(np.intp)]


def owner(table: NDArray[np.int32], path_hash: int, index: int) -> int:
    """The owner of one chunk, or of a small file: 2 us, where arrays of one number take 23."""
    key = (path_hash + int(_GOLDEN) * (index + 1)) % (1 << 64)
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        key = (key ^ key >> shift) * factor % (1 << 64)
    return int(table[(key ^ key >> 31) >> (64 - _SLOT_BITS)])
