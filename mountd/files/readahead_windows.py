"""Readahead: what is fetched ahead of a reader because of what it has read.

Joins the policy (policies/prefetch/readahead.py: sequential and strided readers) and the history of a file (readers who
repeat themselves) to the prefetch queue. Where an epoch plan says what comes next, neither says anything. Never
fetches.
"""

from __future__ import annotations

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.fetch import PUSH_STEP_BYTES, History, Owners, PrefetchQueue, Resolver
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.hints import FollowedPlans
from hfs.policies.geometry import Extent, chunk_range
from hfs.policies.prefetch.readahead import Advice, Kind, Limits, advise
from hfs.policies.schedule.successors import Trail

_NEXT_ELSEWHERE = 2
"""Chunks of a window that other nodes own: they come in milliseconds, and only memory holds them until then."""

_WINDOW_BUFFER_SHARE = 4
"""A reader's window takes at most a quarter of the buffers, so that four sequential readers do not starve each
other."""

_MOST_WINDOW_BYTES = 64 << 20


class ReadaheadWindows:
    """Event loop only."""

    def __init__(
        self,
        resolver: Resolver,
        owners: Owners,
        cache: Cache,
        history: History,
        plans: FollowedPlans,
        queue: PrefetchQueue,
        *,
        buffer_bytes: int,
        pushes: bool,
    ) -> None:
        """`pushes`: the kernel's page cache may answer reads that are not seen then."""
        self._resolver = resolver
        self._owners = owners
        self._cache = cache
        self._history = history
        self._plans = plans
        self._queue = queue
        self._window_bytes = min(_MOST_WINDOW_BYTES, buffer_bytes // _WINDOW_BUFFER_SHARE)
        self._unseen_bytes = PUSH_STEP_BYTES if pushes else 0
        self._limits: dict[int, Limits] = {}

    def saw(self, handle: FileHandle, extent: Extent) -> Advice:
        """A READ of an incomplete file; what comes next is queued."""
        file = handle.file
        limits = self._limits.get(file.chunk_bytes)
        if limits is None:
            window_bytes = max(file.chunk_bytes, self._window_bytes)
            limits = self._limits[file.chunk_bytes] = Limits(file.chunk_bytes, window_bytes, self._unseen_bytes)
        advice = advise(handle.pattern, extent, file.size, limits)
        if self._plans.is_planned(file.version, extent.start // file.chunk_bytes):
            return advice  # the order says what comes next
        for window in advice.windows:
            indexes = [i for i in chunk_range(window, file.chunk_bytes) if i not in file.present]
            if not self._cache.admission.admits_nowait(file, file.chunk_bytes):
                indexes = indexes[:1]  # what is not staged must not be far ahead: nobody keeps it
            elsewhere = [i for i in indexes if not self._owners.caches_locally(handle.node.path, i)]
            if len(elsewhere) > _NEXT_ELSEWHERE:
                indexes = [i for i in indexes if i not in elsewhere[_NEXT_ELSEWHERE:]]
            if indexes:
                self._queue.window_nowait(handle.node, file, indexes)
        return advice

    def saw_piece(self, handle: FileHandle, extent: Extent, advice: Advice, *, here: bool | None = None) -> None:
        """A READ in one chunk of an incomplete file, of which `advice` says nothing more: its history may.

        `here`: it is answered without the source; None: find out.
        """
        file: StagedFile = handle.file
        index = extent.start // file.chunk_bytes
        if advice.kind in (Kind.SEQUENTIAL, Kind.STRIDED) or file.size <= file.chunk_bytes:
            return
        if self._plans.is_planned(file.version, index) or self._queue.is_filling(handle.node):
            return
        if handle.trail is None:
            handle.trail = Trail()
        ahead = self._history.read(
            file,
            handle.trail,
            extent,
            here=self._resolver.is_here(file, index) if here is None else here,
            is_here=lambda i: self._resolver.is_here(file, i),
        )
        if ahead:
            self._queue.window_nowait(handle.node, file, ahead)
