"""What staging tells of itself, for `hfs status` and for tests. Made by `Staging.statistics`; plain figures."""

from __future__ import annotations

from dataclasses import dataclass

from mountd.staging_room import State

__all__ = ["StagingStatistics"]


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
    encoded_bytes: int
    """Of `bytes`, those that are kept encoded."""
    encoded_stored_bytes: int
    """How many stand for them on the disk."""
    queued_bytes: int
    """Held in memory until they are written."""
    unvouched_bytes: int
    """Written, not yet durable."""
    state: State
    """ok; resting: the disk failed and is tried again later, or is being cleaned up after a crash; full: the last chunk
    found no room; off: the index is damaged, nothing is staged."""
    last_error: str | None
