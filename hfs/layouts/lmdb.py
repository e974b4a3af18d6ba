"""Layouts of LMDB databases: where the value of each record lies in the file, in the order of the keys.

Never runs in a training job. Needs no lmdb package: the pages are read with pread (`lmdb_pages.py` says why), from the
root of the tree down, each level in the order of the file and neighbours in one read. Large values lie on pages of
their own, which are never touched: of images of 100 KB a thousandth of the file is read.

Writes nothing, takes no lock: no lock file is made. Nobody may write to the database meanwhile, which is checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hfs.layouts import lmdb_pages as pages
from hfs.layouts.keys import hashed
from hfs.layouts.layout import Layout
from hfs.layouts.lmdb_pages import Database, Environment, PageNodes
from hfs.layouts.reading import SourceFile, opened
from hfs.layouts.registry import KEYS, Format, Option
from hfs.layouts.shards import Shard, layout_of
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError

_Ints = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]


def build_lmdb(path: str | Sequence[str], root: str, *, database: str | None = None, keys: bool = False) -> Layout:
    """The layout in which sample i is the value of record i, in key order, of the LMDB at `path` below `root`.

    `path` is a directory with a data.mdb or the file itself (`subdir=False`); of several, the samples of the first come
    first. `database` is the name of a named database. Where a key has several values (`dupsort`) each is a sample. With
    `keys` the layout knows the samples of keys (`positions`). Raises LayoutError for what is no LMDB file, damaged, cut
    short, or where `database` must be named; ConfigError for a path outside `root`.
    """
    shards = []
    for one in [path] if isinstance(path, str) else path:
        with opened(os.path.join(one, "data.mdb") if os.path.isdir(one) else one) as file:
            shards.append(_shard(file, database, keys=keys))
    return layout_of(shards, root, f"lmdb: {database or 'the main database'}")


def _shard(file: SourceFile, name: str | None, *, keys: bool) -> Shard:
    environment = Environment(file)
    database = environment.main if name is None else _named(environment, name)
    nodes, hashes = _records(environment, database, keys=keys)
    nested = np.flatnonzero((nodes.flags & (pages.DATABASE | pages.DUPLICATES)) == pages.DATABASE)
    if len(nested):
        names = b", ".join(_keys(file, nodes, nested[:20])).decode(errors="replace")
        if name is None:
            raise ConfigError(f"{file.path}: it holds named databases: say which one is meant (--database): {names}")
        raise LayoutError(f"{file.path}: the database {name} holds other databases: {names}")
    offsets, sizes, counts = nodes.offsets, nodes.sizes, None
    if database.flags & pages.DUPSORT:
        offsets, sizes, counts = _values(environment, nodes)
    if len(offsets) != database.entries:
        raise LayoutError(
            f"{file.path}: damaged: {len(offsets):,} records, and its meta page says {database.entries:,}"
        )
    _check_apart(file, offsets, sizes)
    if keys:
        if len(np.unique(hashes)) != len(hashes):
            raise LayoutError(f"{file.path}: two keys have the same hash: build the layout without keys")
        hashes = hashes if counts is None else np.repeat(hashes, counts)
    if Environment(file).transaction != environment.transaction:
        raise LayoutError(f"{file.path}: changed while it was read; build the layout when nobody writes to it")
    return Shard(file.path, file.size, file.mtime_ns, offsets, sizes, keys=hashes if keys else None)


def _keys(file: SourceFile, nodes: PageNodes, which: _Ints) -> Iterator[bytes]:
    for at, size in zip(nodes.key_offsets[which].tolist(), nodes.key_sizes[which].tolist(), strict=True):
        yield file.read(at, size)


def _named(environment: Environment, name: str) -> Database:
    """The database of that name in the main one."""
    file = environment.file
    nodes, _ = _records(environment, environment.main, keys=False)
    nested = np.flatnonzero((nodes.flags & (pages.DATABASE | pages.DUPLICATES)) == pages.DATABASE)
    names = list(_keys(file, nodes, nested))
    try:
        found = nested[names.index(os.fsencode(name))]
    except ValueError:
        there = b", ".join(names[:20]).decode(errors="replace")
        raise LayoutError(f"{file.path}: no database {name!r}; there are {there or 'none with names'}") from None
    return _database(file, int(nodes.offsets[found]), int(nodes.sizes[found]))


def _database(file: SourceFile, offset: int, size: int) -> Database:
    if size != 48:
        raise LayoutError(f"{file.path}: damaged: a database of {size} bytes at offset {offset:,}")
    return Database.of(file.read(offset, size))


def _records(environment: Environment, database: Database, *, keys: bool) -> tuple[PageNodes, _Hashes]:
    """The nodes of all leaves in key order, and the hashes of their keys if they are wanted."""
    leaves = environment.descend(database)
    empty = np.empty(0, np.int64)
    places, parts = [empty], []
    hashes: list[_Hashes] = [np.empty(0, np.uint64)]
    for chosen, bodies in environment.read_pages(leaves):
        numbers = leaves[chosen]
        good, nodes = pages.leaf_nodes(bodies, numbers)
        if not good.all():
            raise environment.fault(int(numbers[~good][0]), "is no leaf page, as the page above it says")
        places.append(chosen)
        parts.append(nodes)
        if keys:
            hashes.append(_hashes(bodies, numbers, nodes))
    # From the order of the file to that of the keys.
    page = np.argsort(np.concatenate(places))
    counts = np.concatenate([empty, *(part.counts for part in parts)])
    which = _ranges((counts.cumsum() - counts)[page], counts[page])
    columns = [
        np.concatenate([empty, *(getattr(part, name) for part in parts)])[which]
        for name in ("key_offsets", "key_sizes", "flags", "offsets", "sizes")
    ]
    return PageNodes(counts[page], *columns), np.concatenate(hashes)[which] if keys else hashes[0]


def _hashes(bodies: npt.NDArray[np.uint8], numbers: _Ints, nodes: PageNodes) -> _Hashes:
    """Of the keys of these pages."""
    size = bodies.shape[1]
    moved = np.repeat((np.arange(len(numbers)) - numbers) * size, nodes.counts)
    data = bodies.tobytes()
    begins = (nodes.key_offsets + moved).tolist()
    return hashed(data[at : at + length] for at, length in zip(begins, nodes.key_sizes.tolist(), strict=True))


def _ranges(starts: _Ints, counts: _Ints) -> _Ints:
    """The numbers of all the ranges of `counts` from `starts` on, one after the other."""
    ends = counts.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts) + np.repeat(starts, counts)


def _check_apart(file: SourceFile, offsets: _Ints, sizes: _Ints) -> None:
    """That no two values have bytes in common, which would be the work of a wrong page number. Raises LayoutError."""
    held = np.flatnonzero(sizes)
    order = held[np.argsort(offsets[held], kind="stable")]
    over = offsets[order][1:] < (offsets + sizes)[order][:-1]
    if over.any():
        at = int(np.argmax(over))
        raise LayoutError(
            f"{file.path}: damaged: records {order[at]:,} and {order[at + 1]:,} share bytes at offset "
            f"{offsets[order[at + 1]]:,}"
        )


def _values(environment: Environment, nodes: PageNodes) -> tuple[_Ints, _Ints, _Ints]:
    """(offsets, sizes, values of each key) where keys may have several: those in one node, and those in trees."""
    offsets: list[_Ints] = []
    sizes: list[_Ints] = []
    counts = np.ones(len(nodes.offsets), np.int64)
    done = 0
    for at in np.flatnonzero(nodes.flags & pages.DUPLICATES).tolist():
        place, size = int(nodes.offsets[at]), int(nodes.sizes[at])
        if nodes.flags[at] & pages.DATABASE:
            tree = pages.values_of_tree(environment, _database(environment.file, place, size))
        else:
            tree = pages.values_of_node(environment.file, place, size)
        offsets += [nodes.offsets[done:at], tree[0]]
        sizes += [nodes.sizes[done:at], tree[1]]
        counts[at] = len(tree[0])
        done = at + 1
    return np.concatenate([*offsets, nodes.offsets[done:]]), np.concatenate([*sizes, nodes.sizes[done:]]), counts


def _recognise(path: str, head: bytes) -> bool:
    return os.path.exists(os.path.join(path, "data.mdb")) if os.path.isdir(path) else pages.is_meta(head)


FORMAT = Format(
    "lmdb",
    _recognise,
    build_lmdb,
    [
        Option("database", "A named database.", metavar="NAME"),
        KEYS,
    ],
)
