"""Lossless code for volumes of counts: keys of one or two bytes into tables of the distinct groups of four counts.

From Ibrahim & Oliker, "Preprocessing pipeline optimization for scientific deep learning workloads", section V.B: the
particle counts of one voxel at four redshifts are coupled, so of the possible groups of four only some tens of
thousands occur in a sample. A group of four counts (16 bits each) is an entry of 8 bytes in a table; a voxel is a key.
What is done to each count (the logarithm) is done to the table before the keys are looked up.

The groups of an array lie in the order of its values. They are cut into blocks with a table each, of at most 128^3
groups and 2^16 distinct ones; a block whose groups hardly repeat has its groups as they are, in the place of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hfs.policies.codecs import Unencodable

GROUP = 4
"""Counts of a group: the four redshifts."""

MOST_GROUPS = 128**3
"""Groups of a block: the sample that the paper's statistics are of. Larger volumes have more distinct groups."""

MOST_KEYS = 2**16

PLAIN = 0
"""Key size of a block without keys: its entries are its groups."""

_AT_ONCE = 1 << 14
"""Keys that are looked up at a time: NumPy widens them to 8 bytes first, and so they stay in the processor's cache.
With 2^21 at once decoding took twice as long."""


@dataclass(frozen=True)
class Tables:
    """An encoded array.

    entries      uint16, (entries, 4): the tables of all blocks one after the other; within one, most frequent first
    entry_counts uint32, (blocks,): entries of each block
    group_counts uint32, (blocks,): groups of each block
    key_bytes    uint8, (blocks,): 1, 2, or PLAIN
    keys8        uint8: keys of the blocks whose key_bytes is 1, one after the other
    keys16       uint16: those of the blocks whose key_bytes is 2
    """

    entries: npt.NDArray[np.uint16]
    entry_counts: npt.NDArray[np.uint32]
    group_counts: npt.NDArray[np.uint32]
    key_bytes: npt.NDArray[np.uint8]
    keys8: npt.NDArray[np.uint8]
    keys16: npt.NDArray[np.uint16]

    @property
    def groups(self) -> int:
        return int(self.group_counts.sum(dtype=np.uint64))

    def check(self) -> None:
        """Raises Unencodable where a key or a count leads outside. After it, decoding cannot."""
        counts = {len(self.entry_counts), len(self.group_counts), len(self.key_bytes)}
        entries, groups = self.entry_counts.astype(np.int64), self.group_counts.astype(np.int64)
        plain, one, two = (self.key_bytes == size for size in (PLAIN, 1, 2))
        if not (
            len(counts) == 1
            and bool((plain | one | two).all())
            and self.entries.shape == (int(entries.sum()), GROUP)
            and bool((entries[plain] == groups[plain]).all())
            and len(self.keys8) == int(groups[one].sum())
            and len(self.keys16) == int(groups[two].sum())
        ):
            raise Unencodable("its blocks, tables and keys do not belong together")
        for _, table, keys in blocks(self):
            if keys is not None and len(keys) and int(keys.max()) >= table.stop - table.start:
                raise Unencodable("a key is larger than its table")


def encode(counts: npt.NDArray[Any]) -> Tables:
    """Of integers from 0 to 65 535, of any shape whose last axis is a multiple of four. Raises Unencodable."""
    if counts.dtype.kind not in "iu":
        raise Unencodable(f"counts are integers, and these are {counts.dtype}")
    if counts.ndim == 0 or counts.shape[-1] % GROUP or not counts.size:
        raise Unencodable(f"groups of {GROUP} counts on the last axis are needed, and the shape is {counts.shape}")
    least, most = int(counts.min()), int(counts.max())
    if least < 0:
        raise Unencodable(f"there are negative counts ({least}): these are no counts, or a type too narrow for them")
    if most > 0xFFFF:
        raise Unencodable(f"there are counts up to {most}, and 65535 is the largest that 16 bits hold")
    groups = np.ascontiguousarray(counts, np.uint16).reshape(-1, GROUP).view(np.uint64).ravel()
    tables: list[npt.NDArray[np.uint64]] = []
    keys: dict[int, list[npt.NDArray[Any]]] = {1: [], 2: []}
    sizes: list[tuple[int, int, int]] = []
    todo = [groups[start : start + MOST_GROUPS] for start in range(0, len(groups), MOST_GROUPS)][::-1]
    while todo:
        block = todo.pop()
        found, inverse, times = np.unique(block, return_inverse=True, return_counts=True)
        width = 1 if len(found) <= 256 else 2
        if len(found) > MOST_KEYS:
            # What is stored plainly costs 8 bytes a group: with so many groups alone, halves can hardly do better.
            if 8 * len(found) + 2 * len(block) < 8 * len(block):
                middle = (len(block) + 1) // 2
                todo += [block[middle:], block[:middle]]
                continue
            width = PLAIN
        if 8 * len(found) + width * len(block) >= 8 * len(block):
            width = PLAIN
        if width == PLAIN:
            found = block
        else:
            # The frequent entries share a few cache lines: looking up takes a quarter less than in sorted order.
            order = np.argsort(-times, kind="stable")
            place = np.empty(len(order), np.uint8 if width == 1 else np.uint16)
            place[order] = np.arange(len(order))
            found = found[order]
            keys[width].append(place[inverse])
        tables.append(found)
        sizes.append((len(found), len(block), width))
    entry_counts, group_counts, key_bytes = np.array(sizes, np.uint32).T
    return Tables(
        np.concatenate(tables).view(np.uint16).reshape(-1, GROUP),
        entry_counts.copy(),
        group_counts.copy(),
        key_bytes.astype(np.uint8),
        np.concatenate([np.empty(0, np.uint8), *keys[1]]),
        np.concatenate([np.empty(0, np.uint16), *keys[2]]),
    )


def decode(
    tables: Tables,
    values: npt.NDArray[Any],
    out: npt.NDArray[Any],
    first: int,
    last: int,
    channels: int = GROUP,
    *,
    channels_first: bool = False,
) -> None:
    """Write the groups [first, last) into their places of `out`.

    values  (entries, channels of a group): what stands for each entry of `tables.entries`, of the type of `out`
    out     all of the output, contiguous: (voxels, channels), or (channels, voxels) with `channels_first`

    `first` and `last` are multiples of channels / 4, so that a voxel is written by one caller only. `tables` must have
    passed `check`.
    """
    a_voxel = channels // GROUP
    columns = [np.ascontiguousarray(values[:, column]) for column in range(GROUP)] if channels_first else []
    rows = out.reshape(-1, GROUP) if not channels_first else out
    for begin, table, keys in blocks(tables):
        count = table.stop - table.start if keys is None else len(keys)
        for start in range(max(first, begin), min(last, begin + count), _AT_ONCE * a_voxel):
            stop = min(start + _AT_ONCE * a_voxel, last, begin + count)
            if not channels_first:
                if keys is None:
                    rows[start:stop] = values[table.start + start - begin : table.start + stop - begin]
                else:
                    # mode: np.take checks keys one by one otherwise, and copies what it finds twice
                    np.take(values[table], keys[start - begin : stop - begin], 0, rows[start:stop], "clip")
                continue
            for group in range(a_voxel):
                # The first of these groups that is this one of its voxel.
                at = start + (group - start) % a_voxel
                voxels = slice(at // a_voxel, (stop - 1 - group) // a_voxel + 1)
                part = slice(at - begin, stop - begin, a_voxel)
                places = None if keys is None else keys[part].astype(np.intp)  # once for the four
                for column, of in enumerate(columns):
                    line = rows[group * GROUP + column, voxels]
                    if places is None:
                        line[...] = of[table][part]
                    else:
                        np.take(of[table], places, 0, line, "clip")


def blocks(tables: Tables) -> list[tuple[int, slice, npt.NDArray[Any] | None]]:
    """First group, entries and keys of each block; no keys where the entries are the groups."""
    found: list[tuple[int, slice, npt.NDArray[Any] | None]] = []
    at = entry = 0
    used = {1: 0, 2: 0}
    for entries, groups, width in zip(
        tables.entry_counts.tolist(), tables.group_counts.tolist(), tables.key_bytes.tolist(), strict=True
    ):
        keys: npt.NDArray[Any] | None = None
        if width != PLAIN:
            keys = (tables.keys8 if width == 1 else tables.keys16)[used[width] : used[width] + groups]
            used[width] += groups
        found.append((at, slice(entry, entry + entries), keys))
        at, entry = at + groups, entry + entries
    return found
