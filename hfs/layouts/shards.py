"""What the builders of all formats share: one layout of several files.

Never runs in a training job. A builder gives a `Shard` for each file: where its samples lie, in order. The samples of
the first file come first, then those of the second.

A sample without bytes (an empty record) is a sample with no extent: its index is kept, there is nothing to read for it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hfs.layouts.files import relative_names
from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile, opened
from hfs.mountd.wire.layout import LayoutError

_Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Shard:
    """Where the samples of one file lie. All arrays are one-dimensional."""

    path: str
    size: int
    mtime_ns: int
    offsets: _Ints
    """Of the extents, sample by sample."""
    sizes: _Ints
    """Bytes of each extent; 0 is allowed, and then there is no such extent in the layout."""
    counts: _Ints | None = None
    """Extents of each sample; None: one each."""
    keys: npt.NDArray[np.uint64] | None = None
    """XXH3-64 of the key of each sample, if they were asked for."""

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.offsets) if self.counts is None else len(self.counts)


def shards_of(paths: str | Sequence[str], shard: Callable[[SourceFile], Shard]) -> list[Shard]:
    """What `shard` finds in each file. Raises LayoutError where one cannot be read, or changes meanwhile."""
    found = []
    for path in [paths] if isinstance(paths, str) else paths:
        with opened(path) as file:
            found.append(shard(file))
    return found


def shard_of_arrays(
    file: SourceFile, kind: str, names: Sequence[str], parts: Sequence[tuple[_Ints, _Ints, _Ints]]
) -> Shard:
    """The one of which sample i is row i of each array, in their order.

    `parts`: of each array the number of extents of each row, and the offsets and sizes of all. Raises LayoutError where
    they differ in their number of rows.
    """
    if len({len(counts) for counts, _, _ in parts}) != 1:
        each = ", ".join(f"{name} has {len(part[0])}" for name, part in zip(names, parts, strict=True))
        raise LayoutError(f"{file.path}: the {kind} differ in their number of rows: {each}")
    row = np.concatenate([np.repeat(np.arange(len(counts)), counts) for counts, _, _ in parts])
    order = np.argsort(row, kind="stable")
    offsets, sizes = (np.concatenate([part[column] for part in parts])[order] for column in (1, 2))
    counts = np.sum([counts for counts, _, _ in parts], axis=0)
    return Shard(file.path, file.size, file.mtime_ns, offsets, sizes, None if (counts == 1).all() else counts)


def layout_of(shards: Sequence[Shard], root: str, made_from: str) -> Layout:
    """The layout of all samples of `shards`, whose paths are below `root`.

    Raises LayoutError where there is no sample, or no sample has a byte; ConfigError for a path outside `root`.
    """
    paths = [os.path.abspath(shard.path) for shard in shards]
    if not shards:
        raise LayoutError("no files: nothing to make a layout of")
    names = relative_names(paths, os.path.abspath(root))
    sizes = np.concatenate([shard.sizes for shard in shards])
    shown = shards[0].path if len(shards) == 1 else f"{shards[0].path} and {len(shards) - 1} more"
    if not sum(shard.samples for shard in shards):
        raise LayoutError(f"{shown}: no samples in it")
    if not sizes.any():
        raise LayoutError(f"{shown}: none of its samples has a byte")
    for shard in shards:
        ends = shard.offsets + shard.sizes
        if len(ends) and (wrong := (ends > shard.size) | (shard.offsets < 0)).any():
            at = int(np.argmax(wrong))
            raise LayoutError(
                f"{shard.path}: cut short: {shard.sizes[at]:,} bytes at offset {shard.offsets[at]:,} belong to a "
                f"sample, and it ends at {shard.size:,}"
            )
    offsets = np.concatenate([shard.offsets for shard in shards])
    extents = np.repeat(np.arange(len(shards)), [len(shard.offsets) for shard in shards])
    held = sizes > 0
    starts = np.empty(0, np.int64)
    if not held.all() or any(shard.counts is not None for shard in shards):
        counts = np.concatenate([np.ones(len(s.offsets), np.int64) if s.counts is None else s.counts for s in shards])
        if not held.all():
            before = np.append(0, np.cumsum(held))
            ends = np.cumsum(counts)
            counts = before[ends] - before[ends - counts]
            offsets, sizes, extents = offsets[held], sizes[held], extents[held]
        if not (counts == 1).all():
            starts = np.append(0, counts.cumsum())
    keyed = all(shard.keys is not None for shard in shards)
    return Layout(
        names=names,
        file_sizes=np.array([shard.size for shard in shards]),
        file_mtimes_ns=np.array([shard.mtime_ns for shard in shards]),
        extents=extents,
        offsets=offsets,
        sizes=sizes,
        starts=starts,
        made_from=made_from,
    ).with_keys(np.concatenate([shard.keys for shard in shards if shard.keys is not None]) if keyed else None)
