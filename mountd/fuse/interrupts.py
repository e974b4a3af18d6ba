"""Requests that wait, and what happens to them when their reader is killed.

The kernel keeps the caller of a request until it is answered, even after SIGKILL. It tells us, once a request, that a
signal has come; which signal it does not say. A reader that is being killed is answered EINTR at once, which nobody
will see. Any other signal (SIGALRM, SIGCHLD, a profiler's SIGPROF, Ctrl-C with a handler) changes nothing, since
programs do not expect EINTR from regular files; but as the kernel will not tell again, the thread is looked at again
while its request waits.

A handler that may wait for the source does so inside `waiting`. What it waits for goes on for others: fetches belong
to the daemon, a thread in the source stays until the source answers. Requests that are answered from memory are never
entered here: a cancel scope costs 9 us, a quarter of what the rest of a look-up does. One that is put off (`quota.py`)
is.

A caller in a pid namespace that we cannot see (thread 0) is left to wait.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.caller import is_dying
from hfs.mountd.core.errors import Interrupted
from hfs.mountd.core.metrics import Metrics

_FIRST_LOOK_S = 0.1
_LONGEST_LOOK_S = 1.0
"""How often a thread is looked at after a signal that did not kill it: 20 us each, for requests that wait for long."""


class Interruptible(Protocol):
    """What ends when its caller is killed."""

    @property
    def thread(self) -> int:
        """That of the caller; 0: not seen."""

    def end(self) -> None:
        """Nobody is there any more to hear of it."""


class WaitingRequest:
    """One request that waits. Of token 0 nothing interrupts it."""

    __slots__ = ("_interrupts", "_token", "scope", "thread")

    def __init__(self, interrupts: Interrupts, token: int, thread: int) -> None:
        self._interrupts = interrupts
        self._token = token
        self.thread = thread
        self.scope: trio.CancelScope | None = None

    def end(self) -> None:
        """The caller is being killed."""
        assert self.scope is not None
        self.scope.cancel()

    def __enter__(self) -> None:
        if self._token:
            self.scope = trio.CancelScope()
            self.scope.__enter__()
            self._interrupts.add(self._token, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.scope is None:
            return
        self._interrupts.remove(self._token)
        try:
            self.scope.__exit__(kind, error, trace)
        except Exception:  # what is left of a group that we ended
            if not self.scope.cancel_called:
                raise
        # Whatever else failed on the way out, nobody is there to hear of it.
        if self.scope.cancelled_caught or (self.scope.cancel_called and isinstance(error, Exception)):
            raise Interrupted("the reader was killed") from None


class Interrupts:
    """The requests that wait now, by token."""

    def __init__(self, nursery: trio.Nursery, metrics: Metrics, is_dying: Callable[[int], bool] = is_dying) -> None:
        self._nursery = nursery
        self._metrics = metrics
        self._is_dying = is_dying
        self._waiting: dict[int, Interruptible] = {}
        self._early = 0
        """The token of the latest request that was interrupted and did not wait: it may be about to."""

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self, request: tuple[int, int]) -> WaitingRequest:
        """`with` it: what happens inside ends with Interrupted if the caller of `request` is killed.

        `request`: (token, thread) as `fastpath.request` gave them before the handler's first await.
        """
        return WaitingRequest(self, *request)

    def add(self, token: int, waiting: Interruptible) -> None:
        """It waits from now on. It may have been interrupted before, which the kernel does not tell again."""
        self._waiting[token] = waiting
        if token == self._early and waiting.thread:
            start_guarded(self._nursery, "look at a signalled reader", self._look_again, token)

    def remove(self, token: int) -> None:
        """It does not wait any more."""
        del self._waiting[token]

    def interrupted(self, token: int) -> None:
        """The caller of this request has got a signal. Answered already, or not one that waits: nothing to do."""
        waiting = self._waiting.get(token)
        if waiting is None:
            self._early = token
        elif waiting.thread and not self._end_if_dying(waiting):
            start_guarded(self._nursery, "look at a signalled reader", self._look_again, token)

    def _end_if_dying(self, waiting: Interruptible) -> bool:
        if not self._is_dying(waiting.thread):
            return False
        self._metrics.add("interrupted")
        waiting.end()
        return True

    async def _look_again(self, token: int) -> None:
        pause_s = _FIRST_LOOK_S
        while True:
            await trio.sleep(pause_s)
            waiting = self._waiting.get(token)
            if waiting is None or self._end_if_dying(waiting):
                return
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
