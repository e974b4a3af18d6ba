"""`NodeBatches`: batches that the root of each node reads once and all ranks of the node see in shared memory.

    with NodeBatches(MPI.COMM_WORLD, "train.layout", root="/data", shape=(3, 32, 32), dtype="u1") as node:
        for epoch in range(epochs):
            for batch in node.epoch(batches_of(epoch)):        # lists of indices, the same on all ranks
                train(batch.data, labels[batch.indices])       # this rank's part of the batch

Used inside MPI programs. The root's reading thread makes no MPI call, so MPI_THREAD_FUNNELED is enough. Between two
batches ranks wait for semaphores in the window, not for each other: there is no barrier, and a rank may be as many
batches ahead of another as the ring holds.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import math
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import ConfigError
from hfs.policies.ring import part
from hfs.shared.batch import Batch
from hfs.shared.node_ranks import NodeRanks, NodeWindow
from hfs.shared.reader import SampleReader
from hfs.shared.samples import ReadFunction, Samples, SampleSizes, samples_of
from hfs.shared.window import RankLost, State, WindowEntry, WindowKind

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

_THREADS = 8
"""Of the root at most, and not more than the ranks it reads for: as many reads at a time as they would have made."""

_STOP_S = 10.0
"""How long the end waits for a read under way, before the window is left mapped for it."""


@dataclasses.dataclass(frozen=True)
class NodeStatistics:
    """What one rank has seen; the last two are zero but in the node's root."""

    batches: int
    waited_s: float
    """Time it waited for batches."""
    bytes_read: int
    reads: int


class NodeBatches:
    """Batches read once a node. All ranks of `comm` make it, with the same arguments, and all close it: collective.

    source     a Layout or the path of one, read below `root` (the mount; default: the current directory); or a
               function read(indices, out) that fills out, an array of shape (n, *shape) and the dtype, or for samples
               of differing sizes the n samples' bytes in a row. Opened and called only in the root of each node, the
               function in a thread: it must make no MPI call.
    shape, dtype   of a sample; without shape samples may differ in size, and `Batch` gives their bytes
    sizes      for a function without shape: bytes of every sample, or a function of the indices
    whole      every rank sees all of each batch; else rank r of P of `comm` has the rows [r n/P, (r + 1) n/P) of n
    window     the memory that the ranks of a node share

    Errors of the source are raised in all ranks of the node, at the same batch; then a new epoch may be tried. A rank
    that dies, or leaves the `with` by an exception, is a RankLost in all others that wait for it, within a second.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        source: Layout | str | os.PathLike[str] | ReadFunction,
        *,
        root: str | os.PathLike[str] = "",
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike = np.uint8,
        sizes: SampleSizes | None = None,
        whole: bool = False,
        window: NodeWindow | None = None,
    ) -> None:
        """Raises ConfigError, LayoutError, OSError: in all ranks of `comm` what was raised in one."""
        wanted = NodeWindow() if window is None else window
        self._process = os.getpid()
        self._open = False
        self._ranks = NodeRanks(comm, wanted.ranks)
        self._samples: Samples | None = None
        fault: Exception | None = None
        try:
            self._dtype, self._shape = _of_sample(dtype, shape)
            wanted.check()
            self._ranks.check_room(wanted.budget_bytes)
            if self._ranks.rank == 0:
                threads = min(self._ranks.size, _THREADS)
                self._samples = samples_of(source, os.fspath(root), self._shape, self._dtype, sizes, threads)
        except Exception as error:  # noqa: BLE001 - told to all below, else they would wait for this rank for ever
            fault = error
        if (fault := self._ranks.agree(fault)) is not None:
            if self._samples is not None:
                self._samples.close()
            self._ranks.free()
            raise fault

        self._world, self._rank = (1, 0) if whole else (comm.size, comm.rank)
        members = self._ranks.members()
        self._places = _RowsOfRanks(None if whole else members, self._world)
        self._window = self._ranks.allocate([f"rank {member} of {comm.size}" for member in members], wanted)
        self._reader: SampleReader | None = None
        if self._samples is not None:
            sample_bytes = None if self._shape is None else math.prod(self._shape) * self._dtype.itemsize
            self._reader = SampleReader(
                self._window, self._samples, members=self._places.members, world=self._world, sample_bytes=sample_bytes
            )
        self._open = True
        self._sequence = 0
        self._in_epoch = False
        self._batch: Batch | None = None
        self._held: list[weakref.ref[NDArray[np.uint8]]] = []
        self._batches, self._waited_s = 0, 0.0
        # A program that ends without closing must not leave the others waiting, nor a thread writing.
        self._at_exit = functools.partial(_call, weakref.WeakMethod(self._leave_at_exit))
        atexit.register(self._at_exit)

    def epoch(self, order: Iterable[Any]) -> Iterator[Batch]:
        """The batches of `order`: an iterable of lists of indices, the same on all ranks of `comm`.

        Drawn only in the root of each node, in a thread and ahead of its use; it must make no MPI call. What is left of
        the epoch before is dropped: on all ranks, where it is the root that has left it early and begins another.
        Asking for the next batch releases the one before. Raises what the order and the source raise, and RankLost.
        """
        self._check_open()
        self._drop_rest()
        if self._reader is not None:
            self._reader.start(order)
        self._in_epoch = True
        return self._iterate(self._sequence)

    def _iterate(self, began: int) -> Iterator[Batch]:
        expected = began
        while True:
            self._check_open()
            if self._sequence != expected:
                raise ValueError("this epoch is over: another one has been begun")
            entry = self._take()
            expected = self._sequence
            if entry.kind is WindowKind.END:
                return
            held = self._window.readable(entry.offset, entry.size)
            self._held.append(weakref.ref(held))
            self._batch = Batch(
                entry,
                range_=part(entry.count, self._rank, self._world),
                rows=self._places.rows(entry.count, self._window.rank),
                held=held,
                shape=self._shape,
                dtype=self._dtype,
                on_release=self._window.freed[self._window.rank].post,
            )
            del held  # only what the batch and its user make of it is counted
            self._batches += 1
            yield self._batch

    def statistics(self) -> NodeStatistics:
        """What this rank has seen so far."""
        reader, samples = self._reader, self._samples
        return NodeStatistics(
            self._batches, self._waited_s, reader.bytes_read if reader else 0, samples.reads if samples else 0
        )

    def close(self) -> None:
        """Free the window, together with all ranks of the node. Raises RankLost if one of them never will."""
        if not self._open:
            return
        self._end(State.CLOSED)
        faults = self._window.wait_closed(self._ranks.progress)
        if faults:
            # Freeing is collective, so it would wait for ever: the window goes with the process.
            raise RankLost("; ".join(faults))
        states = [self._window.state(rank) for rank in range(self._window.ranks)]
        if State.HOLDING in states:
            log.warning(
                "NodeBatches: %s still uses arrays of a batch; the window stays in memory until the program ends. Copy"
                " what is needed longer than its batch",
                ", ".join(
                    name for name, state in zip(self._window.names, states, strict=True) if state is State.HOLDING
                ),
            )
            return
        del self._window
        self._ranks.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._open:
            self.close()
        else:
            # Not waiting for the others: they are told, and end their waiting.
            self._end(State.FAILED, f"{type(error).__name__}: {error}")

    # --- Inside ----------------------------------------------------------------------------------------------

    def _take(self) -> WindowEntry:
        """The next entry; of any kind but a batch it is released already. Raises RankLost, and what the root says."""
        if self._batch is not None:
            self._batch.release()
            self._batch = None
        self._held = [held for held in self._held if held() is not None]
        began_s = time.monotonic()
        try:
            entry = self._window.wait_entry(self._sequence, self._ranks.progress)
        finally:
            self._waited_s += time.monotonic() - began_s
        self._sequence += 1
        if entry.kind is WindowKind.BATCH:
            return entry
        self._in_epoch = False
        data = bytes(self._window.readable(entry.offset, entry.size))
        self._window.freed[self._window.rank].post()
        if entry.kind is WindowKind.ERROR:
            raise pickle.loads(data)  # from the root of this node, which is the same program
        return entry

    def _drop_rest(self) -> None:
        """Take what is left of the epoch before, so that all ranks begin the next one at the same entry."""
        if self._reader is not None:
            self._reader.skip()
        while self._in_epoch:
            try:
                if self._take().kind is WindowKind.BATCH:
                    self._window.freed[self._window.rank].post()
            except RankLost:
                raise
            except Exception:  # an error of the rest of an epoch that nobody wants
                log.debug("in the dropped rest of an epoch", exc_info=True)

    def _end(self, state: State, words: str = "") -> None:
        """This rank wants no more. Does not wait for the others."""
        self._open = False
        atexit.unregister(self._at_exit)
        if self._batch is not None:
            self._batch.release()
            self._batch = None
        if state is State.CLOSED and any(held() is not None for held in self._held):
            state = State.HOLDING
        if self._reader is not None and not self._reader.stop(_STOP_S) and state is State.CLOSED:
            state = State.HOLDING  # the thread is in a read, which may still write into the window
        self._window.leave(state, words)

    def _leave_at_exit(self) -> None:
        if self._open and os.getpid() == self._process:
            self._end(State.FAILED, "the program has ended without closing its NodeBatches")

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("this NodeBatches is closed")


class _RowsOfRanks:
    """Where each rank's rows lie among those of its node.

    `members`: the numbers of the node's ranks in the world; None: every rank has all rows.
    """

    def __init__(self, members: list[int] | None, world: int) -> None:
        self.members, self._world = members, world

    def rows(self, count: int, rank: int) -> tuple[int, int]:
        """Half-open, of the node's rank `rank`, for a batch of `count`."""
        if self.members is None:
            return 0, count
        sizes = [last - first for first, last in (part(count, member, self._world) for member in self.members)]
        first = sum(sizes[:rank])
        return first, first + sizes[rank]


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (found := method()) is not None:
        found()


def _of_sample(dtype: DTypeLike, shape: tuple[int, ...] | None) -> tuple[np.dtype[Any], tuple[int, ...] | None]:
    """Both as NumPy has them. Raises ConfigError, TypeError."""
    found = np.dtype(dtype)
    if found.hasobject or not found.itemsize:
        raise ConfigError(f"dtype {found} has no fixed size")
    if shape is None:
        return found, None
    if any(length < 0 for length in shape):
        raise ConfigError(f"shape {shape} has a negative length")
    return found, tuple(int(length) for length in shape)
