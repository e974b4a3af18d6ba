"""Where the records of an LMDB lie in its file: the "sequential seek" of LMDBIO (Pumma et al.), one walk over all keys.

By mmap, and only the pages of the tree are read, as a cursor of liblmdb does it in C. Cursors of py-lmdb read the first
page of every value (400 000 of them here, seen in the counters of slowfs), so the tree is walked here, page by page as
lmdb.h and mdb.c of LMDB 0.9 lay it out. For the step of LMDBIO that has no layout file, and pays for it.
"""

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np

PAGE = 4096
_HEADER = 16
"""Of a page: number (8), pad (2), flags (2), end of the list of nodes (2), begin of the nodes (2)."""
_FLAGS = struct.Struct("<10xHH")
_BRANCH, _LEAF = 1, 2
_NODE = struct.Struct("<HHHH")
"""Size or child (two halves), flags, and size of the key."""
_BIG = 1
"""A node whose value lies on pages of its own, the number of which it has."""
_META = struct.Struct("<16x IIQQ 48x IHHQQQQQ QQ")
"""Magic, version, address, size of the map, free pages (48), of the main tree pad, flags, depth, four counts and its
root; last page, transaction."""
_MAGIC = 0xBEEFC0DE


def walk(database: str) -> np.ndarray:
    """int64: offset of each record in data.mdb, in the order of the keys."""
    with open(os.path.join(database, "data.mdb"), "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_RANDOM)  # as readahead=False does
    metas = [_META.unpack_from(pages, number * PAGE) for number in (0, 1)]
    if any(meta[0] != _MAGIC for meta in metas):
        raise SystemExit(f"{database} is no LMDB")
    meta = max(metas, key=lambda meta: meta[-1])
    return np.fromiter(_below(pages, meta[-3]), np.int64, count=meta[-4])


def _below(pages: mmap.mmap, number: int) -> Iterator[int]:
    """Offsets of the records at and below a page of the tree."""
    start = number * PAGE
    flags, end = _FLAGS.unpack_from(pages, start)
    for place in struct.unpack_from(f"<{(end - _HEADER) // 2}H", pages, start + _HEADER):
        low, high, node, key = _NODE.unpack_from(pages, start + place)
        if flags & _BRANCH:
            yield from _below(pages, low | high << 16 | node << 32)
        elif flags & _LEAF and node == _BIG:
            first = int.from_bytes(pages[(at := start + place + _NODE.size + key) : at + 8], "little")
            yield first * PAGE + _HEADER
        else:
            raise SystemExit(f"page {number} holds what is no record of this benchmark")
