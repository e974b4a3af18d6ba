"""What jobs have read of a mount, by what is known of it: opens, sizes, and the reads that reached the daemon.

The kernel answers reads by itself, from its page cache and from staged files that it passes through or an overlay
opens, and says nothing of them. Who opens a small file reads all of it, as a rule; of a large one nobody knows. So the
sum is about right where files are small and opens are seen, and a lower bound where they are not. Looks at nothing
itself.
"""

from __future__ import annotations

from typing import NamedTuple

WHOLE_BYTES = 8 << 20
"""Who opens a file of at most so many bytes is taken to read all of it: images, records, slices of volumes; databases
and archives of samples are larger. One chunk. In C too: plane.h."""


class ReadCounts(NamedTuple):
    """Since the daemon began."""

    cached_bytes: int
    """Sizes of the small files that were opened through the page cache, for each open."""
    passed_bytes: int
    """The same of those that were passed through."""
    read_bytes: int
    """Given by the daemon to reads, of whichever files."""
    large_read_bytes: int
    """Of these those of large files."""
    large_passed: int
    """Opens of large files that were passed through."""
    unseen_opens: int
    """Files whose opens do not reach us any more (stateless, overlays)."""
    fetched_bytes: int = 0
    """Of small files, by the source and other nodes: what was put into the page cache before it was asked for is in no
    read."""


class Estimate(NamedTuple):
    """What jobs have read."""

    read_bytes: int
    is_at_least: bool
    """It may have been more; else it is about that."""
    passed_bytes: int = 0
    """Of these, what the kernel has read from staged files by itself."""
    memory_bytes: int = 0
    """Of these, what it had in its page cache, and not because it was fetched just then. The rest has come from the
    daemon."""


def estimated(counted: ReadCounts) -> Estimate:
    """What jobs have read, of what was counted."""
    served_bytes = counted.read_bytes - counted.large_read_bytes
    small_bytes = max(counted.cached_bytes, served_bytes)
    read_bytes = small_bytes + counted.passed_bytes + counted.large_read_bytes
    unknown = counted.large_read_bytes or counted.large_passed or counted.unseen_opens
    memory_bytes = max(0, small_bytes - max(served_bytes, counted.fetched_bytes))
    return Estimate(read_bytes, bool(unknown), counted.passed_bytes, memory_bytes)
