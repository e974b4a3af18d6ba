"""One mount's life: made, or taken up from the daemon before; served until it is unmounted; let go of.

What the requests are answered is told in `handlers` and `fast_handlers`.
"""

from __future__ import annotations

import os
import select

from hfs.mountd.kernel import DataPlane, SmallFetches, fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.background import start_for_life
from hfs.mountd.core.beat import Beat
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.handlers import Handlers
from hfs.mountd.fuse.quota import MAX_REQUESTS
from hfs.mountd.fuse.session import DevFuse, open_session
from hfs.mountd.wire.handover import Handover

_MOST_THREADS = 4
"""Of the data plane: a warm open and its close take one of them 10 to 20 us, so four serve 200 000 files a second."""

_MIN_TASKS = 8
"""Idle workers kept: pyfuse3 ends and starts tasks on every burst otherwise."""

_LAST_ANSWERS_S = 2.0
"""How long requests under way may go on when the daemon is told to stop; their readers then get an error."""

_LAST_MOMENT_S = 0.1
"""The same where another daemon takes over, for which everybody waits meanwhile."""

_LOOK_S = 1.0
"""How often the connection is looked at: a system call that does not wait. The keeper counts on it."""


class Fuse:
    """One mount. `mount` makes it, `run` serves it until it is unmounted, `close` takes what is left away."""

    def __init__(
        self,
        handlers: Handlers,
        fast: FastHandlers,
        device: DevFuse,
        plane: DataPlane,
        fetches: SmallFetches,
        yield_fd: int,
        *,
        threads: int,
    ) -> None:
        """`device` is told when the mount is made. `threads`: of the data plane; 0: as many as make sense.

        `yield_fd`: while it is readable, the event loop has its turn before further requests are answered at once.
        """
        self._handlers = handlers
        self._fast = fast
        self._device = device
        self._plane = plane
        self._fetches = fetches
        self._yield_fd = yield_fd
        self._threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._mounted = False
        self._resends = False
        self._beats_fd = -1
        self._serving = trio.CancelScope()

    def mount(
        self,
        mountpoint: str,
        source: str,
        *,
        allow_other: bool,
        noexec: bool,
        overlay: bool,
        handover: Handover | None = None,
    ) -> None:
        """Mount on `mountpoint`, or go on with the keeper's mount. `overlay`: the cache lies on an overlay file system.

        Raises RuntimeError as libfuse does, with its reason on standard error; MountError.
        """
        interrupted = self._handlers.boundary.interrupts.interrupted
        fastpath.want(interrupted, self._fast, yield_fd=self._yield_fd, stack_depth=int(overlay))
        self._device.opened(
            open_session(self._handlers, mountpoint, source, allow_other=allow_other, noexec=noexec, handover=handover)
        )
        self._resends = handover is not None and handover.generation > 0
        self._beats_fd = -1 if handover is None else handover.beats_fd
        self._mounted = True

    async def run(self) -> None:
        """Answer requests until the mount is gone, or `terminate` is called. Raises MountError."""
        if self._resends:  # before anything is read: it would come a second time
            fastpath.resend(self._device.get())
        self._plane.start(self._device.get(), self._threads, self._beats_fd)
        beat = Beat(self._beats_fd)
        try:
            with self._serving:
                async with trio.open_nursery() as nursery:
                    start_for_life(nursery, "watch of the connection", self._watch, beat)
                    await pyfuse3.main(min_tasks=_MIN_TASKS, max_tasks=MAX_REQUESTS)
                    nursery.cancel_scope.cancel()
        finally:
            beat.end()
            self._plane.stop()
            if not self._handlers.boundary.makes_room:
                self._handlers.boundary.quota.give_up_all()

    async def wait_begun(self) -> None:
        """Until the kernel's first request has been answered."""
        await self._handlers.begun.wait()

    async def _watch(self, beat: Beat) -> None:
        """Tell the keeper that the event loop turns. End `run` when the kernel has dropped the connection: requests
        whose readers have gone may wait for ever."""
        connection = select.poll()
        connection.register(self._device.get(), select.POLLERR)
        while not connection.poll(0):  # nobody sets an event: the kernel does not tell
            beat.turn()
            await trio.sleep(_LOOK_S)
        self._serving.deadline = trio.current_time() + _LAST_ANSWERS_S

    def terminate(self) -> None:
        """Make `run` return: at once for new requests, after a moment for those that wait for a hung source."""
        self._handlers.boundary.quota.stop()
        pyfuse3.terminate()
        self._serving.deadline = trio.current_time() + _LAST_ANSWERS_S

    def make_room(self) -> None:
        """As `terminate`, for another daemon that goes on: what cannot be answered in a moment is left to it."""
        self._fetches.stop(_LAST_MOMENT_S)
        self._plane.stop()  # what it gives out from here on the other daemon would not know
        self._handlers.boundary.make_room()
        pyfuse3.terminate()
        self._serving.deadline = trio.current_time() + _LAST_MOMENT_S

    def close(self, *, unmount: bool) -> None:
        """Let go of the session; with `unmount` take the mount away too."""
        if self._mounted:
            self._mounted = False
            pyfuse3.close(unmount=unmount)
