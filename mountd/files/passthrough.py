"""Passthrough: which staged files the kernel reads by itself, without asking us.

A complete and durable staged file is made known to the kernel as a backing file when a node of its version is opened,
and forgotten when the last handle goes: the kernel wants the same backing file for all handles of a node. `read_path`
asks for it before it decides how an open is answered (policies/iomode.py has the kernel's rules). Whatever fails here
only means that the file is read through us.

The kernel reads it without any look at its bytes, so the object must be sound (`cache.objects.changes`): with the stamp
that it was left with, or verified since. That is looked at at every open, and not afterwards: what another program
changes of an open backing file reaches its readers until they open it again.

Never decides about a node, never reads a byte. Event loop only; opening the object runs in staging's threads.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError, StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import PrefetchQueue
from hfs.mountd.files.handles import Handles
from hfs.mountd.kernel import fastpath
from hfs.mountd.namespace import Namespace

log = logging.getLogger(__name__)

_LOST_AT_MOST = 1024
"""Backing ids looked at: more than can have been under way; one that is not there costs a system call."""


class Passthrough:
    """The backing files of one mount."""

    def __init__(self, cache: Cache, metrics: Metrics) -> None:
        self._cache = cache
        self._metrics = metrics
        self._connection_fd = -1
        self._backings: dict[StagedFile, tuple[int, int]] = {}
        """Id, and the inode number of the object that it stands for."""
        self._lost: set[int] = set()
        """Ids of an earlier daemon that no handle has any more."""

    def __len__(self) -> int:
        return len(self._backings)

    @property
    def on(self) -> bool:
        """Files are passed through in this mount."""
        return self._connection_fd >= 0

    def start(self, connection_fd: int) -> None:
        """Pass files through from now on. `connection_fd`: the mount's descriptor of /dev/fuse."""
        self._connection_fd = connection_fd

    def stop(self) -> None:
        """The mount is gone, and all backing files with it."""
        self._connection_fd = -1

    def attach(self, file: StagedFile, backing_id: int, inode: int) -> None:
        """An earlier daemon has given the kernel this backing file for one handle of `file`; as `acquire`. `inode`: of
        the object, as `object_of` gave it."""
        self._backings.setdefault(file, (backing_id, inode))
        file.passed += 1

    def lose(self, backing_id: int) -> None:
        """An earlier daemon kept this backing file for opens that did not come; see `close_lost`."""
        self._lost.add(backing_id)

    def object_of(self, file: StagedFile) -> int:
        """The inode number of the object that the handles of `file` read; 0 if none is passed through."""
        backing = self._backings.get(file)
        return 0 if backing is None else backing[1]

    def close_lost(self, below: int) -> None:
        """`below`: a backing id that was just given out. The kernel gives them out in order, so those before it that no
        handle has are of a daemon that was killed between two steps; closed late, they would keep the blocks of evicted
        files."""
        known = {backing_id for backing_id, _ in self._backings.values()}
        for backing_id in self._lost.union(range(max(1, below - _LOST_AT_MOST), below)).difference(known):
            self._close(backing_id)
        self._lost.clear()

    def may(self, file: StagedFile) -> bool:
        """Whether a node that nobody has open may be passed through to `file`.

        Not to one that has lost a chunk while others read it: what they have is not known to be right any more. Nor to
        one that is another object by now than the one that they read.
        """
        backing = self._backings.get(file)
        same = backing is None or (file.stamp is not None and file.stamp.inode == backing[1])
        return self.on and file.durable and file.sound and same

    def acquire_nowait(self, file: StagedFile) -> int | None:
        """As `acquire`, if that needs no thread; else None."""
        backing = self._backings.get(file)
        if backing is None:
            if not self.may(file):
                return None
            try:
                backing = self._cache.publisher.publish_nowait(file, self._open)
            except (StagingError, OSError):
                return None  # `acquire` deals with it
            if backing is None:
                return None
            self._backings[file] = backing
        elif self._cache.publisher.is_sound_nowait(file) is not True:
            return None
        file.passed += 1
        return backing[0]

    async def acquire(self, file: StagedFile) -> int | None:
        """The id of the backing file for one more handle of `file`, which the caller has pinned; give it back with
        `release`. None if the file cannot be passed through now.

        For a node that is passed through already, or if the file `may` be. As long as there is a handle the backing
        file stays the same.
        """
        backing = self._backings.get(file)
        if backing is None and not self.may(file):
            return None
        # Before the first checkpoint: from now on nobody makes holes in the object.
        file.passed += 1
        if backing is not None:
            return backing[0]
        try:
            backing_id = await self._register(file)
        except BaseException:
            self.release(file)
            raise
        if backing_id is None:
            self.release(file)
        return backing_id

    def release(self, file: StagedFile) -> None:
        """Undo one `acquire`."""
        file.passed -= 1
        if not file.passed:
            backing = self._backings.pop(file, None)
            if backing is not None:
                self._close(backing[0])

    async def _register(self, file: StagedFile) -> int | None:
        try:
            backing = await self._cache.publisher.publish(file, self._open)
        except StagingError:
            return None  # counted there
        except OSError as error:
            self._metrics.add("passthrough_refused")
            log.debug("%r is not passed through: %s", file.path, fastpath.why_refused(error))
            return None
        held = self._backings.get(file)
        if held is None and file.durable and self.on:
            self._backings[file] = backing
            return backing[0]
        # Another open was faster, or the file was given up meanwhile.
        self._close(backing[0])
        return held[0] if held is not None else None

    def _open(self, fd: int) -> tuple[int, int]:
        return fastpath.open_backing(self._connection_fd, fd), os.fstat(fd).st_ino

    def _close(self, backing_id: int) -> None:
        if self.on:
            fastpath.close_backing(self._connection_fd, backing_id)


_MOST = 1024
"""Files that wait until their names are looked up; of more those that came first are left to their readers."""


class Refetching:
    """Fetches again what was found damaged under readers who do not ask us; `run` is a task of the daemon's.

    The handles of a file that is passed through, or that an overlay has open, cannot be given another backing file, so
    the right bytes are to come over the wrong ones, and soon.
    """

    def __init__(self, handles: Handles, queue: PrefetchQueue) -> None:
        self._handles = handles
        self._queue = queue
        self._unnamed: deque[tuple[StagedFile, list[int]]] = deque(maxlen=_MOST)
        self._more = trio.Event()

    def lost(self, file: StagedFile, indexes: Sequence[int]) -> None:
        """Chunks of a file that the kernel reads by itself were given up."""
        node = self._handles.reading_by_itself(file)
        if node is not None:
            self._queue.window_nowait(node, file, list(indexes))
        else:
            self._unnamed.append((file, list(indexes)))
            self._more.set()

    async def run(self, namespace: Namespace) -> None:
        """Look for those that nobody has open here: overlays do not say who reads. Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._unnamed:
                file, indexes = self._unnamed.popleft()
                try:
                    node = await namespace.lookups.resolve(file.path)
                except HfsError:
                    continue  # who asks for it meets that too
                if node.version == file.version:
                    self._queue.window_nowait(node, file, indexes)
