"""Staged files: what of the source lies on the node's disk, found again after a crash, verified, bounded.

`Staging` is the face; readers, writers, committer, evictor, reclaimer and scrub are its parts. A fault of the disk or
the index costs staging, never a read. It never asks the source. `index` holds the database, `objects` the files.
"""

from mountd.cache.objects import Encoder
from mountd.cache.opening import open_staging
from mountd.cache.staging import CheckedFile, StagedFile, StagedRow, Staging
from mountd.cache.status import CacheStatus

__all__ = ["CacheStatus", "CheckedFile", "Encoder", "StagedFile", "StagedRow", "Staging", "open_staging"]
