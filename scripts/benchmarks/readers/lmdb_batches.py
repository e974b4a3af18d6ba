"""What the LMDB readers share: the order, batches of checked pixels, and what the kernel counted of the process.

Each reader takes every WORLD-th record of one random order of all, as a distributed sampler gives it. Imports nothing
of hfs.
"""

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from lmdb_records import FIRST_PIXEL, PIXELS, check

BATCH = 64
"""Records of a batch of one reader."""


def share(records: int, seed: int, rank: int, world: int, count: int | None) -> list[int]:
    """Records of this reader in the order of their use: of all, or of the first `count` of the common order."""
    return np.random.default_rng(seed).permutation(records)[:count][rank::world].tolist()


def batched(numbers: Iterable[int], size: int = BATCH) -> Iterator[list[int]]:
    left = iter(numbers)
    while some := list(islice(left, size)):
        yield some


class Place(NamedTuple):
    """What processes of one node read."""

    path: str
    """Of the database, which is a folder."""
    records: int
    world: int
    """How many processes."""
    layout: str
    """Path of the layout file."""


class Batch:
    """Pixels of the records of a batch, as they would go to the accelerator; counts what has been through it."""

    def __init__(self) -> None:
        self.pixels = np.empty((BATCH, PIXELS), np.uint8)
        self.records = 0
        self.first_s = 0.0
        self._begin = time.monotonic()

    def fill(self, numbers: list[int], get: Callable[[int], Any]) -> None:
        """`get` gives the bytes of a record by its number. Raises ValueError for what is not that record."""
        for row, number in enumerate(numbers):
            found = get(number)
            check(number, found)
            self.pixels[row] = np.frombuffer(found, np.uint8, PIXELS, FIRST_PIXEL)
        self.records += len(numbers)
        self.first_s = self.first_s or time.monotonic() - self._begin


def measured(work: Callable[[Batch], None]) -> dict[str, Any]:
    """Do it; how many records there were, when the first batch was there, and what the kernel counted meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    batch = Batch()
    work(batch)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "records": batch.records,
        "first_s": batch.first_s,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "switches": after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
        "major_faults": after.ru_majflt - before.ru_majflt,
    }
