"""Threads that wait for the source, so that nothing else has to.

Three bounded pools: metadata, demand reads and prefetch reads; a source that hangs for one kind does not stop another,
and never the event loop. Each call has a time limit with retries inside. A call that is past it is abandoned: its
thread stays stuck in the system call (nothing can end it), the pool gets another place, and it is counted. Past a bound
of stuck threads new calls fail at once: by then the source is dead, and each further thread would only cost memory.

Used by `mountd/source.py` only. Knows no paths; never touches the cache. Tests give `run_in_thread` a fake.
"""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import trio

from mountd.errors import SourceError, SourceTimeout
from mountd.metrics import Metrics

__all__ = ["Pool", "SourceThreads"]

Pool = Literal["metadata", "demand", "prefetch"]
Value = TypeVar("Value")

_MAX_ABANDONED = 512
"""Stuck threads we keep: 8 KiB of kernel stack and some 100 KiB of their own each."""

_TRANSIENT = frozenset(
    {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN}
)
"""What a failover or a lost lease of Lustre, GPFS or NFS answers for a moment."""

_BACKOFF_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Five tries more, 1.6 s in all. A reader of the source itself would have had the error at once; a moment's patience
survives an eviction by a metadata server, and a disk block that is really lost is reported soon enough."""


class SourceThreads:
    """Runs blocking functions against the source. `time_limit_s` 0 means for ever."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        demand: int,
        prefetch: int,
        metadata: int = 64,
        time_limit_s: float,
        run_in_thread: Callable[..., Any] = trio.to_thread.run_sync,
    ) -> None:
        self._metrics = metrics
        self._limiters: dict[Pool, trio.CapacityLimiter] = {
            "metadata": trio.CapacityLimiter(metadata),
            "demand": trio.CapacityLimiter(demand),
            "prefetch": trio.CapacityLimiter(prefetch),
        }
        self.time_limit_s = time_limit_s or math.inf
        self._run_in_thread = run_in_thread
        self._stuck = 0

    @property
    def stuck(self) -> int:
        """Threads abandoned and not yet back."""
        return self._stuck

    def statistics(self) -> dict[str, int]:
        """Calls running and waiting, by pool."""
        figures = {"stuck": self._stuck}
        for pool, limiter in self._limiters.items():
            figures[f"{pool}_running"] = int(limiter.borrowed_tokens)
            figures[f"{pool}_waiting"] = limiter.statistics().tasks_waiting
        return figures

    @property
    def demand_waits(self) -> bool:
        """True while a demand read waits for a thread: then nothing should be fetched ahead."""
        return self._limiters["demand"].statistics().tasks_waiting > 0

    async def call(
        self, pool: Pool, what: str, function: Callable[..., Value], *args: Any, limit_s: float | None = None
    ) -> Value:
        """`function(*args)` in a thread of `pool`, tried again after transient errors, within the time limit.

        Raises SourceError with the errno of the last try, SourceTimeout when the limit (`limit_s`, or the general one)
        is over, and whatever else the function raises.
        """
        deadline = trio.current_time() + (self.time_limit_s if limit_s is None else limit_s)
        for pause_s in (*_BACKOFF_S, None):
            try:
                return await self._once(pool, what, deadline, function, args)
            except OSError as error:
                number = error.errno or errno.EIO
                if number not in _TRANSIENT or pause_s is None or trio.current_time() + pause_s >= deadline:
                    if number in _TRANSIENT:
                        self._metrics.add("source_errors")
                    raise SourceError(number, what) from error
            self._metrics.add("source_retries")
            await trio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def _once(
        self, pool: Pool, what: str, deadline: float, function: Callable[..., Value], args: tuple[Any, ...]
    ) -> Value:
        if self._stuck >= _MAX_ABANDONED:
            self._metrics.add("source_errors")
            raise SourceTimeout(f"{what}: {self._stuck} threads are stuck in the source, not adding another")
        call = _Call(self, function, args, trio.lowlevel.current_trio_token())
        with trio.move_on_at(deadline):
            try:
                value: Value = await self._run_in_thread(call.run, abandon_on_cancel=True, limiter=self._limiters[pool])
            except trio.Cancelled:
                self._abandon(pool, call)
                raise
            return value
        self._metrics.add("source_errors")
        raise SourceTimeout(f"{what}: no answer within the time limit")

    def _abandon(self, pool: Pool, call: _Call) -> None:
        with call.lock:
            call.abandoned = True
            if not call.running:
                return  # it is over, or will not begin
            call.limiter = self._limiters[pool]
        call.limiter.total_tokens += 1  # the stuck thread keeps its place; give the pool another
        self._stuck += 1
        self._metrics.add("source_abandoned")

    def returned(self, call: _Call) -> None:
        """An abandoned thread has come back after all."""
        if call.limiter is not None:
            call.limiter.total_tokens -= 1
            self._stuck -= 1


class _Call:
    """One try: remembers whether its thread runs, so that giving it up can be told from never having started."""

    __slots__ = ("_args", "_function", "_owner", "_token", "abandoned", "limiter", "lock", "running")

    def __init__(
        self,
        owner: SourceThreads,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._owner = owner
        self._function = function
        self._args = args
        self._token = token
        self.lock = threading.Lock()
        """A thread that ends just when it is given up is stuck for both sides, or for neither."""
        self.running = False
        self.abandoned = False
        self.limiter: trio.CapacityLimiter | None = None

    def run(self) -> Any:  # noqa: ANN401 - whatever the function gives
        with self.lock:
            if self.abandoned:
                return None  # given up before it began: nobody waits for the result
            self.running = True
        try:
            return self._function(*self._args)
        finally:
            if self._end():
                try:
                    self._token.run_sync_soon(self._owner.returned, self)
                except trio.RunFinishedError:
                    pass  # the daemon has stopped meanwhile

    def _end(self) -> bool:
        """The function is over. True if the call was given up meanwhile."""
        with self.lock:
            self.running = False
            return self.abandoned
