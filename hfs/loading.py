"""`ThreadedFetch`: several threads fetch the samples of a batch inside each worker of a DataLoader.

Yang and Cong, "Accelerating Data Loading in Deep Neural Network Training", section III-B: processes load several
batches at a time, threads make the loading of one batch shorter, and cost less than more processes. They help where a
sample waits (files of a slow source) or is made by code that gives up the interpreter's lock (decoders, NumPy).

Used inside training jobs. Imports no framework: PyTorch's loader (2.0 or newer) asks a data set that has `__getitems__`
for whole batches, and this class is such a data set.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

__all__ = ["ThreadedFetch"]

_MOST_THREADS = 1024
"""More is a mistake: a worker with a thousand threads does nothing but change between them."""


class ThreadedFetch:
    """A map-style data set whose batches are fetched with `threads` threads, in each process that uses it.

        loader = DataLoader(ThreadedFetch(dataset, threads=4), batch_size=64, num_workers=4)

    Batches are what the bare data set would give: the same samples in the same order, and of several errors the one of
    the sample that comes first. `dataset[i]` is called from several threads at a time, so it must not share one open
    file position, cursor or connection between them; random transforms draw in another order than with one thread.
    Where the data set has a `__getitems__` of its own, each thread asks it for a part of the batch.

    The threads belong to the process that fetches: a copy that is pickled or forked has none until it is used, and they
    end with this object, with `close`, or with the process. All other attributes are the data set's.
    """

    def __init__(self, dataset: Any, threads: int) -> None:  # noqa: ANN401 - any data set
        """`threads`: 1 to 1024 for each process, that of the caller among them. Raises ValueError and TypeError."""
        threads = operator.index(threads)
        if not 1 <= threads <= _MOST_THREADS:
            raise ValueError(f"threads is {threads}: it must be in [1, {_MOST_THREADS}]")
        # PyTorch's iterable data sets have a __getitem__ too, which only raises.
        iterable = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
        if iterable or not hasattr(type(dataset), "__getitem__"):
            raise TypeError(
                f"{type(dataset).__name__} has no samples by index: ThreadedFetch takes map-style data sets"
            )
        self.dataset = dataset
        self.threads = threads
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - whatever the data set takes and gives
        """One sample, by the calling thread."""
        return self.dataset[index]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """The samples, in the order of `indices`. What one of them raises is raised when all threads have stopped."""
        indices = list(indices)
        whole = getattr(self.dataset, "__getitems__", None)
        if whole:
            size = -(-len(indices) // self.threads) or 1
            parts = [indices[start : start + size] for start in range(0, len(indices), size)]
            batch = _Batch(parts, whole)
            return list(itertools.chain.from_iterable(self._fetched(batch)))
        return self._fetched(_Batch(indices, self.dataset.__getitem__))

    def _fetched(self, batch: _Batch) -> list[Any]:
        helpers = min(self.threads, len(batch.samples)) - 1
        if helpers < 1:
            batch.work()
        else:
            # Few tasks that take the next sample each time: one for each sample would cost as much as a small read.
            others: list[Future[None]] = []
            try:
                others += (self._running().submit(batch.work) for _ in range(helpers))
                batch.work()
            finally:
                batch.ended = True  # an interrupt of this thread stops the others after the sample that they are at
                others = [other for other in others if not other.cancel()]
                wait(others)
            for other in others:
                other.result()
        if batch.errors:
            raise batch.errors[min(batch.errors)]
        return batch.samples

    def _running(self) -> ThreadPoolExecutor:
        if self._owner != os.getpid():
            self._forget()  # forked: the threads stayed with the parent, and one of them may have held the lock
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads - 1, "hfs-fetch")
            return self._pool

    def close(self) -> None:
        """End the threads; a later fetch starts new ones."""
        if self._owner == os.getpid():
            with self._lock:
                pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the data set's attributes are
        if name.startswith("__") or name == "dataset":  # unpickling looks for these before there is a data set
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "threads": self.threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __copy__(self) -> Self:
        return type(self)(self.dataset, self.threads)


class _Batch:
    """Some indices, and who takes which: each thread the next one until there is none, or until one has failed."""

    def __init__(self, indices: Sequence[Any], fetch: Any) -> None:  # noqa: ANN401 - a function of one index
        self._indices, self._fetch = indices, fetch
        self._places = itertools.count()
        self.samples: list[Any] = [None] * len(indices)
        self.errors: dict[int, BaseException] = {}
        """By place. All places before one that was taken have been taken too, so the first error is among them."""
        self.ended = False

    def work(self) -> None:
        """Until nothing is left. Raises nothing that a sample has raised."""
        while not self.ended and not self.errors:
            place = next(self._places)  # one step of the interpreter: no two threads get the same
            if place >= len(self._indices):
                return
            try:
                self.samples[place] = self._fetch(self._indices[place])
            except Exception as error:  # noqa: BLE001 - raised where the batch is asked for
                self.errors[place] = error
