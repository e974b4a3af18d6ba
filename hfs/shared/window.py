"""What lies where in the memory that the ranks of a node share, and how they wait for each other in it.

Knows no MPI: it is given the memory, which tests make without any. In order of addresses, all in units of 64 bytes so
that no two writers share a cache line:

    1 header         `lost`: which rank has been lost, and the words for it; written by the root alone
    1 row a rank     `filled`: the root posts it once for each entry that it has published
                     `freed`: the rank posts it once for each entry that it needs no more, in their order
                     its state, process id and last words; written by the rank alone
    ENTRIES entries  what was published, number n at n % ENTRIES: kind, place in the data, counts
    data             the bytes of the batches, placed by `policies.ring`

Every word has one writer, and is written before the post after which others read it, or is one aligned 8-byte store
that may be seen late (state, lost): so neither locks nor atomic operations are needed.

A rank that waits looks around after a while: a process that has ended, or has said that it leaves, must not be waited
for. Process ids are compared with their start times, and only within one pid namespace; else the time limit is all.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import errno
import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hfs.mountd.core.errors import HfsError

SEMAPHORE_BYTES = 64
"""A cache line of its own; sem_t is 32 bytes in glibc and at most 32 in musl."""

ENTRIES = 1024
"""Batches in flight at most. Batches of 32 samples of 3 KB fill 100 MB with that; larger ones are bounded by bytes."""

_LINE = 64
_ROW_BYTES = 512
_TEXT_AT = 2 * SEMAPHORE_BYTES + _LINE
_HEADER_TEXT_AT = _LINE
_TEXT_BYTES = _ROW_BYTES - _TEXT_AT

_SLICE_S = 0.02
"""How often a rank that waits in its main thread lets MPI make progress, for messages that others wait for: 50 wakeups
a second are 0.1 % of a core."""
_LOOK_S = 0.5
"""How often it looks whether the others live: a read of /proc each."""


class RankLost(HfsError):
    """Another rank of the node has ended, failed, left too early, or does nothing: the message says which and what."""


class State(enum.IntEnum):
    """Of a rank: what it says of itself."""

    OPEN = 0
    CLOSED = 1
    HOLDING = 2
    """Closed, but arrays that lie in the window are still used: it must stay mapped."""
    FAILED = 3
    """Left by an exception, or the end of the program; its last words say more."""


class WindowKind(enum.IntEnum):
    """Of an entry."""

    BATCH = 1
    END = 2
    """The order has no more."""
    ERROR = 3
    """The order ends here; the data are a pickled exception."""


@dataclasses.dataclass(frozen=True)
class WindowEntry:
    """What the root publishes. `offset` and `size` are bytes of the data; `count` is that of the global batch."""

    kind: WindowKind
    offset: int = 0
    size: int = 0
    count: int = 0
    rows: int = 0
    """Rows that lie in the data: those of the node's ranks."""
    number: int = 0
    """Of the batch in its order, from 0."""


_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _function(name: str, *arguments: type) -> ctypes._NamedFuncPointer:
    found = getattr(ctypes.CDLL(None, use_errno=True), name)
    found.argtypes = arguments
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return] # getattr


_sem_init = _function("sem_init", ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
_sem_post = _function("sem_post", ctypes.c_void_p)
_sem_trywait = _function("sem_trywait", ctypes.c_void_p)
try:
    _sem_clockwait = _function("sem_clockwait", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
except AttributeError:  # glibc before 2.30, musl
    _sem_timedwait = _function("sem_timedwait", ctypes.c_void_p, ctypes.c_void_p)

    def _wait_until(address: int, timeout_s: float) -> int:
        return int(_sem_timedwait(address, ctypes.byref(_timespec(time.time() + timeout_s))))
else:

    def _wait_until(address: int, timeout_s: float) -> int:
        until = _timespec(time.monotonic() + timeout_s)
        return int(_sem_clockwait(address, _CLOCK_MONOTONIC, ctypes.byref(until)))


def _timespec(at_s: float) -> _Timespec:
    whole = int(at_s)
    return _Timespec(whole, int((at_s - whole) * 1e9))


class Semaphore:
    """A POSIX semaphore at an address of this process; the memory must stay mapped as long as it is used.

    A rank that waits sleeps in the kernel (a futex) and costs nothing, and a post wakes exactly whom it is for. They
    also order memory: what was written before a post is seen after the wait that it ends, on every processor
    (POSIX.1-2017, base definitions 4.12). MPI's windows ask for such a barrier by the processor's or the system's own
    means where they are used by loads and stores (MPI-4.0, 12.7.1, unified model); no MPI call is needed, so a thread
    may use them that must not call MPI. By ctypes: the standard library has semaphores between processes only for those
    that one Python has forked.
    """

    def __init__(self, address: int) -> None:
        self._address = address

    def init(self) -> None:
        """Make it, with the count 0. Once, by one process, before anybody uses it. Raises OSError."""
        self._check(_sem_init(self._address, 1, 0))

    def post(self) -> None:
        """Add one; wakes one that waits. Never waits. Raises OSError (EOVERFLOW past 2**31)."""
        self._check(_sem_post(self._address))

    def take_nowait(self) -> bool:
        """Take one if there is one."""
        while _sem_trywait(self._address):
            if (number := ctypes.get_errno()) == errno.EAGAIN:
                return False
            self._unless_interrupted(number)
        return True

    def take(self, timeout_s: float) -> bool:
        """Take one, if there is one within the time. Returns early, with False, after a signal."""
        if self.take_nowait():
            return True
        if not _wait_until(self._address, timeout_s):
            return True
        if (number := ctypes.get_errno()) != errno.ETIMEDOUT:
            self._unless_interrupted(number)
        return False

    @staticmethod
    def _check(answer: int) -> None:
        if answer:
            number = ctypes.get_errno()
            raise OSError(number, f"semaphore: {os.strerror(number)}")

    @staticmethod
    def _unless_interrupted(number: int) -> None:
        if number != errno.EINTR:
            raise OSError(number, f"semaphore: {os.strerror(number)}")


@dataclasses.dataclass(frozen=True)
class Liveness:
    """How a process is recognised from another one of its machine."""

    pid: int
    started: int
    """Clock ticks since the machine started, field 22 of /proc/PID/stat; 0: not known."""
    namespace: int
    """Inode of its pid namespace; 0: not known."""

    @classmethod
    def mine(cls) -> Liveness:
        """Of this process."""
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            namespace = 0
        return cls(os.getpid(), _started(os.getpid()) or 0, namespace)

    def gone(self, here: Liveness) -> bool:
        """Whether it has ended for certain, as seen from the process `here`."""
        if not self.started or not here.started or not self.namespace or self.namespace != here.namespace:
            return False
        return _started(self.pid) != self.started


def _started(pid: int) -> int | None:
    """When a process started; None if it has ended, also where its parent has not noticed yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def control_bytes(ranks: int) -> int:
    """What comes before the data."""
    return _ROW_BYTES * (1 + ranks) + _LINE * ENTRIES


class Window:
    """The shared memory as one rank sees it: `memory` is all of it, `rank` of `ranks` is who asks, 0 is the root.

    `names` says what to call each rank in messages. The memory is all zeros when the root makes its Window with
    `first=True`; the others use theirs after that.
    """

    def __init__(
        self, memory: memoryview, rank: int, names: list[str], *, timeout_s: float, first: bool = False
    ) -> None:
        self.rank, self.ranks, self.names, self.timeout_s = rank, len(names), names, timeout_s
        self._memory = memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        control = control_bytes(self.ranks)
        self.data = np.frombuffer(memory, np.uint8, offset=control)
        """Writable; of the root. Others take `readable`."""
        self._readable = memory[control:].toreadonly()
        rows = np.frombuffer(memory, np.int64, count=_ROW_BYTES * (1 + self.ranks) // 8).reshape(-1, _ROW_BYTES // 8)
        self._header, self._rows = rows[0], rows[1:, 2 * SEMAPHORE_BYTES // 8 :]
        self._entries = np.frombuffer(
            memory, np.int64, offset=_ROW_BYTES * (1 + self.ranks), count=_LINE * ENTRIES // 8
        ).reshape(ENTRIES, _LINE // 8)
        self.filled = [Semaphore(self._row_address(number)) for number in range(self.ranks)]
        self.freed = [Semaphore(self._row_address(number) + SEMAPHORE_BYTES) for number in range(self.ranks)]
        if first:
            for semaphore in (*self.filled, *self.freed):
                semaphore.init()

    def enter(self) -> None:
        """Say who this rank is. All do, before anybody waits for anybody."""
        self._me = Liveness.mine()
        self._rows[self.rank, 1:4] = self._me.pid, self._me.started, self._me.namespace

    def readable(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Bytes of the data as an array that cannot be written to, and that everything viewed of it keeps alive."""
        return np.frombuffer(self._readable, np.uint8, count=size, offset=offset)

    # --- What is said, each by one writer --------------------------------------------------------------------

    def leave(self, state: State, words: str = "") -> None:
        """This rank waits for nobody any more, and need not be waited for."""
        self._write_text(_ROW_BYTES * (1 + self.rank) + _TEXT_AT, words)
        self._rows[self.rank, 0] = state
        self.freed[self.rank].post()  # wakes the root's reader, which then looks

    def state(self, rank: int) -> State:
        """What the rank says of itself."""
        return State(int(self._rows[rank, 0]))

    def lose(self, words: str) -> None:
        """The root: nobody can go on, since a rank is lost. All hear it where they wait next."""
        if not self._header[0]:
            self._write_text(_HEADER_TEXT_AT, words)
            self._header[0] = 1

    def publish(self, sequence: int, entry: WindowEntry) -> None:
        """The root: entry number `sequence` can be taken."""
        self._entries[sequence % ENTRIES, :6] = (
            *(entry.kind, entry.offset, entry.size),
            *(entry.count, entry.rows, entry.number),
        )
        for semaphore in self.filled:
            semaphore.post()

    # --- Waiting ---------------------------------------------------------------------------------------------

    def wait_entry(self, sequence: int, progress: Callable[[], None]) -> WindowEntry:
        """Wait for the entry. Raises RankLost."""
        mine = self.filled[self.rank]
        if not mine.take_nowait():
            # A little more than the reader waits for a rank: it knows whom.
            until_s = time.monotonic() + self.timeout_s + 2 * _LOOK_S
            look_s = time.monotonic() + _LOOK_S
            while not mine.take(_SLICE_S):
                progress()
                if (now_s := time.monotonic()) < look_s:
                    continue
                look_s = now_s + _LOOK_S
                if (fault := self._why_not_wait()) is not None and not mine.take_nowait():
                    raise RankLost(fault)
                if now_s > until_s:
                    raise RankLost(
                        f"{self.names[0]}, which reads for this node, has not delivered batch {sequence} in"
                        f" {self.timeout_s:g} s (timeout_s): the source hangs, or a rank does not take its batches"
                    )
        kind, *numbers = (int(word) for word in self._entries[sequence % ENTRIES, :6])
        return WindowEntry(WindowKind(kind), *numbers)

    def _why_not_wait(self) -> str | None:
        if self._header[0]:
            return self._read_text(_HEADER_TEXT_AT)
        if self.rank:
            if fault := self.fault_of(0):
                return fault
            if self.state(0) is not State.OPEN:
                return f"{self.names[0]}, which reads for this node, has closed its NodeBatches"
        # Only the root looks at everybody's process: of 64 ranks that all do, each half second would have 4000 looks.
        return next((fault for rank in self._others() if (fault := self.fault_of(rank, look=not self.rank))), None)

    def fault_of(self, rank: int, *, look: bool = True) -> str | None:
        """Why nothing can be expected of a rank any more, though it has not closed; None if nothing is wrong.

        Without `look` only what it says itself.
        """
        state = self.state(rank)
        if state is State.FAILED:
            return f"{self.names[rank]} has left: {self._read_text(_ROW_BYTES * (1 + rank) + _TEXT_AT)}"
        if look and state is State.OPEN:
            there = Liveness(*(int(word) for word in self._rows[rank, 1:4]))
            if there.gone(self._me) and self.state(rank) is State.OPEN:
                return f"{self.names[rank]} (process {there.pid}) has ended without closing: killed?"
        return None

    def wait_closed(self, progress: Callable[[], None]) -> list[str]:
        """Wait until every rank has closed or has been lost; what is wrong with those that have not closed."""
        until_s = time.monotonic() + self.timeout_s
        pause_s, look_s = 0.0005, time.monotonic() + _LOOK_S
        while any(self.state(rank) is State.OPEN for rank in self._others()):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _SLICE_S)
            progress()
            if (now_s := time.monotonic()) < look_s:
                continue
            look_s = now_s + _LOOK_S
            still = [rank for rank in self._others() if self.state(rank) is State.OPEN]
            if still and all(self.fault_of(rank) for rank in still):
                break
            if now_s > until_s:
                names = ", ".join(self.names[rank] for rank in still)
                return [f"{names} has not closed its NodeBatches in {self.timeout_s:g} s (timeout_s)"]
        return [fault for rank in self._others() if (fault := self.fault_of(rank))]

    def _others(self) -> list[int]:
        return [rank for rank in range(self.ranks) if rank != self.rank]

    def _row_address(self, rank: int) -> int:
        return self._address + _ROW_BYTES * (1 + rank)

    def _write_text(self, at: int, words: str) -> None:
        text = words.encode(errors="replace")[: _TEXT_BYTES - 1] + b"\0"
        self._memory[at : at + len(text)] = text

    def _read_text(self, at: int) -> str:
        return bytes(self._memory[at : at + _TEXT_BYTES]).partition(b"\0")[0].decode(errors="replace")
