"""`NodeBatches`: batches that the root of each node reads once and all ranks of the node see in shared memory.

    with NodeBatches(MPI.COMM_WORLD, "train.layout", root="/data", shape=(3, 32, 32), dtype="u1") as node:
        for epoch in range(epochs):
            for batch in node.epoch(batches_of(epoch)):        # lists of indices, the same on all ranks
                train(batch.data, labels[batch.indices])       # this rank's part of the batch

Used inside MPI programs, and the only file of `hfs.shared` that calls MPI, from the thread that uses it; the root's
reading thread makes no MPI call, so MPI_THREAD_FUNNELED is enough. Between two batches ranks wait for semaphores in the
window, not for each other: there is no barrier, and a rank may be as many batches ahead of another as the ring holds.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hfs.layouts.layout import Layout
from hfs.shared.batch import Batch
from hfs.shared.reader import SampleReader, portable
from hfs.shared.samples import FunctionSamples, LayoutSamples, Samples
from hfs.shared.window import RankLost, State, Window, WindowEntry, WindowKind, control_bytes
from mountd.base.errors import ConfigError
from policies.ring import part

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["BUDGET_BYTES", "NodeBatches", "NodeStatistics"]

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]

BUDGET_BYTES = 256 << 20
"""Of the window. The reader must be ahead by what the ranks use up in the longest wait for the source: half a second at
500 MB/s. The paper's 2.5 GB a node are for reading from shared storage without a daemon that coalesces below."""

TIMEOUT_S = 1800.0
"""Above the mount's limit for a source that hangs (600 s) and what ranks do between batches (validation, checkpoints);
what PyTorch's process groups wait."""

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
    budget_bytes   of the window, in shared memory (/dev/shm), once a node; a node's part of a batch must fit, and two
               or more should. How far the root reads ahead.
    threads    that read a layout's files at a time; default: as many as the node has ranks, at most 8
    timeout_s  how long a rank waits for another that is alive, before it raises RankLost
    node       the ranks that share one window; default: all of `comm` on this node. With `comm.Split` of your own, one
               window a socket. They must be on one machine.

    Errors of the source are raised in all ranks of the node, at the same batch; then a new epoch may be tried. A rank
    that dies, or leaves the `with` by an exception, is a RankLost in all others that wait for it, within a second.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        source: Layout | str | os.PathLike[str] | Callable[[Ints, NDArray[Any]], object],
        *,
        root: str | os.PathLike[str] = "",
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike = np.uint8,
        sizes: ArrayLike | Callable[[Ints], ArrayLike] | None = None,
        whole: bool = False,
        budget_bytes: int = BUDGET_BYTES,
        threads: int | None = None,
        timeout_s: float = TIMEOUT_S,
        node: MPI.Intracomm | None = None,
    ) -> None:
        """Raises ConfigError, LayoutError, OSError: in all ranks of `comm` what was raised in one."""
        from mpi4py import MPI

        self._mpi = MPI
        self._process = os.getpid()
        self._open = False
        shares = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank) if node is None else node.Dup()
        assert isinstance(shares, MPI.Intracomm)
        self._node = shares
        self._node.Set_errhandler(MPI.ERRORS_RETURN)
        samples: Samples | None = None
        fault: BaseException | None = None
        try:
            self._dtype = np.dtype(dtype)
            self._shape = None if shape is None else tuple(int(length) for length in shape)
            _check(self._dtype, self._shape, budget_bytes, timeout_s, MPI.Query_thread() >= MPI.THREAD_FUNNELED)
            if self._node.rank == 0:
                threads = min(self._node.size, _THREADS) if threads is None else max(1, threads)
                samples = _opened(source, os.fspath(root), self._shape, self._dtype, sizes, threads)
                _check_room(control_bytes(self._node.size) + budget_bytes)
        except Exception as error:  # noqa: BLE001 - told to all below, else they would wait for this rank for ever
            fault = error
        told = next((data for data in comm.allgather(fault and portable(fault)) if data), None)
        if told is not None:
            if samples is not None:
                samples.close()
            self._node.Free()
            raise fault or pickle.loads(told)  # from another rank of this job

        self._world, self._rank = (1, 0) if whole else (comm.size, comm.rank)
        members = self._node.allgather(comm.rank)
        self._places = _Places(None if whole else members, self._world)
        names = [f"rank {member} of {comm.size}" for member in members]
        is_root = self._node.rank == 0
        total = control_bytes(self._node.size) + budget_bytes
        self._win = MPI.Win.Allocate_shared(total if is_root else 0, 1, comm=self._node)
        memory = memoryview(self._win.Shared_query(0)[0]).cast("B")  # type: ignore[arg-type] # a buffer by PEP 688 only from 3.12
        if is_root:
            memory[: control_bytes(self._node.size)] = bytes(control_bytes(self._node.size))
            self._window = Window(memory, 0, names, timeout_s=timeout_s, first=True)
        self._node.Barrier()
        if not is_root:
            self._window = Window(memory, self._node.rank, names, timeout_s=timeout_s)
        self._window.enter()
        self._node.Barrier()
        self._reader: SampleReader | None = None
        if samples is not None:
            sample_bytes = None if shape is None else int(np.prod(self._shape or (1,))) * self._dtype.itemsize
            self._reader = SampleReader(
                self._window, samples, members=self._places.members, world=self._world, sample_bytes=sample_bytes
            )
        self._samples = samples
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
        faults = self._window.wait_closed(self._progress)
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
        self._win.Free()
        self._node.Free()

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
            entry = self._window.wait_entry(self._sequence, self._progress)
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

    def _progress(self) -> None:
        """Let MPI work on messages that this rank has begun to send: others may wait for them."""
        try:
            self._node.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
        except self._mpi.Exception:
            pass  # with fault tolerance: a rank has failed, which the window's own look finds out by itself

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("this NodeBatches is closed")


class _Places:
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


def _check(
    dtype: np.dtype[Any], shape: tuple[int, ...] | None, budget_bytes: int, timeout_s: float, funneled: bool
) -> None:
    faults = []
    if dtype.hasobject or not dtype.itemsize:
        faults.append(f"dtype {dtype} has no fixed size")
    if shape is not None and any(length < 0 for length in shape):
        faults.append(f"shape {shape} has a negative length")
    if budget_bytes < 1 << 16:
        faults.append(f"budget_bytes is {budget_bytes}: it must be at least 65536")
    if not timeout_s > 0:
        faults.append(f"timeout_s is {timeout_s}: it must be more than 0")
    if not funneled:
        faults.append("MPI was started with MPI_THREAD_SINGLE: it must be MPI_THREAD_FUNNELED or more")
    if faults:
        raise ConfigError("\n".join(faults))


def _opened(
    source: Layout | str | os.PathLike[str] | Callable[[Ints, NDArray[Any]], object],
    root: str,
    shape: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    sizes: ArrayLike | Callable[[Ints], ArrayLike] | None,
    threads: int,
) -> Samples:
    if isinstance(source, Layout | str | os.PathLike):
        if sizes is not None:
            raise ConfigError("sizes is for a function that reads: a layout has them")
        layout = source if isinstance(source, Layout) else Layout.load(os.fspath(source))
        return LayoutSamples(layout, root, threads)
    if not callable(source):
        raise ConfigError(
            f"source is {source!r}: it must be a Layout, the path of one, or a function read(indices, out)"
        )
    if (shape is None) == (sizes is None):
        raise ConfigError("a function that reads needs either shape and dtype, or sizes")
    return FunctionSamples(source, shape, dtype, sizes)


def _check_room(size: int) -> None:
    """Shared memory that is not there is found out only by a SIGBUS when it is touched."""
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return  # this MPI takes it from elsewhere
    free = there.f_bavail * there.f_frsize
    if free < size:
        raise ConfigError(
            f"/dev/shm has {free:,} bytes free, and NodeBatches needs {size:,}: give it a smaller budget_bytes, or the"
            " container more (docker run --shm-size)"
        )
