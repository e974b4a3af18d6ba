"""The database of what is staged and committed: files, chunks, checksums, stamps. SQLite in WAL mode.

Nobody else opens it. It never touches an object; what it does not know is garbage.
"""

from mountd.cache.index.index import ChunkRow, Committed, Connect, Index, IndexFailed, ScrubRow, StagedRow, Stamp
from mountd.cache.index.schema import lock_cache

__all__ = ["ChunkRow", "Committed", "Connect", "Index", "IndexFailed", "ScrubRow", "StagedRow", "Stamp", "lock_cache"]
