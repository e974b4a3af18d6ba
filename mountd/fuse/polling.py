"""Without the extension: pyfuse3 on a connection that never blocks.

The kernel says that there is a request, and takes it back before it is read when its caller is killed. On a descriptor
that blocks, the event loop then stands until somebody asks again; on one that does not, pyfuse3 (3.5) takes EAGAIN for
the end of the session. So here it is given a trio of ours, as pyfuse3.asyncio gives it one of its own, whose tasks go
on after EAGAIN. The buffer of that one read is lost each time (1 MB of address space, of which what was used before is
memory), since pyfuse3 keeps it in a variable of its own; after `_MOST` of them the descriptor blocks again.

With the extension none of this is used: it asks by itself whether there is another request.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyfuse3
import trio

_MOST = 1000


class Polling:
    """What pyfuse3 takes for trio. `device`: the descriptor of /dev/fuse."""

    def __init__(self, device: int) -> None:
        self.missed = 0
        """Requests that were taken back before they were read."""
        self._device = device

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever trio has under this name
        return getattr(trio, name)

    @contextlib.asynccontextmanager
    async def open_nursery(self) -> AsyncIterator[_Nursery]:
        """That of pyfuse3's workers."""
        async with trio.open_nursery() as nursery:
            yield _Nursery(nursery, self)

    def miss(self) -> None:
        """A request was taken back."""
        self.missed += 1
        if self.missed == _MOST:
            os.set_blocking(self._device, True)


class _Nursery:
    """Starts pyfuse3's workers, each of which starts more."""

    def __init__(self, nursery: trio.Nursery, polling: Polling) -> None:
        self._nursery = nursery
        self._polling = polling

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """As trio's."""
        return self._nursery.cancel_scope

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object, name: object = None) -> None:
        """As trio's."""
        self._nursery.start_soon(self._work, function, args, name=name)

    async def _work(self, function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        while True:
            try:
                await function(*args)
                return
            except BlockingIOError:  # of the read of a request: handlers raise FUSEError alone
                self._polling.miss()


def never_block(device: int) -> Polling:
    """Have pyfuse3 wait for requests on `device`, its connection, without ever blocking. Before it serves."""
    polling = Polling(device)
    pyfuse3.trio = polling  # type: ignore[attr-defined]  # it is meant to be set, by pyfuse3.asyncio
    os.set_blocking(device, False)
    return polling
