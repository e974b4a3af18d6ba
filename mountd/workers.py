"""Worker threads for system calls that may wait: `Workers.run_sync` is trio.to_thread.run_sync, three times as fast.

A call there and back costs some 25 to 65 us here and 110 to 180 us with trio's threads (same minute, same machine),
and the first read of a small file needs up to four. What makes the difference: a queue in C in front of the threads,
one eventfd behind them that is written only when nothing else is about to be collected, no contexts copied, and no
more threads than there are calls under way, so that the interpreter's lock changes hands as seldom as possible.

Made by the daemon, handed to `staging` and `source_threads`, which are given trio's own in tests. A few idle threads
stay; one that hangs in a system call is left behind, as trio does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

__all__ = ["Workers"]

Value = TypeVar("Value")

_MAX_IDLE = 32
"""Threads kept for the next calls: what a burst needs again at once. More end as soon as they have nothing to do."""


class _Call:
    """One call under way."""

    __slots__ = ("args", "function", "limiter", "result", "task")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], limiter: trio.CapacityLimiter | None
    ) -> None:
        self.function = function
        self.args = args
        self.limiter = limiter
        self.task: trio.lowlevel.Task | None = None
        """Who waits; None: it was abandoned."""
        self.result: outcome.Outcome[Any] | None = None


class Workers:
    """See the file's story. `running` is entered before anything else, and left last."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._done: deque[_Call] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._idle = 0
        self._under_way = 0
        self._closed = False
        self._awake = False
        """A collection is due: the eventfd was written, or is about to be."""

    @property
    def results_fd(self) -> int:
        """Readable when a thread has a result that was not given to its caller yet."""
        return self._eventfd

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Calls are answered inside this block; at its end the threads end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            yield
            nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._eventfd)
                os.eventfd_read(self._eventfd)
                self._awake = False
                self._collect()
        finally:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            if not self._under_way:
                os.close(self._eventfd)  # else a thread that hangs may still come back to it

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
            return trio.lowlevel.Abort.SUCCEEDED

        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._work, name="hfs-worker", daemon=True).start()
        self._under_way += 1
        self._calls.put(call)
        value: Value = await trio.lowlevel.wait_task_rescheduled(abort)
        return value

    def _collect(self) -> None:
        while self._done:
            call = self._done.popleft()
            self._under_way -= 1
            if call.limiter is not None:
                call.limiter.release_on_behalf_of(call)
            if self._idle < _MAX_IDLE:
                self._idle += 1
            else:
                self._calls.put(None)
            if call.task is not None:
                assert call.result is not None
                trio.lowlevel.reschedule(call.task, call.result)

    def _work(self) -> None:
        """A thread."""
        while (call := self._calls.get()) is not None:
            call.result = outcome.capture(call.function, *call.args)
            self._done.append(call)
            # Nobody writes whose result is sure to be collected. `_awake` is taken back before a collection begins, so
            # whoever finds it set, its result appended, is in time for the one that is due. (How many results there
            # are says nothing: two threads may both append before either counts, and neither is the first.)
            if not self._awake and not self._closed:
                self._awake = True
                os.eventfd_write(self._eventfd, 1)
            del call
