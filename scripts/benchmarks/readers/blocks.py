"""Plain reads: pread at random, piece by piece, read to the end, whole files in a row. Knows nothing of hfs.

    blocks.py

Requests: {"random": FILE, "count": N, "size": BYTES, "seed": S}; {"sequential": FILE, "size": BYTES};
{"pieces": FILE, "order": [N, ...], "piece": BYTES, "size": BYTES, "seed": S};
{"files": [FILE, ...]}, whose result has "slowest_s" and "failed". What a file must hold is checked where it is cheap.
"""

import os
import random
import sys
import time
from typing import Any

from barrier import serve


def read_random(path: str, count: int, size: int, seed: int) -> dict[str, Any]:
    """`count` reads of `size` bytes of a file that is one hole, none across its end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        draw = random.Random(seed)
        for _ in range(count):
            offset = draw.randrange(end - size)
            if os.pread(descriptor, size, offset) != bytes(size):
                raise SystemExit(f"{path} does not hold {size} zeros at {offset}")
    finally:
        os.close(descriptor)
    return {"bytes": count * size}


def read_pieces(path: str, order: list[int], piece: int, size: int, seed: int) -> dict[str, Any]:
    """All reads of `size` bytes that begin in each piece of `piece` bytes, in random order, the pieces in `order`. No
    page stays in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    total = 0
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        last = os.fstat(descriptor).st_size // size
        draw = random.Random(seed)
        for number in order:
            samples = range(-(-number * piece // size), min(last, -(-(number + 1) * piece // size)))
            for sample in draw.sample(samples, len(samples)):
                total += len(os.pread(descriptor, size, sample * size))
                os.posix_fadvise(descriptor, sample * size, size, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return {"bytes": total}


def read_sequential(path: str, size: int) -> dict[str, Any]:
    """The whole file in blocks of `size` bytes, into one buffer."""
    buffer, total = bytearray(size), 0
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(buffer):
            total += read
        if total != os.fstat(file.fileno()).st_size:
            raise SystemExit(f"{path} ended after {total} bytes")
    return {"bytes": total}


def read_files(paths: list[str]) -> dict[str, Any]:
    """Each file whole, one after the other."""
    total = failed = 0
    slowest = 0.0
    for path in paths:
        begin = time.monotonic()
        try:
            with open(path, "rb", buffering=0) as file:
                total += len(file.read())
        except OSError:
            failed += 1
        slowest = max(slowest, time.monotonic() - begin)
    return {"bytes": total, "slowest_s": slowest, "failed": failed}


def work(**arguments: Any) -> dict[str, Any]:
    if "random" in arguments:
        return read_random(arguments.pop("random"), **arguments)
    if "pieces" in arguments:
        return read_pieces(arguments.pop("pieces"), **arguments)
    if "sequential" in arguments:
        return read_sequential(arguments.pop("sequential"), **arguments)
    return read_files(arguments["files"])


if __name__ == "__main__":
    sys.exit(serve(work))
