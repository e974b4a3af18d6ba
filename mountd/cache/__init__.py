"""Staged files: what of the source lies on the node's disk, found again after a crash, verified, bounded.

`Cache` holds the parts: table of files, reader, writer, committer, evictor, reclaimer, scrub. A fault of the disk or
the index costs staging, never a read. It never asks the source. `index` holds the database, `objects` the files.
"""

from hfs.mountd.cache.cache import Cache, CacheSettings
from hfs.mountd.cache.completions import Completion, Completions
from hfs.mountd.cache.grants import CacheQuota
from hfs.mountd.cache.index import StagedRow, Stamp
from hfs.mountd.cache.kept_attributes import SeenObject, StoredPage
from hfs.mountd.cache.objects.codec import Shrinker
from hfs.mountd.cache.objects.context import Others
from hfs.mountd.cache.objects.file import Delegation, StagedFile, is_open
from hfs.mountd.cache.opening import evict_idle, look_at_cache, open_cache
from hfs.mountd.cache.scrub import CheckedFile
from hfs.mountd.cache.told_objects import ExposedObjects
