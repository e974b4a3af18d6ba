"""A learner that reads its part of an epoch of whole files, and checks every byte.

    whole_files.py ROOT DIGESTS RANK WORLD

DIGESTS is a JSON object: paths relative to ROOT, and the size and xxh3 of each. Requests: {"seed": S, "threads": T,
"prepare_s": P, "all": A}: every WORLD-th file of an order that is drawn from S for all learners, or every file if A;
after each file its thread sleeps for P seconds. A file's pages are dropped when it has been read. The result has
"bytes", "failed" (reads that have failed), "wrong" (files of other bytes), "error" (the first of either), "slowest_s".
"""

import json
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xxhash
from barrier import serve

ROOT = sys.argv[1]
with open(sys.argv[2]) as listed:
    DIGESTS: dict[str, tuple[int, int]] = {name: tuple(value) for name, value in json.load(listed).items()}
RANK, WORLD = map(int, sys.argv[3:])


class Reads:
    """What was read so far."""

    def __init__(self, prepare_s: float) -> None:
        self.bytes = self.failed = self.wrong = 0
        self.error = ""
        self.slowest_s = 0.0
        self._prepare_s = prepare_s
        self._lock = threading.Lock()

    def read(self, name: str) -> None:
        data, error, began_s = b"", "", time.monotonic()
        try:
            with open(os.path.join(ROOT, name), "rb", buffering=0) as file:
                data = file.readall()
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as failure:
            error = f"{name}: {failure}"
        took_s = time.monotonic() - began_s
        is_wrong = not error and (len(data), xxhash.xxh3_64_intdigest(data)) != DIGESTS[name]
        with self._lock:
            self.bytes += len(data)
            self.slowest_s = max(self.slowest_s, took_s)
            self.failed += bool(error)
            self.wrong += is_wrong
            self.error = self.error or error or (f"{name} is wrong" if is_wrong else "")
        time.sleep(self._prepare_s)


def work(seed: int, threads: int = 4, prepare_s: float = 0.0, all: bool = False) -> dict[str, Any]:  # noqa: A002
    names = sorted(DIGESTS)
    random.Random(f"{seed} {RANK}" if all else seed).shuffle(names)
    reads = Reads(prepare_s)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(reads.read, names if all else names[RANK::WORLD]))
    return {
        "bytes": reads.bytes,
        "failed": reads.failed,
        "wrong": reads.wrong,
        "error": reads.error,
        "slowest_s": reads.slowest_s,
    }


if __name__ == "__main__":
    serve(work)
