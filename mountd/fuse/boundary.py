"""The boundary of the handlers: what may leave one, and how its wait ends when its caller is killed.

pyfuse3 ends the mount for everybody on any exception but FUSEError. So each handler is `bounded`: its exceptions become
errnos by the table of `errors`; what no rule foresaw is logged with its traceback, counted and answered EIO. It counts
for its user as long as it runs. One that may wait is `interruptible` besides.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.caller import is_dying
from hfs.mountd.core.errors import HfsError, Interrupted, errno_of
from hfs.mountd.core.metrics import Metrics

log = logging.getLogger(__name__)


_FIRST_LOOK_S = 0.1
_LONGEST_LOOK_S = 1.0
"""How often a thread is looked at after a signal that did not kill it: 20 us each, for requests that wait for long."""


MAX_REQUESTS = 2000
"""Requests served at once. With pyfuse3's 99 as many readers hung in the source stopped every other read."""

_MOST_PUT_OFF = 65_536
"""More wait as others do: 300 bytes each."""


@dataclass(eq=False, slots=True)
class _PutOff:
    quota: RequestQuota
    which: int
    uid: int
    token: int
    thread: int

    def end(self) -> None:
        """The caller is being killed."""
        self.quota.give_up(self, errno.EINTR)


class RequestQuota:
    """Requests that wait, and what happens to them when their reader is killed.

    The kernel keeps the caller of a request until it is answered, even after SIGKILL. It tells us, once a request, that
    a signal has come; which signal it does not say. A reader that is being killed is answered EINTR at once, which
    nobody will see. Any other signal (SIGALRM, SIGCHLD, a profiler's SIGPROF, Ctrl-C with a handler) changes nothing,
    since programs do not expect EINTR from regular files; but as the kernel will not tell again, the thread is looked
    at again while its request waits.

    A handler that may wait for the source does so inside `waiting`. What it waits for goes on for others: fetches
    belong to the daemon, a thread in the source stays until the source answers. Requests that are answered from memory
    are never entered here: a cancel scope costs 9 us, a quarter of what the rest of a look-up does. One that is put off
    (`quota.py`) is.

    A caller in a pid namespace that we cannot see (thread 0) is left to wait. Event loop only.

    How many requests of one user wait at once, so that whoever has very many that hang keeps nobody else out.

    pyfuse3 has a task for each request that it serves, and `MAX_REQUESTS` of them. A user has as many as are left for
    all others: half where nobody else waits, a third where another does the same. What he asks beyond that is put off
    (mountd/native/_fastpath_kept.c) until one of those under way has ended; whoever is killed meanwhile is let go at
    once. Root and the owner of the mount have no bound.

    Event loop only.

    The requests that are served, and those that are put off, the oldest of each user first.
    """

    def __init__(self, interrupts: Interrupts, metrics: Metrics) -> None:
        self._interrupts = interrupts
        self._metrics = metrics
        self._served = 0
        self._of: Counter[int] = Counter()
        self._put_off: dict[int, OrderedDict[int, _PutOff]] = {}
        self._count = 0
        """Of those that are put off."""
        self._stopped = False

    def begin(self, uid: int) -> None:
        """A request of this user is served. It needs an `end`."""
        self._served += 1
        self._of[uid] += 1

    def end(self, uid: int) -> None:
        """It is not any more: of each user who has room again two go on, so that it is used up."""
        self._served -= 1
        self._of[uid] -= 1
        if not self._of[uid]:
            del self._of[uid]
        for other in () if self._stopped else list(self._put_off):
            for _ in range(2):
                if other in self._put_off and self._has_room(other):
                    self._go_on(other)

    def puts_off(self, which: int, uid: int, token: int, thread: int) -> bool:
        """Whether a request waits until its user has room. `which`: the extension's; `token`, `thread`: as
        `fastpath.request` says."""
        if (uid not in self._put_off and self._has_room(uid)) or self._count >= _MOST_PUT_OFF:
            return False
        off = _PutOff(self, which, uid, token, thread)
        self._put_off.setdefault(uid, OrderedDict())[which] = off
        self._count += 1
        self._metrics.add("requests_put_off")
        self._interrupts.add(token, off)
        return True

    def stop(self) -> None:
        """No more requests are begun: what is put off stays so."""
        self._stopped = True

    def give_up_all(self) -> None:
        """Nobody serves the mount any more: an error for all. Unanswered, a READ would keep its page locked."""
        for offs in list(self._put_off.values()):
            for off in list(offs.values()):
                self.give_up(off, errno.EIO)

    def _has_room(self, uid: int) -> bool:
        return self._of[uid] < MAX_REQUESTS - self._served

    def _go_on(self, uid: int) -> None:
        _, off = self._put_off[uid].popitem(last=False)
        self._forget(off)
        fastpath.go_on(off.which)

    def give_up(self, off: _PutOff, number: int) -> None:
        """It is answered with this errno."""
        del self._put_off[off.uid][off.which]
        self._forget(off)
        fastpath.give_up(off.which, number)

    def _forget(self, off: _PutOff) -> None:
        if not self._put_off[off.uid]:
            del self._put_off[off.uid]
        self._count -= 1
        self._interrupts.remove(off.token)


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


async def _nothing(_node_id: int) -> None:
    pass


@dataclasses.dataclass(eq=False)
class Boundary:
    """Of the handlers of one mount."""

    interrupts: Interrupts
    quota: RequestQuota
    metrics: Metrics
    before_stale: Callable[[int], Awaitable[object]] = _nothing
    """Called before somebody who asks about this node hears that it is not what it was."""
    makes_room: bool = dataclasses.field(init=False, default=False)
    """Requests that cannot be answered any more are left to another daemon, to which the kernel sends them again.
    """

    def make_room(self) -> None:
        """Another daemon takes the mount over."""
        self.quota.stop()
        self.makes_room = True


class _HasBoundary(Protocol):
    boundary: Boundary


_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Any]])


def bounded(handler: _Handler) -> _Handler:
    """Turns every exception of a handler into the FUSEError of the errno table."""

    @functools.wraps(handler)
    async def guarded(self: _HasBoundary, *args: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and gives
        uid = fastpath.request().uid
        self.boundary.quota.begin(uid)
        try:
            return await handler(self, *args)
        except pyfuse3.FUSEError:
            raise
        except trio.Cancelled:
            # The daemon stops. Unanswered, a READ would keep its page locked, a push would wait for that page, and the
            # kernel would not unmount before the push has ended. The next checkpoint is cancelled all the same.
            if self.boundary.makes_room:
                raise
            raise pyfuse3.FUSEError(errno.EIO) from None
        except Exception as error:  # the boundary: nothing else may leave a handler
            number = errno_of(error)
            if number is None:
                self.boundary.metrics.add("unexpected_errors")
                log.exception("unforeseen error in %s", handler.__name__)
                number = errno.EIO
            elif number == errno.EIO:
                log.warning("%s answered with an I/O error: %s", handler.__name__, error)
            raise pyfuse3.FUSEError(number) from None
        except BaseExceptionGroup as group:  # the daemon stops, and something has failed on the way
            waits, others = group.split(trio.Cancelled)
            if others is not None and not isinstance(others, ExceptionGroup):
                raise
            if self.boundary.makes_room and waits is not None:
                raise waits from None
            raise pyfuse3.FUSEError(errno.EIO) from None
        finally:
            self.boundary.quota.end(uid)

    return guarded  # type: ignore[return-value]  # functools.wraps keeps the signature, mypy cannot see it


def by_name(handler: _Handler) -> _Handler:
    """For handlers of a node, the first argument, to which their callers come by a name: after ESTALE the kernel looks
    that up anew."""

    @functools.wraps(handler)
    async def asking(self: _HasBoundary, *args: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and gives
        try:
            return await handler(self, *args)
        except HfsError as error:
            if errno_of(error) == errno.ESTALE:
                await self.boundary.before_stale(args[0])
            raise

    return asking  # type: ignore[return-value]  # as above


def interruptible(handler: _Handler) -> _Handler:
    """Ends what a handler waits for when the caller is killed. What needs no waiting was answered at once before."""

    @functools.wraps(handler)
    async def waiting(self: _HasBoundary, *args: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and gives
        with self.boundary.interrupts.waiting(fastpath.request()[:2]):
            return await handler(self, *args)

    return waiting  # type: ignore[return-value]  # as above
