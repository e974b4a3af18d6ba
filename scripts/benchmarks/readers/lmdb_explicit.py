"""The steps of LMDBIO that read explicitly: pread at known offsets. lmdb_node.py tells what a step is.

DIO     one process walks the tree first, by mmap, and gives the offsets to all.
PROV    the offsets are in a layout file ("provenance"), made before.
COAL    many batches are read at once, in large reads, as many as fit into a memory of 2.5 GB a node.
STAG    and the processes read in turns, one part of the file after the other, so that requests come in its order.
"""

import contextlib
import mmap
import multiprocessing
import os
from collections.abc import Iterator

import numpy as np
from lmdb_batches import Batch, Place, batched
from lmdb_records import RECORD_BYTES
from lmdb_walk import walk

MEMORY_BYTES = 2_500_000_000
"""Of a node, as in the paper."""

GAP_BYTES = 256 * 1024
"""What is not wanted is read along up to here: a request more would cost as much on the sources of the benchmark (10 ms
at 20 MB/s a stream, 1 ms at 200)."""

READ_BYTES = 8 * 1024**2

TURN_BYTES = 64 * 1024**2
"""The part of the file that one process after the other reads of. Eight reads: the hand-over costs nothing."""


class Dio:
    """Offsets in memory that all share."""

    def __init__(self, place: Place) -> None:
        self.path, self.world, self.layout = place.path, place.world, place.layout
        self.file = os.path.join(place.path, "data.mdb")
        self.offsets = np.frombuffer(mmap.mmap(-1, place.records * 8), np.int64)
        self.ready = multiprocessing.Barrier(place.world)

    def find(self) -> np.ndarray:
        return walk(self.path)

    def epoch(self, rank: int, order: list[int], batch: Batch) -> None:
        if rank == 0 and not self.offsets.any():
            self.offsets[:] = self.find()
        self.ready.wait()
        descriptor = os.open(self.file, os.O_RDONLY)
        try:
            self.read(rank, descriptor, order, batch)
        finally:
            os.close(descriptor)

    def read(self, rank: int, descriptor: int, order: list[int], batch: Batch) -> None:
        """Of each batch one record after the other, as they lie in the file."""
        for numbers in batched(order[rank :: self.world]):
            places = sorted((int(self.offsets[number]), number) for number in numbers)
            found = {number: os.pread(descriptor, RECORD_BYTES, offset) for offset, number in places}
            batch.fill(numbers, found.__getitem__)


class Prov(Dio):
    def find(self) -> np.ndarray:
        from hfs.layouts.layout import Layout  # the one thing here that is of hfs: its file format

        return Layout.load(self.layout).offsets


class Coal(Prov):
    def read(self, rank: int, descriptor: int, order: list[int], batch: Batch) -> None:
        at_once = MEMORY_BYTES // self.world // RECORD_BYTES
        mine = order[rank :: self.world]
        # The same number for all, as one may have a record more than another.
        for first in range(0, -(-len(order) // self.world), at_once):
            window = mine[first : first + at_once]
            records = self.read_window(rank, descriptor, np.array(window, np.int64))
            for start, numbers in zip(range(0, len(window), len(batch.pixels)), batched(window), strict=True):
                batch.fill(numbers, dict(zip(numbers, records[start : start + len(numbers)], strict=True)).__getitem__)

    def read_window(self, rank: int, descriptor: int, numbers: np.ndarray) -> np.ndarray:
        """Bytes of these records, one in a row."""
        records = np.empty((len(numbers), RECORD_BYTES), np.uint8)
        offsets = self.offsets[numbers]
        rows = np.argsort(offsets)
        offsets = offsets[rows]
        buffer = mmap.mmap(-1, READ_BYTES)
        for part in range(0, os.fstat(descriptor).st_size, TURN_BYTES):
            first, last = np.searchsorted(offsets, (part, part + TURN_BYTES))
            with self.turn(rank):
                for start, stop in runs(offsets, int(first), int(last)):
                    begin, end = int(offsets[start]), int(offsets[stop - 1]) + RECORD_BYTES
                    fill(descriptor, memoryview(buffer)[: end - begin], begin)
                    pieces = np.lib.stride_tricks.sliding_window_view(np.frombuffer(buffer, np.uint8), RECORD_BYTES)
                    records[rows[start:stop]] = pieces[offsets[start:stop] - begin]
        return records

    def turn(self, rank: int) -> contextlib.AbstractContextManager[object]:
        """Held while this process reads a part of the file."""
        return contextlib.nullcontext(rank)  # nobody waits for anybody


class Stag(Coal):
    """A token goes round: who has it reads."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.turns = [multiprocessing.Semaphore(int(rank == 0)) for rank in range(place.world)]

    @contextlib.contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        self.turns[rank].acquire()
        yield
        self.turns[(rank + 1) % self.world].release()


def runs(offsets: np.ndarray, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Records `first` to `last` (half-open) of ascending offsets in pieces of one read each."""
    start = first
    for stop in range(first + 1, last + 1):
        if stop == last or (
            offsets[stop] - offsets[stop - 1] - RECORD_BYTES > GAP_BYTES
            or offsets[stop] + RECORD_BYTES - offsets[start] > READ_BYTES
        ):
            yield start, stop
            start = stop


def fill(descriptor: int, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        got = os.preadv(descriptor, [buffer[done:]], offset + done)
        if not got:
            raise SystemExit(f"the database ended at {offset + done}")
        done += got
