"""One daemon's share of a mount: the keeper's connection, taken up; served until it is unmounted; let go of.

What the requests are answered is told in `handlers` and `fast_handlers`.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from hfs.mountd.kernel import DataPlane, SmallFetches, fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.background import start_for_life
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse.boundary import MAX_REQUESTS
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.handlers import Handlers
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.wire.handover import Handover
from hfs.policies.geometry import clamp

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

_BEAT_WORKS, _BEAT_STEP = 1, 4
"""As in mountd/native/plane/plane.h."""


_STORE_BYTES = 1 << 20
"""Bytes of one push: the largest the kernel takes in one notification."""


class KernelPageCache:
    """The kernel's page cache of our mount: bytes that are put there before anybody asks for them.

    `fetcher` pushes what it has fetched, `opening` a small file whose reader is about to read it. In a thread, since
    the kernel may wait for a page before it takes the bytes, and whoever waits for the push may give up before: what
    the push needs until its end must then outlive them, so the thread itself says when it is over. Never on the event
    loop, which may be the one who is to answer the READ that has the page. What cannot be pushed is counted; its
    readers come to us.

    Implements `fetcher.PageCache`. `run_in_thread`: as trio.to_thread.run_sync; `run_soon` runs something on the event
    loop and may be called in such a thread.
    """

    def __init__(
        self,
        namespace: Namespace,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        run_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self._namespace = namespace
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._run_soon = run_soon
        self._limiter = trio.CapacityLimiter(2)
        self._whole_limiter = trio.CapacityLimiter(2)
        """Of their own: no reader has their pages, so an open that waits for one waits for nobody else's."""

    async def push(self, node: Node, offset: int, data: memoryview) -> bool:
        """Put `data` into the page cache of `node` at `offset`, cut at the end of the file. False if it was refused.

        In a thread: the kernel may wait for a page that a reader is being answered into.
        """
        return await self._push(node, offset, data, self._limiter)

    async def push_whole(self, node: Node, data: memoryview) -> bool:
        """As `push`, of the whole of a small file that nobody has open whose open was answered."""
        return await self._push(node, 0, data, self._whole_limiter)

    async def _push(self, node: Node, offset: int, data: memoryview, limiter: trio.CapacityLimiter) -> bool:
        if not node.lookups:
            return False
        extent = clamp(offset, len(data), node.attributes.size)
        number, view = node.id, data[: extent.size]
        # The kernel may forget the inode meanwhile; its number must not be another file's when the bytes arrive. So the
        # node is held until the thread has ended, which may be long after a caller that was cancelled has left.
        self._namespace.holds.hold(node)
        push = _PushInThread(
            lambda: _store(number, offset, view), lambda: self._run_soon(lambda: self._namespace.holds.release(node))
        )
        try:
            await self._run_in_thread(push.run, limiter=limiter, abandon_on_cancel=True)
        except OSError:
            self._metrics.add("push_errors")  # the kernel has forgotten the inode: nobody will miss the pages
            return False
        finally:
            if push.claim():
                self._namespace.holds.release(node)  # it never began
        self._metrics.add("pushed_bytes", extent.size)
        return True


class _PushInThread:
    """`run` calls `store` and then `ended`, in a thread. If the push was given up before it began, neither."""

    def __init__(self, store: Callable[[], None], ended: Callable[[], object]) -> None:
        self._store = store
        self._ended = ended
        self._unclaimed = [True]

    def claim(self) -> bool:
        """True for the first who asks: the thread that begins, or the caller that has given up before. Any thread."""
        try:
            return self._unclaimed.pop()  # one step for the interpreter: no two get it
        except IndexError:
            return False

    def run(self) -> None:
        """In a thread. Raises what `store` raises."""
        if not self.claim():
            return
        try:
            self._store()
        finally:
            with contextlib.suppress(trio.RunFinishedError):  # the daemon has stopped meanwhile
                self._ended()


def _store(number: int, offset: int, data: memoryview) -> None:
    """In a thread, without the GIL: the kernel copies `data` into its page cache."""
    for start in range(0, len(data), _STORE_BYTES):
        part = data[start : start + _STORE_BYTES]
        pyfuse3.notify_store(number, offset + start, part)  # type: ignore[arg-type]  # the stub says bytes


class Beat:
    """The event loop's: by it the keeper sees that it turns (mountd/supervisor/pulse.py). The first in the keeper's
    memfd; -1: nobody looks."""

    def __init__(self, beats_fd: int) -> None:
        self._beats_fd = beats_fd
        self._turns = 0

    def turn(self) -> None:
        """It goes on, and will again within a second or two."""
        self._turns += _BEAT_STEP
        self._write(self._turns | _BEAT_WORKS)

    def end(self) -> None:
        """It will not, and need not."""
        self._write(0)

    def _write(self, turns: int) -> None:
        if self._beats_fd >= 0:
            os.pwrite(self._beats_fd, struct.pack("=Q", turns), 0)


class Fuse:
    """One mount. `begin` takes it up, `run` serves it until it is unmounted, `close` lets go of it."""

    def __init__(
        self,
        handlers: Handlers,
        fast: FastHandlers,
        handover: Handover,
        plane: DataPlane,
        fetches: SmallFetches,
        yield_fd: int,
        *,
        threads: int,
    ) -> None:
        """`threads`: of the data plane; 0: as many as make sense.

        `yield_fd`: while it is readable, the event loop has its turn before further requests are answered at once.
        """
        self._handlers = handlers
        self._fast = fast
        self._handover = handover
        self._plane = plane
        self._fetches = fetches
        self._yield_fd = yield_fd
        self._threads = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._begun = False
        self._serving = trio.CancelScope()

    def begin(self, *, overlay: bool) -> None:
        """Make libfuse's session of the mount. `overlay`: the cache lies on an overlay file system.

        Raises RuntimeError as libfuse does, with its reason on standard error; MountError.
        """
        fastpath.libfuse_in_use()
        interrupted = self._handlers.boundary.interrupts.interrupted
        fastpath.want(interrupted, self._fast, yield_fd=self._yield_fd, stack_depth=int(overlay))
        fastpath.feed(self._handover.init)
        # Whoever mounts has set the other options.
        pyfuse3.init(self._handlers, f"/dev/fd/{self._handover.connection_fd}", {"default_permissions"})
        self._begun = True
        fastpath.check_in_front()
        os.set_blocking(self._handover.connection_fd, False)  # the extension asks whether there is another request

    async def run(self) -> None:
        """Answer requests until the mount is gone, or `terminate` is called. Raises MountError."""
        connection_fd, beats_fd = self._handover.connection_fd, self._handover.beats_fd
        if self._handover.generation:  # before anything is read: it would come a second time
            fastpath.resend(connection_fd)
        self._plane.start(connection_fd, self._threads, beats_fd)
        beat = Beat(beats_fd)
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
        connection.register(self._handover.connection_fd, select.POLLERR)
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

    def close(self) -> None:
        """Let go of the session."""
        if self._begun:
            self._begun = False
            pyfuse3.close(unmount=False)
