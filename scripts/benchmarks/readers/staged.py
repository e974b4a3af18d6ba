"""Reads of data that is on this node, where the reader itself must cost little. Knows nothing of hfs.

    staged.py INDEX

Requests: {"do": KIND, "root": FOLDER, "names": [NAME, ...], "size": BYTES, "count": N or null, "direct": bool,
"seed": S, "least_s": T}. One pass reads what KIND says in an order that S (and INDEX, where several processes read at
once) gives; passes are repeated until they have taken T seconds together, twice that if they are fewer than three. The
result has "passes", "pass_s" (their median: where the kernel takes idle pages back, as DAMON does, the first one is
slow), "bytes" of one pass, and "check", which is the same wherever the same bytes are read in the same order.

    random       `count` different blocks of `size` bytes of one file (null: all of them), pread
    sequential   one file from end to end by `size` bytes, read
    mmap         the first `size` bytes of `count` different pages of one file, mapped shared and anew in every pass
    files        every file, of 1 MiB at most: open, read, close

A file is opened anew in every pass, outside the time where there is one file only. With `direct` it is opened
O_DIRECT. All bytes go into one buffer, which is page-aligned and stays. Orders are drawn before the time begins.
"""

import gc
import mmap
import os
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

from barrier import serve

BUFFER = mmap.mmap(-1, 1 << 20)
PAGE = mmap.PAGESIZE
MEDIAN_OF = 3

Pass = Callable[[], tuple[float, int, int]]
"""Reads once; gives seconds, bytes and the check."""


def order(total: int, count: int | None, seed: str) -> list[int]:
    """`count` different numbers below `total`, at most all of them."""
    return random.Random(seed).sample(range(total), min(total, total if count is None else count))


def one_file(root: str, names: list[str], direct: bool, read: Callable[[int], tuple[float, int, int]]) -> Pass:
    """The pass that opens the only file and has it read."""
    (name,) = names
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)

    def one() -> tuple[float, int, int]:
        descriptor = os.open(os.path.join(root, name), flags)
        try:
            return read(descriptor)
        finally:
            os.close(descriptor)

    return one


def random_blocks(root: str, names: list[str], size: int, count: int | None, direct: bool, seed: str) -> Pass:
    blocks = os.stat(os.path.join(root, *names)).st_size // size
    offsets = [number * size for number in order(blocks, count, seed)]
    view = memoryview(BUFFER)[:size]
    buffers, preadv = [view], os.preadv

    def read(descriptor: int) -> tuple[float, int, int]:
        total = 0
        begin = time.monotonic()
        for offset in offsets:
            total += preadv(descriptor, buffers, offset)
        return time.monotonic() - begin, total, zlib.crc32(view)

    return one_file(root, names, direct, read)


def sequential(root: str, names: list[str], size: int, direct: bool) -> Pass:
    view = memoryview(BUFFER)[:size]
    buffers, readv = [view], os.readv

    def read(descriptor: int) -> tuple[float, int, int]:
        total = 0
        begin = time.monotonic()
        while got := readv(descriptor, buffers):
            total += got
        return time.monotonic() - begin, total, zlib.crc32(view)

    return one_file(root, names, direct, read)


def mapped(root: str, names: list[str], size: int, count: int | None, seed: str) -> Pass:
    pages = os.stat(os.path.join(root, *names)).st_size // PAGE
    offsets = [number * PAGE for number in order(pages, count, seed)]

    def read(descriptor: int) -> tuple[float, int, int]:
        total, part = 0, b""
        begin = time.monotonic()
        with mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            for offset in offsets:
                part = view[offset : offset + size]
                total += len(part)
        return time.monotonic() - begin, total, zlib.crc32(part)

    return one_file(root, names, False, read)


def files(root: str, names: list[str], seed: str) -> Pass:
    shuffled = [names[number] for number in order(len(names), None, seed)]
    view = memoryview(BUFFER)
    buffers = [view]

    def one() -> tuple[float, int, int]:
        opening, readv, close, readonly = os.open, os.readv, os.close, os.O_RDONLY
        total = got = 0
        folder = os.open(root, os.O_RDONLY)
        try:
            begin = time.monotonic()
            for name in shuffled:
                descriptor = opening(name, readonly, dir_fd=folder)
                got = readv(descriptor, buffers)
                close(descriptor)
                total += got
            return time.monotonic() - begin, total, zlib.crc32(view[:got])
        finally:
            os.close(folder)

    return one


def work(do: str, root: str, names: list[str], seed: int, least_s: float, **how: Any) -> dict[str, Any]:
    draw = f"{seed} {sys.argv[1]}"
    size, count, direct = how["size"], how["count"], how["direct"]
    if do == "random":
        one = random_blocks(root, names, size, count, direct, draw)
    elif do == "sequential":
        one = sequential(root, names, size, direct)
    elif do == "mmap":
        one = mapped(root, names, size, count, draw)
    else:
        one = files(root, names, draw)
    passes: list[float] = []
    while not passes or sum(passes) < (least_s if len(passes) >= MEDIAN_OF else 2 * least_s):
        pass_s, total, check = one()
        passes.append(pass_s)
    return {"passes": len(passes), "pass_s": statistics.median(passes), "bytes": total, "check": check}


if __name__ == "__main__":
    gc.disable()
    sys.exit(serve(work))
