"""One learner of a training job on HDF5 files: takes batches, computes by sleeping, says how long it waited for data.

    learner.py RANK WORLD [--mount MOUNT --layout LAYOUT] FILE...

FILE... have a data set "samples" each; samples are numbered through all files, and the first number of a sample is its
own. Each request is an epoch, or the first `count` samples of this learner's share of one; "begin_s" is before the
files are opened. What it asks for:

    order     "random": all samples shuffled, every WORLD-th is this learner's. "groups": groups of `group` contiguous
              samples shuffled, every WORLD-th is this learner's, and the samples of a group shuffled
    read      "sample": one sample a read. "group": one group a read, into a buffer
    overlap   false: the learner reads when it needs data. true: one thread reads samples ahead of it, or fills one of
              two buffers while the other one is used
    hint      draw the order with a sampler that hfs is told of; needs --mount and --layout, and is the only thing
              here that knows hfs

A loader thread puts up to QUEUED batches together ahead of the learner, as the usual loaders do; without overlap the
learner does it. It is one thread, since HDF5 lets only one of a process in.
"""

import argparse
import gc
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import h5py
import numpy as np
from barrier import serve

QUEUED = 4
"""Batches that are ready or being put together, besides the one in use."""

LATE_S = 1e-3
"""A batch that was waited for longer than this had not been ready. Far above what a hand-over takes."""


def opened(path: str) -> h5py.File:
    """The file without HDF5's sieve buffer, which would read 64 KiB for each smaller sample: one read of a sample is
    the bytes of this sample."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # as h5py.File has it
    access.set_sieve_buf_size(0)
    return h5py.File(h5py.h5f.open(path.encode(), h5py.h5f.ACC_RDONLY, access))


class Samples:
    """The samples of some files. Reads with prepared selections: what h5py does for `dataset[i]` takes ten times as
    long as the read of a sample of 19 KB from memory."""

    def __init__(self, paths: list[str]) -> None:
        self.files = [opened(path) for path in paths]
        sets = [file["samples"] for file in self.files]
        self.starts = np.cumsum([0, *(len(one) for one in sets)]).tolist()
        self.shape, self.dtype = sets[0].shape[1:], sets[0].dtype
        self._sets = [one.id for one in sets]
        self._spaces = [one.get_space() for one in self._sets]
        self._type = h5py.h5t.py_create(self.dtype)
        self._origin = (0,) * len(self.shape)
        self._memory: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.starts[-1]

    def buffer(self, count: int) -> np.ndarray:
        return np.empty((count, *self.shape), self.dtype)

    def read(self, first: int, out: np.ndarray) -> None:
        """The samples `first` to `first + len(out)`: one read a file."""
        done = 0
        while done < len(out):
            file = np.searchsorted(self.starts, first + done, "right") - 1
            take = min(len(out) - done, self.starts[file + 1] - first - done)
            memory = self._memory.get(take) or self._memory.setdefault(
                take, h5py.h5s.create_simple((take, *self.shape))
            )
            space = self._spaces[file]
            space.select_hyperslab((first + done - self.starts[file], *self._origin), (take, *self.shape))
            self._sets[file].read(memory, space, out[done : done + take], self._type)
            done += take

    def close(self) -> None:
        for file in self.files:
            file.close()


class Ahead:
    """What `items` gives, made by a thread of its own: at most as far ahead as `items` itself lets it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._make, args=(items,), daemon=True).start()

    def _make(self, items: Iterable[Any]) -> None:
        try:
            for item in items:
                self._ready.put(item)
            self._ready.put(None)
        except BaseException as error:  # noqa: BLE001 - it goes on in the thread that waits for the items
            self._ready.put(error)

    def __iter__(self) -> Iterator[Any]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item


class Pool:
    """A fixed number of arrays: whoever takes one waits until it is given back."""

    def __init__(self, make: Callable[[], np.ndarray], count: int) -> None:
        self._free: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(make())
        self.take, self.give = self._free.get, self._free.put


def random_order(samples: int, rank: int, world: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(samples)[rank::world].tolist()


def group_order(samples: int, group: int, rank: int, world: int, seed: int) -> list[tuple[int, int]]:
    """(first sample, samples) of this learner's groups. The last group of the data may be a short one."""
    firsts = np.random.default_rng(seed).permutation(range(0, samples, group))[rank::world]
    return [(first, min(group, samples - first)) for first in firsts.tolist()]


def batches_of_samples(samples: Samples, order: Iterable[int], batch: int, pool: Pool) -> Iterator[tuple[Any, Any]]:
    """(array, numbers of its samples), one read a sample."""
    numbers = iter(order)
    while True:
        array, have = pool.take(), []
        for number in islice(numbers, batch):
            samples.read(number, array[len(have) : len(have) + 1])
            have.append(number)
        if not have:
            return
        yield array, have


def filled_buffers(samples: Samples, groups: list[tuple[int, int]], buffers: Pool) -> Iterator[tuple[Any, int, int]]:
    """(buffer, first sample, samples), one read a group."""
    for first, size in groups:
        buffer = buffers.take()
        samples.read(first, buffer[:size])
        yield buffer, first, size


def batches_of_buffers(
    filled: Iterable[tuple[Any, int, int]], buffers: Pool, batch: int, pool: Pool, seed: int
) -> Iterator[tuple[Any, Any]]:
    """(array, numbers of its samples), drawn at random from one buffer until it is used up."""
    random = np.random.default_rng(seed)
    array, have = None, []
    for buffer, first, size in filled:
        order = random.permutation(size)
        while len(order):
            if array is None:
                array, have = pool.take(), []
            now, order = order[: batch - len(have)], order[batch - len(have) :]
            # Every index is a right one; any other mode than "raise" goes without a copy of its own.
            np.take(buffer, now, axis=0, out=array[len(have) : len(have) + len(now)], mode="clip")
            have.extend((now + first).tolist())
            if len(have) == batch:
                yield array, have
                array = None
        buffers.give(buffer)
    if array is not None:
        yield array, have


class Learner:
    """The program: its place in the job, and an epoch of every kind."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        if args.mount:
            # Here, so that it is no part of an epoch.
            from hfs import hint, samplers

            self.hint, self.samplers = hint, samplers

    def hinted(self, samples: int, order: str, group: int, seed: int) -> Iterable[int]:
        args = self.args
        if order == "groups":
            sampler = self.samplers.GroupShuffleSampler(samples, group, seed=seed, rank=args.rank, world=args.world)
        else:
            sampler = random_order(samples, args.rank, args.world, seed)
        return self.hint.hinted(sampler, layout=args.layout, mount=args.mount, rank=args.rank, world=args.world)

    def batches(self, samples: Samples, how: dict[str, Any], pool: Pool) -> Iterable[tuple[Any, Any]]:
        args = self.args
        batch, group, seed, count = how["batch"], how["group"], how["seed"], how["count"]
        ahead: Callable[[Iterable[Any]], Iterable[Any]] = Ahead if how["overlap"] else iter
        if how["read"] == "group":
            groups = group_order(len(samples), group, args.rank, args.world, seed)
            if count is not None:
                groups = groups[: -(-count // group)]
            buffers = Pool(lambda: samples.buffer(min(group, len(samples))), 2 if how["overlap"] else 1)
            filled = ahead(filled_buffers(samples, groups, buffers))
            return ahead(batches_of_buffers(filled, buffers, batch, pool, seed))
        if how["hint"]:
            order = self.hinted(len(samples), how["order"], group, seed)
        elif how["order"] == "groups":
            draw = np.random.default_rng((seed, args.rank))
            groups = group_order(len(samples), group, args.rank, args.world, seed)
            order = (first + number for first, size in groups for number in draw.permutation(size).tolist())
        else:
            order = random_order(len(samples), args.rank, args.world, seed)
        return ahead(batches_of_samples(samples, islice(order, count), batch, pool))

    def epoch(self, *, sample_compute_s: float, batch: int, overlap: bool, **how: Any) -> dict[str, Any]:
        """`sample_compute_s`: what is computed for each sample of a batch."""
        begin = time.monotonic()
        samples = Samples(self.args.files)
        opened_s = time.monotonic() - begin
        pool = Pool(lambda: samples.buffer(batch), 1 + (QUEUED if overlap else 0))
        compute_s, waits, taken = 0.0, [], []
        asked = time.monotonic()
        for array, numbers in self.batches(samples, {**how, "batch": batch, "overlap": overlap}, pool):
            got = time.monotonic()
            waits.append(got - asked)
            found = array.reshape(batch, -1)[: len(numbers), 0]
            if (found != np.asarray(numbers, array.dtype)).any():
                raise ValueError(f"samples {numbers} hold samples {found.tolist()}")
            taken += numbers
            time.sleep(max(0.0, got + sample_compute_s * len(numbers) - time.monotonic()))
            pool.give(array)
            asked = time.monotonic()
            compute_s += asked - got
        end = time.monotonic()
        samples.close()
        return {
            "begin_s": begin,
            "end_s": end,
            "exposed_s": end - begin - compute_s,
            "compute_s": compute_s,
            "opened_s": opened_s,
            "first_s": opened_s + waits[0],
            "worst_s": max(waits[1:], default=0.0),
            "late": sum(wait > LATE_S for wait in waits),
            "batches": len(waits),
            "samples": len(taken),
            "distinct": len(set(taken)),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("--mount")
    parser.add_argument("--layout")
    parser.add_argument("files", nargs="+")
    learner = Learner(parser.parse_args())
    gc.disable()
    try:
        serve(learner.epoch)
    except BaseException:  # noqa: BLE001 - whatever it is, it is shown and the process ends
        traceback.print_exc()
        # Not by way of h5py's own end: that waits for a lock which a thread that has just been stopped may hold.
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
