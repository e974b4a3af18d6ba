"""Whether what a command would stage fits: the room that there is for it, and what others keep of that.

Room that idle caches and neighbours would give up counts as there, as far as the ledger knows; what is pinned does not.
Plain figures of the account; it reads nothing.
"""

from __future__ import annotations

from hfs.mountd.cache import Cache
from hfs.mountd.control.pending_files import PendingFiles
from hfs.mountd.control.progress import ProgressCounter

_FEW = 64
"""Files of a tree that say nothing of the others."""


class Fitting:
    """The room that there is at the moment when the command begins."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gives_up = cache.eviction.makes_room
        """All that is not pinned goes for what is new."""
        room = cache.room
        self.pinned_bytes = room.pinned_bytes
        self._used_bytes = room.used_bytes - cache.completions.granted_bytes

    def free_bytes(self, here_bytes: int = 0) -> int:
        """For files that are not staged; `here_bytes`: what those of the command take that are, and are not pinned."""
        stays_bytes = self.pinned_bytes + here_bytes if self._gives_up else self._used_bytes
        return max(0, self._cache.room.limit_bytes() - stays_bytes)

    def command_limit_bytes(self) -> int:
        """What one command may hold in all, were everything to go for it that may."""
        return max(0, self._cache.room.limit_bytes() - self.pinned_bytes)


class RoomWanted:
    """Of a warm: what it would take, as it gets known while it walks. Says once in `work` that it does not fit."""

    def __init__(self, fitting: Fitting, pending: PendingFiles, work: ProgressCounter) -> None:
        self._fitting = fitting
        self._pending = pending
        self._work = work
        self._lacks_bytes = self._here_bytes = 0

    def walked(self, lacks_bytes: int, here_bytes: int) -> None:
        """One file more: what it lacks, and what is there of it."""
        self._lacks_bytes += lacks_bytes
        self._here_bytes += here_bytes

    def look(self) -> None:
        """Look whether it is known by now. Names that nobody has looked at are as those that were fetched or found."""
        seen, unseen = self._pending.seen, self._work.unseen
        if self._work.room_bytes is not None or (unseen and seen < min(_FEW, unseen)):
            return
        wanted_bytes = self._lacks_bytes + self._pending.fetched_room_bytes * (seen + unseen) // max(1, seen)
        free_bytes = self._fitting.free_bytes(self._here_bytes)
        if wanted_bytes > free_bytes:
            self._work.room_bytes, self._work.free_bytes = wanted_bytes, free_bytes
