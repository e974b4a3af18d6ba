"""Worker threads for system calls that may wait: `Workers.run_sync` is trio.to_thread.run_sync, three times as fast.

A call there and back costs some 25 to 65 us here and 110 to 180 us with trio's threads (same minute, same machine),
and the first read of a small file needs up to four. What makes the difference: a queue in C in front of the threads,
one eventfd behind them that is written only when nothing else is about to be collected, no contexts copied, and no
more threads than there are calls under way, so that the interpreter's lock changes hands as seldom as possible.

A few idle threads stay; one that hangs in a system call is left behind, as trio does.

Where no thread can be started any more (pids.max, ulimit -u, memory), no call fails for it. `run_sync`, for what ends
by itself, has two threads that were started before anything else and do nothing else. `run_patient`, for what may hang
for ever, waits for a thread that has come back, and tries to start one now and then.

Threads `apart` are for calls that only the next daemon may end: a push into the kernel's page cache waits for a page
until somebody answers the read that has locked it, and cannot be killed meanwhile. Such a thread has its own table of
descriptors with next to nothing in it, so that all others are closed, and all locks released, when the rest is killed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

from hfs.mountd.core.background import call_guarded, start_for_life
from hfs.mountd.core.errors import MountError

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_CLONE_FILES = 0x400  # <linux/sched.h>
_libc = ctypes.CDLL(None, use_errno=True)

_MAX_IDLE = 32
"""Threads kept for the next calls: what a burst needs again at once. More end as soon as they have nothing to do."""

_KEPT = 2
"""Threads for when no more can be started: one may wait for the cache disk while the other answers from its index."""

_TRY_AGAIN_S = 0.1
"""How often it is tried to start a thread for a call that waits for one."""


class _Call:
    """One call under way."""

    __slots__ = ("args", "function", "kept", "limiter", "result", "task")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], limiter: trio.CapacityLimiter | None
    ) -> None:
        self.function = function
        self.args = args
        self.limiter = limiter
        self.kept = False
        """One of the kept threads carries it out."""
        self.task: trio.lowlevel.Task | None = None
        """Who waits; None: it was abandoned."""
        self.result: outcome.Outcome[Any] | None = None


class Workers:
    """`running` is entered before anything else, and left last."""

    def __init__(self, apart: int | None = None, *, first: Callable[[], object] | None = None) -> None:
        """`apart`: see the file's story; the descriptor that its calls work on.

        `first`: done by each thread before its first call. What it raises is what the call comes to, which is not
        made; the thread tries it again before the next one.
        """
        self._apart = apart
        self._first = first
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._kept_calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._patient: deque[_Call] = deque()
        """These wait for a thread, since none could be started."""
        self._warned = False
        self.refused = 0
        """Threads that could not be started."""
        self._done: deque[_Call] = deque()
        self._soon: deque[Callable[[], object]] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle = self._under_way = 0
        self._waking = threading.Lock()
        self._closed = self._awake = False
        """`_awake`: a collection is due: the eventfd was written, or is about to be."""

    @property
    def results_fd(self) -> int:
        """Readable when a thread has a result that was not given to its caller yet."""
        return self._eventfd

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Calls are answered inside this block; at its end the threads end. Raises MountError if there can be none."""
        try:
            for _ in range(_KEPT):
                if not self._start(self._kept_calls):
                    raise MountError("no thread can be started: raise ulimit -u, or pids.max of the control group")
            async with trio.open_nursery() as nursery:
                start_for_life(nursery, "answers of threads", self._run)
                yield
                nursery.cancel_scope.cancel()
        finally:
            with self._waking:  # or the number could be another file's by the time that a thread writes to it
                self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            for _ in range(_KEPT):
                self._kept_calls.put(None)
            if not self._under_way:
                os.close(self._eventfd)  # else a thread that hangs may still come back to it

    async def _run(self) -> None:
        while True:
            self._awake = False
            while self._soon:
                call_guarded("call from a thread", self._soon.popleft())
            self._collect()  # also what came while this was started again
            while self._patient and self._start(self._calls):
                self._calls.put(self._patient.popleft())
            with trio.move_on_after(_TRY_AGAIN_S if self._patient else inf) as waiting:
                await trio.lowlevel.wait_readable(self._eventfd)
            if not waiting.cancelled_caught:
                os.eventfd_read(self._eventfd)

    async def run_sync(
        self,
        sync_fn: Callable[..., Value],
        *args: Any,
        limiter: trio.CapacityLimiter | None = None,
        abandon_on_cancel: bool = False,
    ) -> Value:
        """As trio.to_thread.run_sync: `sync_fn(*args)` in a thread. Its limiter's place is kept until it returns.

        Cancelled, it still waits for the function and gives its result, unless `abandon_on_cancel`.
        """
        return await self._run_call(sync_fn, args, limiter, abandon_on_cancel=abandon_on_cancel, patient=False)

    async def run_patient(
        self,
        sync_fn: Callable[..., Value],
        *args: Any,
        limiter: trio.CapacityLimiter | None = None,
        abandon_on_cancel: bool = False,
    ) -> Value:
        """As `run_sync`, of a function that may hang for ever."""
        return await self._run_call(sync_fn, args, limiter, abandon_on_cancel=abandon_on_cancel, patient=True)

    async def _run_call(
        self,
        sync_fn: Callable[..., Value],
        args: tuple[Any, ...],
        limiter: trio.CapacityLimiter | None,
        *,
        abandon_on_cancel: bool,
        patient: bool,
    ) -> Value:
        await trio.lowlevel.checkpoint_if_cancelled()
        call = _Call(sync_fn, args, limiter)
        if limiter is not None:
            try:
                limiter.acquire_on_behalf_of_nowait(call)
            except trio.WouldBlock:
                await limiter.acquire_on_behalf_of(call)
        call.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            if not abandon_on_cancel:
                return trio.lowlevel.Abort.FAILED
            call.task = None
            if call in self._patient:  # it has not begun, and never will
                self._patient.remove(call)
                self._ended(call)
            return trio.lowlevel.Abort.SUCCEEDED

        self._under_way += 1
        if self._idle:
            self._idle -= 1
            self._calls.put(call)
        elif not self._patient and self._start(self._calls):
            self._calls.put(call)
        elif patient:
            self._patient.append(call)
            self._wake()
        else:
            call.kept = True
            self._kept_calls.put(call)
        value: Value = await trio.lowlevel.wait_task_rescheduled(abort)
        return value

    def soon(self, call: Callable[[], object]) -> None:
        """From one of the threads: `call` on the event loop, once. (Of trio's own way a thread apart has no part.)"""
        self._soon.append(call)
        self._wake()

    def _collect(self) -> None:
        while self._done:
            call = self._done.popleft()
            self._ended(call)
            if call.kept:
                pass
            elif self._patient:
                self._calls.put(self._patient.popleft())
            elif self._idle < _MAX_IDLE:
                self._idle += 1
            else:
                self._calls.put(None)
            if call.task is not None:
                assert call.result is not None
                trio.lowlevel.reschedule(call.task, call.result)

    def _ended(self, call: _Call) -> None:
        self._under_way -= 1
        if call.limiter is not None:
            call.limiter.release_on_behalf_of(call)

    def _start(self, calls: SimpleQueue[_Call | None]) -> bool:
        """Start one more thread that carries out `calls`. False if the system has none to give."""
        try:
            threading.Thread(target=self._work, args=(calls,), name="hfs-worker", daemon=True).start()
        except (RuntimeError, MemoryError, OSError) as error:
            self.refused += 1
            if not self._warned:
                self._warned = True
                log.warning(
                    "no more threads can be started (%s): reads go on, slower; raise ulimit -u, or pids.max of the "
                    "control group",
                    error,
                )
            return False
        return True

    def _work(self, calls: SimpleQueue[_Call | None]) -> None:
        """A thread."""
        apart, begun = False, self._first is None
        mine: list[_Call] = []
        while (call := calls.get()) is not None:
            if self._apart is not None and not apart:
                _keep_only(0, 1, 2, self._eventfd, self._apart)
                apart = True
            if not begun:
                assert self._first is not None
                call.result = outcome.capture(self._first)
                begun = isinstance(call.result, outcome.Value)
            if begun:
                call.result = outcome.capture(call.function, *call.args)
            # Once it is there nothing of it may be held here: what the event loop lets go of is to end there, not in a
            # thread that may have descriptors of its own.
            mine.append(call)
            del call
            self._done.append(mine.pop())
            self._wake()

    def _wake(self) -> None:
        # Nobody writes whose result is sure to be collected. `_awake` is taken back before a collection begins, so
        # whoever finds it set, its result appended, is in time for the one that is due.
        with self._waking:
            if not self._awake and not self._closed:
                self._awake = True
                os.eventfd_write(self._eventfd, 1)


def _keep_only(*descriptors: int) -> None:
    """Give this thread a table of descriptors of its own, with these. Where the kernel does not allow it, all stay."""
    if _libc.unshare(_CLONE_FILES) != 0:
        return
    begin = 0
    for descriptor in sorted(descriptors):
        if begin < descriptor:  # an empty range would be all
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, max(begin + 1, os.sysconf("SC_OPEN_MAX")))
