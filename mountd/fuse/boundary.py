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
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.errors import HfsError, errno_of
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse.interrupts import Interrupts
from hfs.mountd.fuse.quota import RequestQuota

log = logging.getLogger(__name__)


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
