"""A learner of a job: reads its part of an epoch of whole files, and prepares and trains by sleeping.

    node_learner.py ROOT NAMES RANK WORLD

NAMES is a JSON list of paths relative to ROOT. Requests: {"how": HOW, "seed": S, "batch": B, "threads": T,
"prepare_s": P, "train_s": V}; B samples of all learners, seconds a sample. HOW:

    all      every file, in an order of this learner's own
    regular  its slice of each global batch
    local    what LocalityAwareSampler gives it: the mount is asked who has what

While one batch is trained on, the next is read (by T threads) and prepared. Each file's pages are dropped when it has
been read, and its first bytes must be its name. The result has "bytes", "samples", "failed" (reads that
have failed; the others go on), "error" (the first of them), "slowest_s", and for "local" "planned", the share of the
samples of all learners that are read elsewhere than they are cached.
"""

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from barrier import serve
from node_learner_stamp import STAMP_BYTES, stamp

from hfs.samplers import Locality, LocalityAwareSampler

ROOT = sys.argv[1]
with open(sys.argv[2]) as listed:
    NAMES: list[str] = json.load(listed)
RANK, WORLD = map(int, sys.argv[3:])


class Reads:
    """What was read so far."""

    def __init__(self) -> None:
        self.bytes = self.samples = self.failed = 0
        self.error = ""
        self.slowest_s = 0.0
        self._lock = threading.Lock()

    def read(self, index: int) -> None:
        name, fault, data = NAMES[index], "", b""
        began_s = time.monotonic()
        try:
            descriptor = os.open(os.path.join(ROOT, name), os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                data = os.read(descriptor, size)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
            if len(data) != size or data[:STAMP_BYTES] != stamp(name):
                fault = f"{name} is wrong"
        except OSError as error:
            fault = str(error)
        took_s = time.monotonic() - began_s
        with self._lock:
            self.bytes += len(data)
            self.samples += 1
            self.slowest_s = max(self.slowest_s, took_s)
            if fault:
                self.failed += 1
                self.error = self.error or fault


def batches(how: str, seed: int, batch: int) -> tuple[Iterator[list[int]], float | None]:
    """Those of this learner, and the share of all that moves."""
    if how == "all":
        order = list(range(len(NAMES)))
        random.Random(f"{seed} {RANK}").shuffle(order)
        size = max(1, batch // WORLD)
        return iter([order[start : start + size] for start in range(0, len(order), size)]), None
    locality = Locality(ROOT, files=NAMES, learners=list(range(WORLD))) if how == "local" else None
    sampler = LocalityAwareSampler(len(NAMES), batch, seed, RANK, WORLD, locality)
    if how == "local" and WORLD > 1 and not sampler.local:
        raise SystemExit(f"{ROOT} does not know the nodes")
    return iter(sampler), float(sampler.moved().mean()) if how == "local" and sampler.local else None


def work(how: str, seed: int, batch: int, threads: int = 4, prepare_s: float = 0, train_s: float = 0) -> dict[str, Any]:
    mine, planned = batches(how, seed, batch)
    began_s = time.monotonic()
    reads = Reads()
    loaded: queue.Queue[int] = queue.Queue(2)

    def train() -> None:
        while count := loaded.get():
            time.sleep(count * train_s)

    # A daemon thread: a defect of the reads must end the process and not wait for batches that never come.
    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    with ThreadPoolExecutor(threads) as pool:
        for indices in mine:
            list(pool.map(reads.read, indices))
            if prepare_s:
                time.sleep(len(indices) * prepare_s)
            loaded.put(len(indices))
    loaded.put(0)
    trainer.join()
    return {
        "begin_s": began_s,
        "bytes": reads.bytes,
        "samples": reads.samples,
        "failed": reads.failed,
        "error": reads.error,
        "slowest_s": reads.slowest_s,
        "planned": planned,
    }


if __name__ == "__main__":
    sys.exit(serve(work))
