"""`NodeRanks`: the ranks of one node, what MPI does for them, and the memory that it gives them together.

The only file of `hfs.shared` that calls MPI, from the thread that uses a NodeBatches. MPI is asked when the memory is
made and when it is freed, not for batches: they are announced in the memory itself (`window`).
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from typing import TYPE_CHECKING, Any

from hfs.mountd.core.errors import ConfigError
from hfs.shared.reader import portable
from hfs.shared.window import Window, control_bytes

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclasses.dataclass(frozen=True)
class NodeWindow:
    """The shared memory of a node, as a program may want it.

    budget_bytes   of batches, in /dev/shm, >= 65536: how far the root reads ahead, which should be what the ranks use
                   up in the longest wait for the source (256 MiB: half a second at 500 MB/s). A node's part of a batch
                   must fit, and two or more should.
    timeout_s      how long a rank waits for another that is alive, before it raises RankLost. Half an hour is above the
                   mount's limit for a source that hangs (600 s) and what ranks do between batches (validation,
                   checkpoints), and what PyTorch's process groups wait.
    ranks          those that share it, all on one machine; None: all of the node. With `comm.Split` of your own, one
                   window a socket.
    """

    budget_bytes: int = 256 << 20
    timeout_s: float = 1800.0
    ranks: MPI.Intracomm | None = None

    def check(self) -> None:
        """Raises ConfigError for a number that is out of its range."""
        if self.budget_bytes < 1 << 16:
            raise ConfigError(f"budget_bytes is {self.budget_bytes}: it must be at least 65536")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}: it must be more than 0")


class NodeRanks:
    """The ranks of `comm` that are on this node, or `ranks`. All of them make it, together; 0 is the node's root."""

    def __init__(self, comm: MPI.Intracomm, ranks: MPI.Intracomm | None = None) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank) if ranks is None else ranks.Dup()
        assert isinstance(node, MPI.Intracomm)
        node.Set_errhandler(MPI.ERRORS_RETURN)
        self._node = node
        self.rank, self.size = node.rank, node.size
        self._win: MPI.Win | None = None

    def agree(self, fault: Exception | None) -> Exception | None:
        """What went wrong in one rank of `comm`, in all of them: its own, or the first of another. Collective."""
        told = next((data for data in self._comm.allgather(fault and portable(fault)) if data), None)
        # Pickled by another rank of this job, which is the same program.
        return fault or (pickle.loads(told) if told is not None else None)

    def members(self) -> list[int]:
        """For each rank of the node its number in `comm`. Collective."""
        return self._node.allgather(self._comm.rank)

    def check_room(self, budget_bytes: int) -> None:
        """Raise ConfigError where there is no MPI for threads, or not so much shared memory.

        The latter is found out otherwise only by a SIGBUS when it is touched.
        """
        if self._mpi.Query_thread() < self._mpi.THREAD_FUNNELED:
            raise ConfigError("MPI was started with MPI_THREAD_SINGLE: it must be MPI_THREAD_FUNNELED or more")
        try:
            there = os.statvfs("/dev/shm")
        except OSError:
            return  # this MPI takes it from elsewhere
        size, free = control_bytes(self.size) + budget_bytes, there.f_bavail * there.f_frsize
        if free < size:
            raise ConfigError(
                f"/dev/shm has {free:,} bytes free, and NodeBatches needs {size:,}: give it a smaller budget_bytes, or"
                " the container more (docker run --shm-size)"
            )

    def allocate(self, names: list[str], wanted: NodeWindow) -> Window:
        """The memory, as this rank sees it. Collective."""
        is_root = self.rank == 0
        total = control_bytes(self.size) + wanted.budget_bytes
        self._win = self._mpi.Win.Allocate_shared(total if is_root else 0, 1, comm=self._node)
        shared: Any = self._win.Shared_query(0)[0]  # a buffer by PEP 688, which only Python 3.12 knows
        memory = memoryview(shared).cast("B")
        if is_root:
            memory[: control_bytes(self.size)] = bytes(control_bytes(self.size))
        window = Window(memory, self.rank, names, timeout_s=wanted.timeout_s, first=is_root)
        self._node.Barrier()  # the root has made it
        window.enter()
        self._node.Barrier()
        return window

    def progress(self) -> None:
        """Let MPI work on messages that this rank has begun to send: others may wait for them."""
        try:
            self._node.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
        except self._mpi.Exception:
            pass  # with fault tolerance: a rank has failed, which the window's own look finds out by itself

    def free(self) -> None:
        """Give back the memory and what MPI keeps of this. Collective."""
        if self._win is not None:
            self._win.Free()
        self._node.Free()
