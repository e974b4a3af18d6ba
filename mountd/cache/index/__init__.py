"""The database of what is staged and committed: files, chunks, checksums, stamps. SQLite in WAL mode.

Nobody else opens it. It never touches an object; what it does not know is garbage.
"""

from hfs.mountd.cache.index.attribute_rows import AttributesRow, Folder, inode_of
from hfs.mountd.cache.index.database import IndexFailed
from hfs.mountd.cache.index.index import Index
from hfs.mountd.cache.index.rows import ChunkRow, Committed, ScrubRow, StagedRow, Stamp
from hfs.mountd.cache.index.schema import Connect, in_memory

__all__ = [
    "AttributesRow",
    "ChunkRow",
    "Committed",
    "Connect",
    "Folder",
    "Index",
    "IndexFailed",
    "ScrubRow",
    "StagedRow",
    "Stamp",
    "in_memory",
    "inode_of",
]
