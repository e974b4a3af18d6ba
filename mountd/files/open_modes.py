"""How an open is answered: through the page cache of the mount, or with a backing file that the kernel reads by itself.

The rules are the kernel's (policies/iomode.py): all handles of a node have one mode. What is passed through must be
complete, durable and sound; a large file that will be so in a moment is waited for. Never opens a handle.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from hfs.mountd.cache import Cache, ExposedObjects, StagedFile
from hfs.mountd.core.errors import VersionChanged, shown_path
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files.io_mode import IoMode
from hfs.mountd.files.overlays import ChangedNames
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.namespace import Namespace, Node, recall
from hfs.policies.iomode import Answer, answer
from hfs.policies.traffic import WHOLE_BYTES

_OPEN_WAIT_S = 2.0
"""How long an open may wait for a large file whose fill is about to end: its handle is then passed through for as long
as it lives."""

_VERIFIED_AT_OPEN_BYTES = 2 << 30
"""What is read and hashed in that time, by four threads from an NVMe drive."""

_LOOK_S = 0.02
"""How often it is looked meanwhile; a chunk takes about as long."""


_MAX_THREADS = 64
"""Remembered of a node; more are answered through the page cache, which is always allowed."""

_MAX_STALE = 1024
"""Threads whose open comes back by another node. Those that were sent away first are forgotten."""

_BEFORE_S = 10.0
"""So long after a daemon has taken over, anybody may have been sent away by the one before."""


class SentAway:
    """Threads whose open was answered with ESTALE: its I/O mode stood in the way of a better one, or the node has gone.

    The kernel looks the name up again, once, and opens the node that it is given then: that open must be answered,
    whatever has happened meanwhile, another daemon included. Kept for each node as long as that lives.
    """

    def __init__(self, telling: ExposedObjects | None = None) -> None:
        """`telling`: of overlays, which would not find the other node of a name that they have looked up; None: there
        are none."""
        self._telling = telling
        self._threads: dict[Node, set[int]] = {}
        self._stale: dict[int, None] = {}
        """Sent away from whatever node."""
        self._everybody_until_s: float | None = None

    def inherit(self) -> None:
        """An earlier daemon may have sent anybody away."""
        self._everybody_until_s = trio.current_time() + _BEFORE_S

    def add_stale(self, thread_id: int) -> None:
        """An open by this thread is answered with ESTALE: its node, or the version that it is of, has gone."""
        self._stale.pop(thread_id, None)
        self._stale[thread_id] = None
        if len(self._stale) > _MAX_STALE:
            del self._stale[next(iter(self._stale))]

    def may_have(self, thread_id: int) -> bool:
        """Whether this thread may have been sent away, from whatever node, and by whomever, or must not be."""
        if self._telling is not None and self._telling.has_makers:
            return True
        if self._everybody_until_s is not None and trio.current_time() >= self._everybody_until_s:
            self._everybody_until_s = None
        return thread_id in self._stale or self._everybody_until_s is not None

    def has(self, node: Node, thread_id: int) -> bool:
        """Whether an open of `node` by this thread must be answered; also true once there are too many to tell."""
        threads = self._threads.get(node)
        return threads is not None and (thread_id in threads or len(threads) >= _MAX_THREADS)

    def add(self, node: Node, thread_id: int) -> None:
        """The open of `node` by this thread is answered with ESTALE, or its next one will be of `node`."""
        self._threads.setdefault(node, set()).add(thread_id)

    def came_back(self, node: Node, thread_id: int) -> None:
        """An open of `node` by this thread is answered."""
        self._stale.pop(thread_id, None)
        threads = self._threads.get(node)
        if threads is not None:
            threads.discard(thread_id)
            if not threads:
                del self._threads[node]

    def forget(self, node: Node) -> None:
        """Nobody knows `node` any more."""
        self._threads.pop(node, None)


@dataclass(eq=False, repr=False)
class OpenModes:
    """Event loop only."""

    _namespace: Namespace
    _cache: Cache
    _io_mode: IoMode
    _passthrough: Passthrough
    _sent_away: SentAway
    _queue: PrefetchQueue
    _metrics: Metrics
    changed: ChangedNames

    @property
    def stateless(self) -> bool:
        """Opens are not to be answered: the kernel reads without handles."""
        return self._io_mode.stateless

    @property
    def may_be_stateless(self) -> bool:
        """They may be so sooner or later."""
        return self._io_mode.may_be_stateless

    def opening(self, node: Node, file: StagedFile) -> None:
        """A file is about to be opened: the mode of the mount may follow from it. One that is opened again says nothing
        new."""
        if node.version is not None and not (node.pushed or node.opens):
            self._io_mode.opening(node.version.size, staged=file.has_row)

    def passes_nowait(self, node: Node, file: StagedFile) -> bool | None:
        """Whether an open is passed through; None if that cannot be said without waiting."""
        if self._is_about_to_pass(node, file):
            return None
        may_pass = self._passthrough.may(file)
        if node.passed and not may_pass:
            return None
        if may_pass and (node.passed or self._io_mode.passes(file.size, pushed=node.pushed)):
            return True if node.opens == node.passed else None  # another mode stands in the way
        return False

    def acquire_nowait(self, file: StagedFile) -> int | None:
        """The backing file of an open that is passed through; None if that needs waiting."""
        return self._passthrough.acquire_nowait(file)

    async def choose(self, node: Node, file: StagedFile, thread_id: int) -> int | None:
        """The backing file of an open that is passed through; None for one through the page cache.

        Raises VersionChanged where the mode of the node stands in the way of a better one.
        """
        if self._is_about_to_pass(node, file):
            await self._wait_durable(file)
        if self._passthrough.on and file.durable:
            await self._verify(node, file)
        return await self._mode(node, file, thread_id)

    def stale(self, thread_id: int) -> None:
        """An open by this thread is answered with ESTALE. The kernel looks the name up again once: the next one must be
        answered otherwise."""
        self._sent_away.add_stale(thread_id)

    def opened(self, node: Node, file: StagedFile, backing_id: int | None, thread_id: int) -> int:
        """A handle is made for thread `thread_id`. The inode number of its backing file, 0 without."""
        self._sent_away.came_back(node, thread_id)
        if backing_id is None:
            self._metrics.add("opens_cached")
            if file.size <= WHOLE_BYTES:
                self._metrics.add("opened_cached_bytes", file.size)
            return 0
        self._metrics.add("opens_passed")
        if file.size <= WHOLE_BYTES:
            self._metrics.add("opened_passed_bytes", file.size)
        else:
            self._metrics.add("opens_large_passed")
        return self._passthrough.object_of(file)

    def closed(self, file: StagedFile, backing_id: int | None) -> None:
        """A handle is gone."""
        if backing_id is not None:
            self._passthrough.release(file)

    def _is_about_to_pass(self, node: Node, file: StagedFile) -> bool:
        """Whether a large file will be all here, and durable, in a moment.

        The handle of an incomplete file is read through us until its reader closes it, which may be for days; two
        seconds now are cheaper. Where more is missing the reader starts at once, and later opens find it complete.
        """
        if file.durable or not file.plain or file.present.count < 2 or not self._passthrough.on:
            return False
        return file.complete or self._queue.fill_remaining_s(node) <= _OPEN_WAIT_S

    async def _wait_durable(self, file: StagedFile) -> None:
        with trio.move_on_after(_OPEN_WAIT_S):
            while not file.complete:  # noqa: ASYNC110 - an event for each chunk of each file would serve only this
                await trio.sleep(_LOOK_S)
            await self._cache.committer.wait_committed()

    async def _verify(self, node: Node, file: StagedFile) -> None:
        """See that what the kernel is about to read by itself is right: by its stamp, else by its checksums.

        Where those take longer than an open may wait, this open is read through us, by verified chunks.
        """
        if await self._cache.publisher.is_sound(file) or not self._io_mode.passes(file.size, pushed=node.pushed):
            return
        with trio.move_on_after(_OPEN_WAIT_S if file.size <= _VERIFIED_AT_OPEN_BYTES else 0):
            await self._cache.verifying.wait_verified(file)

    async def _mode(self, node: Node, file: StagedFile, thread_id: int) -> int | None:
        passes = self._io_mode.passes(file.size, pushed=node.pushed)
        passable = (node.passed > 0 or passes) and self._passthrough.may(file)
        backing_id = None
        if node.passed or (passable and not node.opens):
            backing_id = await self._passthrough.acquire(file)
            passable = passable and backing_id is not None
        recall(node)  # another open may have been delegated meanwhile
        chosen = answer(
            cached=node.opens - node.passed,
            passed=node.passed,
            passable=passable,
            # Whoever may have been sent away from elsewhere gets what is always right, never what is no longer so.
            sent_away=self._sent_away.has(node, thread_id) or (not node.passed and self._sent_away.may_have(thread_id)),
        )
        if chosen is Answer.PASSED:
            return backing_id
        if backing_id is not None:
            self._passthrough.release(file)
        if chosen is Answer.ANEW:
            self._metrics.add("opens_anew")
            self._sent_away.add(node, thread_id)
            fresh = self._namespace.tree.renew(node)
            if fresh is not None:  # whatever happens until it is opened: the kernel looks a name up again only once
                self._sent_away.add(fresh, thread_id)
            raise VersionChanged(f"{shown_path(node.path)} is read another way now")
        return None
