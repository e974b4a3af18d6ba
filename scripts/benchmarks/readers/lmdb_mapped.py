"""The steps of LMDBIO that read by mmap, as LMDB does. lmdb_node.py tells what a step is.

LMM     one process of the node, the root, reads for all; the others have its data in shared memory.
LMM-DM  each process reads what it needs itself. Where that begins is only known to a cursor that has got there: each
        starts where the one before has stopped, and hands its own position on (part I). So that the others do not wait
        for its reads, it fetches beforehand the pages that it guesses it will need (part II); here it always guesses
        right.
"""

import mmap
import multiprocessing

import lmdb
import numpy as np
from lmdb_batches import BATCH, Batch, Place, batched
from lmdb_records import RECORD_BYTES, key


def opened(path: str) -> lmdb.Environment:
    return lmdb.open(path, readonly=True, lock=False, readahead=False)


class Lmm:
    """A ring of batches in shared memory: the root may be so many ahead of the slowest."""

    SLOTS = 4

    def __init__(self, place: Place) -> None:
        self.path, self.world = place.path, place.world
        shape = (self.SLOTS, self.world, BATCH, RECORD_BYTES)
        self.ring = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
        self.free = [multiprocessing.Semaphore(self.SLOTS) for _ in range(self.world)]
        self.filled = [multiprocessing.Semaphore(0) for _ in range(self.world)]

    def epoch(self, rank: int, order: list[int], batch: Batch) -> None:
        common = enumerate(batched(order, BATCH * self.world))
        if rank > 0:
            for turn, numbers in common:
                self._take(rank, turn, numbers, batch)
            return
        with opened(self.path) as database:
            for turn, numbers in common:
                self._read(database, turn, numbers)
                self._take(rank, turn, numbers, batch)

    def _read(self, database: lmdb.Environment, turn: int, numbers: list[int]) -> None:
        with database.begin(buffers=True) as records:
            for rank in range(self.world):
                self.free[rank].acquire()
                for row, number in enumerate(numbers[rank :: self.world]):
                    self.ring[turn % self.SLOTS, rank, row] = np.frombuffer(records.get(key(number)), np.uint8)
                self.filled[rank].release()

    def _take(self, rank: int, turn: int, numbers: list[int], batch: Batch) -> None:
        self.filled[rank].acquire()
        mine = numbers[rank :: self.world]
        batch.fill(mine, dict(zip(mine, self.ring[turn % self.SLOTS, rank], strict=False)).__getitem__)
        self.free[rank].release()


class Dm:
    """The processes in a ring: a pipe from each to the next. Each takes its part of the sorted batch of all, so that
    the cursor goes forward."""

    def __init__(self, place: Place) -> None:
        self.path, self.world = place.path, place.world
        self.pipes = [multiprocessing.Pipe(duplex=False) for _ in range(self.world)]

    def epoch(self, rank: int, order: list[int], batch: Batch) -> None:
        before, after = self.pipes[rank][0], self.pipes[(rank + 1) % self.world][1]
        if rank == 0:
            self.pipes[0][1].send(b"")  # the first of all begins at the beginning
        with opened(self.path) as database, database.begin(buffers=True) as records, records.cursor() as cursor:
            for numbers in batched(order, BATCH * self.world):
                mine = np.array_split(np.sort(numbers), self.world)[rank].tolist()
                for number in mine:
                    records.get(key(number))  # which reads the page
                values = {}
                if position := before.recv():
                    cursor.set_key(position)
                for number in mine:
                    if not cursor.set_key(key(number)):
                        raise SystemExit(f"no record {number} in {self.path}")
                    values[number] = cursor.value()
                after.send(bytes(cursor.key()))
                batch.fill(mine, values.__getitem__)
            values = {}
        if rank == 0:
            before.recv()  # of the last one
