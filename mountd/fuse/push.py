"""The kernel's page cache of our mount: bytes that are put there before anybody asks for them.

`fetcher` pushes what it has fetched, `opening` a small file whose reader is about to read it. In a thread, since the
kernel may wait for a page before it takes the bytes, and whoever waits for the push may give up before: what the push
needs until its end must then outlive them, so the thread itself says when it is over. Never on the event loop, which
may be the one who is to answer the READ that has the page. What cannot be pushed is counted; its readers come to us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from hfs.mountd.kernel import fastpath  # noqa: F401 - imported for its effect

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace import Namespace, Node
from hfs.policies.geometry import clamp

_STORE_BYTES = 1 << 20
"""Bytes of one push: the largest the kernel takes in one notification."""


class KernelPageCache:
    """Implements `fetcher.PageCache`. `run_in_thread`: as trio.to_thread.run_sync; `run_soon` runs something on the
    event loop and may be called in such a thread."""

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
