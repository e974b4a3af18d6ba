"""The database of what is staged and committed: files, chunks, checksums, stamps. SQLite in WAL mode.

Nobody else opens it. It never touches an object; what it does not know is garbage.
"""

from mountd.cache.index.index import ChunkRow, Connect, Index, IndexFailed, ScrubRow, StagedRow, Stamp, Vouched
from mountd.cache.index.schema import lock_cache

__all__ = ["ChunkRow", "Connect", "Index", "IndexFailed", "ScrubRow", "StagedRow", "Stamp", "Vouched", "lock_cache"]
