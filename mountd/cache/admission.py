"""Admission: whether a chunk would be staged now, as far as disk and room go, and if not, why.

Asked before bytes are fetched in order to be staged, and by the writer before it takes them. What finds no room wakes
the evictor. Plain state on the event loop.
"""

from __future__ import annotations

import trio

from hfs.mountd.base.errors import NotTaken
from hfs.mountd.cache.evictor import Evictor
from hfs.mountd.cache.objects import CacheContext, StagedFile
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes


class Admission:
    """`ready` is set once what an earlier run left is gone: before that nothing is staged."""

    def __init__(self, context: CacheContext, evictor: Evictor, ready: trio.Event) -> None:
        self._context = context
        self._evictor = evictor
        self._ready = ready
        self.refused = False
        """The last chunk found no room."""

    @property
    def open(self) -> bool:
        """The disk is to be written to now."""
        return self._ready.is_set() and not self._context.health.resting

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be charged; if not, the evictor is told."""
        if self._context.room.fits(size_bytes):
            return True
        self.refused = True
        self._evictor.refused(size_bytes)
        return False

    def charge(self, size_bytes: int) -> None:
        """Account for what is about to be written."""
        self._context.room.charge(size_bytes)
        self.refused = False
        self._evictor.charged()

    def admits_nowait(self, file: StagedFile, size_bytes: int) -> bool:
        """Whether a chunk of so many bytes of this file would be staged now."""
        overhead_bytes = file.overhead_bytes() if file.object_id is None else 0
        return self.open and not file.present.too_many and self.has_room(blocks_bytes(size_bytes) + overhead_bytes)

    def fits_nowait(self, size_bytes: int) -> bool:
        """The same of a file of one chunk that is not known yet."""
        return self.open and self.has_room(blocks_bytes(size_bytes) + object_overhead_bytes(1))

    def why_not(self, size_bytes: int) -> str | None:
        """Why so many bytes of one file would not be staged now, for people; None: they would, if the disk keeps up."""
        if self.fits_nowait(size_bytes):
            return None
        return self._context.health.why_resting() or self._context.room.what_limits()

    def refusal(self, size_bytes: int) -> NotTaken:
        """What to raise for so many bytes that were not taken."""
        return NotTaken(self.why_not(size_bytes) or "the cache disk does not keep up")
