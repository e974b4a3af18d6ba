"""What staging tells of itself, for `hfs status` and for tests: plain figures."""

from __future__ import annotations

from dataclasses import dataclass

from hfs.mountd.cache.admission import Admission
from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.objects import CacheContext, ObjectIdAllocator, State
from hfs.mountd.cache.writer import StagedWriter


@dataclass(frozen=True, slots=True)
class StagingStatistics:
    """A moment of staging. Bytes unless the name says otherwise."""

    files: int
    """Staged files, complete or not."""
    bytes: int
    """Of staged chunks."""
    room_bytes: int
    """Accounted on the disk: staged, being staged, and evicted but not yet removed."""
    capacity_bytes: int
    """What may be used in all, as things stand: the size asked for, or what the disk's floor leaves."""
    pinned_files: int
    pinned_bytes: int
    """Of `room_bytes`, of files that go only by name."""
    shrunk_bytes: int
    """Of `bytes`, those of chunks that are stored in fewer bytes than they have."""
    shrunk_stored_bytes: int
    """How many stand for them on the disk."""
    queued_bytes: int
    """Held in memory until they are written."""
    uncommitted_bytes: int
    """Written, not yet durable."""
    state: State
    """ok; cleaning: what a crash has left is looked through, nothing is staged yet; resting: the disk failed when last
    written to, and is tried again later; full: the last chunk found no room; off: the index is damaged or the cache
    cannot be used, nothing is staged."""
    last_error: str | None
    full_because: str | None
    """Which limit leaves no room, while the state is full."""


def statistics_of(
    context: CacheContext,
    object_ids: ObjectIdAllocator,
    committer: Committer,
    writer: StagedWriter,
    admission: Admission,
    *,
    pinned_files: int,
    granted_bytes: int,
    is_ready: bool,
) -> StagingStatistics:
    """This moment. `granted_bytes`: room that others may use. `is_ready`: what an earlier run left is gone."""
    # What a thread has entered in the index a moment ago counts as uncommitted, too, until we have noted it.
    indexed_bytes = context.index.counts.bytes
    twice_bytes = context.index.writer.entered_bytes - committer.entered_bytes
    state: State = "ok"
    if context.health.off:
        state = "off"
    elif context.health.failing:
        state = "resting"
    elif not is_ready:
        state = "cleaning"
    elif admission.refused:
        state = "full"
    return StagingStatistics(
        files=context.index.counts.files + object_ids.open_count,
        bytes=indexed_bytes + committer.uncommitted_bytes - twice_bytes,
        room_bytes=context.room.used_bytes - granted_bytes,
        capacity_bytes=context.room.limit_bytes(),
        pinned_files=pinned_files,
        pinned_bytes=context.room.pinned_bytes,
        shrunk_bytes=context.index.counts.shrunk_bytes,
        shrunk_stored_bytes=context.index.counts.shrunk_stored_bytes,
        queued_bytes=writer.queued_bytes,
        uncommitted_bytes=committer.uncommitted_bytes,
        state=state,
        last_error=context.health.last_error,
        full_because=context.room.what_limits() if state == "full" else None,
    )
