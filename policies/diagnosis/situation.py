"""What is known of a mount and of those who read it, in the figures that causes are found by. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOMENT_S = 2.0
"""Who has waited less than this in a minute has no reason to change anything; a job's first reads always wait, and a
daemon that begins computes."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Of the last minute where it says so, else since the daemon began. Times in seconds, sizes in bytes."""

    seconds: float = 60.0
    """How long the last minute was: less, when the daemon has just begun."""
    readers: int = 0
    """Processes that the daemon has served."""
    learners: int = 0
    """That tell their order."""
    kernel_opens: bool = False
    """What is staged is opened and read by the kernel itself, in overlays: how long that takes is in no figure."""
    in_memory: float | None = None
    """The share of what is staged that lies in memory, by a sample; None: nobody has looked."""
    cores: int = 1
    """Of those who read, where they have told."""
    workers: int | None = None
    """Processes that load for the learners, at most; None: nobody knows."""
    loaders: int = 1
    """Learners that have told of theirs."""

    source_errors: int = 0
    source_failure: str = ""
    """What the source has answered last, if that was an error; empty: it answers."""

    source_calls_hanging: int = 0
    """Calls that are at the source for longer than a call takes."""

    nodes_missing: str = ""
    """Names of those of the job that have gone, or did not answer and are left alone for a while."""

    minute_source_bytes: int = 0
    minute_peer_bytes: int = 0
    minute_staged_bytes: int = 0
    """So much more is staged than a minute ago."""
    minute_source_wait_s: float = 0.0
    """All readers together have waited so long for the source."""
    minute_loop_s: float = 0.0
    """The daemon's event loop, which is one thread, has computed so long."""
    minute_core_wait_s: float = 0.0
    """It was ready to so long, and had no core."""

    read_bytes: int = 0
    source_bytes: int = 0
    source_wait_s: float = 0.0

    exposed_s: float = 0.0
    """What learners have waited for data in the last epochs that they have told of, on average, and in how long."""
    epoch_s: float = 0.0
    epoch_source_wait_s: float = 0.0

    large_reads: int = 0
    """Of files of several chunks, at the source."""
    large_reads_ordered: int = 0
    bypass_bytes: int = 0
    """Small extents of a large file, fetched for one reader."""
    large_read_bytes: int = 0
    """Given to reads of large files."""
    absolute_links: int = 0
    """Links that lead out of the mount."""
    renumbered: int = 0
    """Names that were found with another inode number, and are unchanged else."""
    version_changes: int = 0
    """Files that were found changed, these among them."""
    slow_handles: int = 0
    """Files that were opened before they were staged, and would be read faster if they were opened again."""
    evicted_bytes: int = 0
    staged_bytes: int = 0
    room_bytes: int = 0
    """What that takes on the disk."""
    capacity_bytes: int = 0
    full_because: str = ""
    """What leaves no more room, if the cache is full."""
    disk_state: str = "ok"
    disk_error: str = ""
    staging_behind: int = 0
    """Chunks that the disk did not take in time."""
    staged_chunks: int = 0
    neighbour_demand_s: float = 0.0
    """For so long of the last minute this mount's fetching ahead has stepped back for readers of other mounts."""

    @property
    def wait_share(self) -> float:
        """The share of a reader's time that waiting for the source takes, 0..1: of the epochs that were told, else of
        the last minute."""
        if self.epoch_s > 0:
            return min(1.0, self.exposed_s / self.epoch_s)
        return self.blocked_share

    @property
    def blocked_share(self) -> float:
        """The share of the last minute that a reader was blocked by the source, 0..1; 0 where it was a moment only."""
        each_s = self.minute_source_wait_s / max(1, self.readers)
        return min(1.0, each_s / self.seconds) if self.seconds > 0 and each_s >= MOMENT_S else 0.0
