"""The pages of an LMDB file, read with pread: its tree of pages from the root to the leaves, every pointer checked.

Why not through liblmdb, which maps the file: a page beyond the end of a file that was cut short is a SIGBUS there, a
wrong page number is a SIGSEGV or a loop (it checks none); where keys were not put in in order its cursor goes through
the file at random, one page fault after the other; and py-lmdb touches every page of a value before it hands it out, so
what is to be read cannot be chosen. The format is that of LMDB 0.9 (data version 1, the only one there is in releases)
on little-endian machines, see `struct MDB_page`, `MDB_node`, `MDB_db` and `MDB_meta` of its mdb.c:

    page    pgno u64 · pad u16 · flags u16 · lower u16 · upper u16 · offsets of its nodes, u16 each, up to `lower`
    node    lo u16 · hi u16 · flags u16 · key bytes u16 · key · data
            branch: child page = lo | hi << 16 | flags << 32; leaf: bytes of data = lo | hi << 16
            flags of a leaf's: 1 data is the number of an overflow page, 2 data is a database, 4 data is duplicates
    meta    at 16 of pages 0 and 1: magic u32 · version u32 · address u64 · map bytes u64 · 2 databases · last page u64
            · transaction u64; the one with the higher transaction is valid
    database  page bytes u32 (the first's) · flags u16 · depth u16 · branch, leaf, overflow pages, entries, root: u64

Never writes, locks or maps. Everything is vectorised over many pages: half a microsecond a record.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hfs.layouts import reading
from hfs.layouts.reading import SourceFile, ahead
from hfs.mountd.wire.layout import LayoutError

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

HEADER_BYTES = 16
_NODE_BYTES = 8
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_BRANCH, _PAGE_LEAF, _PAGE_META, _PAGE_LEAF2 = 1, 2, 8, 32
BIG, DATABASE, DUPLICATES = 1, 2, 4
"""Flags of a leaf's nodes."""
DUPSORT = 4
"""Flag of a database: a key may have several values."""
_META_BYTES = 152
_PAGE_SIZES = [1 << power for power in range(9, 16)]
_NO_PAGE = (1 << 64) - 1
_MAX_DEPTH = 32
"""CURSOR_STACK of mdb.c: liblmdb itself reads no deeper tree."""

_SCATTERED_READS = 16
"""In flight, where pages are read by themselves: on storage that serves many at a time it takes a tenth."""


@dataclasses.dataclass(frozen=True)
class Database:
    """A tree of pages."""

    flags: int
    depth: int
    pages: int
    """Branches and leaves."""
    entries: int
    root: int | None

    @classmethod
    def of(cls, data: bytes) -> Database:
        """Of its 48 bytes."""
        _, flags, depth, branches, leaves, _, entries, root = struct.unpack("<IHHQQQQQ", data)
        return cls(flags, depth, branches + leaves, entries, None if root == _NO_PAGE else root)


@dataclasses.dataclass(frozen=True)
class PageNodes:
    """The nodes of leaf pages, in the order of the pages and of the keys in each: but for `counts` one value each."""

    counts: _Ints
    """Nodes of each page."""
    key_offsets: _Ints
    """In the file, as all offsets."""
    key_sizes: _Ints
    flags: _Ints
    offsets: _Ints
    """Of the data: in the page, or of an overflow page."""
    sizes: _Ints


def is_meta(head: bytes) -> bool:
    """Whether a file that begins so is an LMDB file."""
    return head[HEADER_BYTES : HEADER_BYTES + 4] in {_MAGIC.to_bytes(4, "little"), _MAGIC.to_bytes(4, "big")}


class Environment:
    """One LMDB file: its page size and its main database. Raises LayoutError where it is none, or damaged."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        first = self._meta(0)
        # Both must be right, as for liblmdb: the pages of an older transaction may have been used again.
        self.transaction, self.page_bytes, last, self.main = max(first, self._meta(first[1]), key=lambda meta: meta[0])
        self.pages = min(last + 1, file.size // self.page_bytes)
        """Pages that there are; a file may end before its last page if that one is free."""

    def _meta(self, at: int) -> tuple[int, int, int, Database]:
        """(transaction, bytes of a page, last page, main database) of the meta page at this offset."""
        path = self.file.path
        if not at and self.file.size < _META_BYTES:
            raise LayoutError(f"{path}: not an LMDB file: it ends at offset {self.file.size}")
        page = self.file.read(at, _META_BYTES)
        magic, version, _, _, page_bytes = struct.unpack_from("<IIQQI", page, HEADER_BYTES)
        if magic != _MAGIC or not struct.unpack_from("<H", page, 10)[0] & _PAGE_META:
            if page[HEADER_BYTES : HEADER_BYTES + 4] == _MAGIC.to_bytes(4, "big"):
                raise LayoutError(f"{path}: an LMDB file of a big-endian machine (offset {at + HEADER_BYTES})")
            raise LayoutError(f"{path}: {'damaged' if at else 'not an LMDB file'}: no meta page at offset {at}")
        if version != _DATA_VERSION:
            raise LayoutError(f"{path}: LMDB data version {version} at offset {at + 20}; known is {_DATA_VERSION}")
        if page_bytes not in _PAGE_SIZES or at not in {0, page_bytes}:
            raise LayoutError(f"{path}: damaged: pages of {page_bytes} bytes at offset {at + 40}")
        last, transaction = struct.unpack_from("<QQ", page, 136)
        return transaction, page_bytes, last, Database.of(page[88:136])

    def fault(self, page: int, what: str) -> LayoutError:
        """The error that names the file and the offset of the page."""
        return LayoutError(f"{self.file.path}: damaged: page {page:,} at offset {page * self.page_bytes:,} {what}")

    def read_pages(self, numbers: _Ints) -> Iterator[tuple[_Ints, _Bytes]]:
        """(positions in `numbers`, bytes[n, page_bytes]) of all these pages, in the order of the file, in batches."""
        if not len(numbers):
            return
        if numbers.min() < 2 or numbers.max() >= self.pages:
            wrong = int(numbers[(numbers < 2) | (numbers >= self.pages)][0])
            raise self.fault(wrong, f"is pointed to, and the file ends at {self.file.size:,}")
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        if (np.diff(ascending) == 0).any():
            raise self.fault(int(ascending[:-1][np.diff(ascending) == 0][0]), "is pointed to twice")
        # Runs of pages side by side, none longer than a block.
        most = reading.BLOCK_BYTES // self.page_bytes
        run = np.cumsum(np.append(0, np.diff(ascending) != 1))
        within = np.arange(len(run)) - np.searchsorted(run, run)
        cuts = np.flatnonzero(np.append(True, (np.diff(run) != 0) | (within[1:] % most == 0)))
        ends = np.append(cuts[1:], len(ascending))

        def read(piece: tuple[int, int]) -> bytes:
            first, end = piece
            return self.file.read(int(ascending[first]) * self.page_bytes, (end - first) * self.page_bytes)

        batch: list[bytes] = []
        begun = held = 0
        runs = list(zip(cuts.tolist(), ends.tolist(), strict=True))
        for (_, end), data in zip(runs, ahead(read, runs, _SCATTERED_READS), strict=True):
            batch.append(data)
            held += len(data)
            if held >= reading.BLOCK_BYTES or end == len(ascending):
                yield order[begun:end], np.frombuffer(b"".join(batch), np.uint8).reshape(-1, self.page_bytes)
                batch, begun, held = [], end, 0

    def descend(self, database: Database) -> _Ints:
        """The numbers of the leaf pages in key order."""
        if database.root is None:
            return np.empty(0, np.int64)
        if not 1 <= database.depth <= _MAX_DEPTH:
            raise self.fault(database.root, f"is the root of a tree of depth {database.depth}")
        level = np.array([min(database.root, 1 << 62)], np.int64)
        for _ in range(database.depth - 1):
            if len(level) > self.pages:
                raise self.fault(database.root, f"is the root of more pages than the file has ({self.pages:,})")
            level = np.concatenate(self._children(level))
        return level

    def _children(self, numbers: _Ints) -> list[_Ints]:
        found: list[_Ints] = [np.empty(0, np.int64)] * len(numbers)
        for positions, pages in self.read_pages(numbers):
            good, counts, below = branch_children(pages, numbers[positions])
            if not good.all():
                raise self.fault(int(numbers[positions][~good][0]), "is no branch page, as the page above it says")
            for position, some in zip(positions, np.split(below, counts.cumsum()[:-1]), strict=True):
                found[position] = some
        return found


def _header(pages: _Bytes) -> npt.NDArray[Any]:
    return pages[:, :HEADER_BYTES].copy().view("<u2").astype(np.int64)


def _numbered(pages: _Bytes, numbers: _Ints) -> npt.NDArray[np.bool_]:
    return np.asarray(pages[:, :8].copy().view("<i8")[:, 0] == numbers)


def _node_places(
    pages: _Bytes, numbers: _Ints, kind: int
) -> tuple[npt.NDArray[np.bool_], _Ints, _Ints, _Ints, npt.NDArray[Any]]:
    """(which pages are of `kind`, nodes of each, page of each node, offset of it in the page, its four words)."""
    size = pages.shape[1]
    header = _header(pages)
    flags, lower, upper = header[:, 5], header[:, 6], header[:, 7]
    good = _numbered(pages, numbers) & ((flags & (_PAGE_BRANCH | _PAGE_LEAF | _PAGE_META | _PAGE_LEAF2)) == kind)
    good &= (lower >= HEADER_BYTES) & (lower <= upper) & (upper <= size) & (lower % 2 == 0)
    counts = np.where(good, (lower - HEADER_BYTES) // 2, 0)
    page = np.repeat(np.arange(len(pages)), counts)
    number = np.arange(len(page)) - np.repeat(counts.cumsum() - counts, counts)
    words = pages.reshape(-1).view("<u2")
    places = words[(page * size + HEADER_BYTES) // 2 + number].astype(np.int64)
    fits = (places % 2 == 0) & (places >= upper[page]) & (places + _NODE_BYTES <= size)
    node = np.stack([words[np.where(fits, page * size + places, 0) // 2 + i].astype(np.int64) for i in range(4)])
    fits &= places + _NODE_BYTES + node[3] <= size
    good[page[~fits]] = False
    return good, counts, page, places, node


def branch_children(pages: _Bytes, numbers: _Ints) -> tuple[npt.NDArray[np.bool_], _Ints, _Ints]:
    """(which of these are branch pages, children of each page, their numbers one after the other)."""
    good, counts, page, _, node = _node_places(pages, numbers, _PAGE_BRANCH)
    good &= counts > 0
    kept = good[page]
    return good, np.where(good, counts, 0), (node[0] | node[1] << 16 | node[2] << 32)[kept]


def leaf_nodes(pages: _Bytes, numbers: _Ints) -> tuple[npt.NDArray[np.bool_], PageNodes]:
    """(which of these are leaf pages, their nodes); of a page that is none, no nodes. No overflow page is looked at."""
    size = pages.shape[1]
    good, counts, page, places, node = _node_places(pages, numbers, _PAGE_LEAF)
    sizes = node[0] | node[1] << 16
    big = (node[2] & BIG) != 0
    data = places + _NODE_BYTES + node[3]
    fits = data + np.where(big, 8, sizes) <= size
    good[page[~fits]] = False
    good &= counts > 0
    kept = good[page]
    page, places, data, sizes, big = page[kept], places[kept], data[kept], sizes[kept], big[kept]
    offsets = numbers[page] * size + data
    if big.any():
        eight = (page * size + data)[big][:, None] + np.arange(8)
        overflow = pages.reshape(-1)[eight].view("<u8")[:, 0]
        # What cannot be is made what is surely beyond the end of the file, without an overflow.
        offsets[big] = np.minimum(overflow, 1 << 40).astype(np.int64) * size + HEADER_BYTES
    return good, PageNodes(
        counts=np.where(good, counts, 0),
        key_offsets=numbers[page] * size + places + _NODE_BYTES,
        key_sizes=node[3][kept],
        flags=node[2][kept],
        offsets=offsets,
        sizes=sizes,
    )


def values_of_tree(environment: Environment, database: Database) -> tuple[_Ints, _Ints]:
    """(offsets, sizes) of the values of one key that have a tree of their own, in its order: they are its keys."""
    if not database.depth:
        raise LayoutError(f"{environment.file.path}: damaged: a tree of values without pages")
    leaves = environment.descend(database)
    found: list[tuple[_Ints, _Ints]] = [(leaves[:0], leaves[:0])] * len(leaves)
    for positions, pages in environment.read_pages(leaves):
        for position, page in zip(positions.tolist(), pages, strict=True):
            number = leaves[position : position + 1]
            if _header(page[None])[0, 5] & _PAGE_LEAF2:
                found[position] = _fixed(environment.file, page.tobytes(), int(number[0]) * len(page))
                continue
            good, nodes = leaf_nodes(page[None], number)
            if not good.all():
                raise environment.fault(int(number[0]), "is no leaf page, as the page above it says")
            found[position] = nodes.key_offsets, nodes.key_sizes
    return np.concatenate([offsets for offsets, _ in found]), np.concatenate([sizes for _, sizes in found])


def values_of_node(file: SourceFile, offset: int, size: int) -> tuple[_Ints, _Ints]:
    """(offsets, sizes) of the values of one key that lie in a page inside its node."""
    page = file.read(offset, size)
    if size < HEADER_BYTES:
        raise LayoutError(f"{file.path}: damaged: duplicates of {size} bytes at offset {offset:,}")
    flags, lower = struct.unpack_from("<HH", page, 10)
    if flags & _PAGE_LEAF2:
        return _fixed(file, page, offset)
    offsets, sizes = [], []
    if not HEADER_BYTES < lower <= size or lower % 2:
        raise LayoutError(f"{file.path}: damaged: duplicates at offset {offset:,} that end nowhere")
    for (place,) in struct.iter_unpack("<H", page[HEADER_BYTES:lower]):
        length = struct.unpack_from("<H", page, place + 6)[0] if place + _NODE_BYTES <= size else size
        if place < lower or place + _NODE_BYTES + length > size:
            raise LayoutError(f"{file.path}: damaged: a duplicate beyond its page at offset {offset + place:,}")
        offsets.append(offset + place + _NODE_BYTES)
        sizes.append(length)
    return np.array(offsets, np.int64), np.array(sizes, np.int64)


def _fixed(file: SourceFile, page: bytes, offset: int) -> tuple[_Ints, _Ints]:
    """(offsets, sizes) of the values of a page that has nothing but values of one size (`dupfixed`)."""
    length, _, lower = struct.unpack_from("<HHH", page, 8)
    count = (lower - HEADER_BYTES) // 2
    if not length or count < 1 or lower % 2 or HEADER_BYTES + count * length > len(page):
        raise LayoutError(f"{file.path}: damaged: {count:,} values of {length} bytes in a page at offset {offset:,}")
    return offset + HEADER_BYTES + length * np.arange(count), np.full(count, length)
