"""The files that hold staged bytes: written, read, stamped, shrunk, given up, each under a number used once.

Paths below the cache directory are followed here only. It never knows which bytes are right but by a checksum that
it is given.
"""

from hfs.mountd.cache.objects.around import Looked, look_at
from hfs.mountd.cache.objects.codec import RAW, UNDECIDED, Shrinker, Shrinking
from hfs.mountd.cache.objects.context import CacheContext, RunInThread, Threads, Trust
from hfs.mountd.cache.objects.descriptors import Descriptors
from hfs.mountd.cache.objects.disk import Disk, DiskSpace, object_name, set_objects_aside, some_objects
from hfs.mountd.cache.objects.file import StagedFile, is_open, recall
from hfs.mountd.cache.objects.ids import ObjectIdAllocator
from hfs.mountd.cache.objects.io import Damaged
from hfs.mountd.cache.objects.io_class import staging_io
from hfs.mountd.cache.objects.objects import (
    OUR_LIMITS,
    Changed,
    WantedRead,
    checksum_of_zeros,
    lend_object,
    lend_opened,
    read_ahead,
    read_object,
    read_objects_ahead,
)
from hfs.mountd.cache.objects.pace import WritePace
from hfs.mountd.cache.objects.room import Health, Room, State
from hfs.mountd.cache.objects.stamps import Change, Turns, is_ours, stamp_of, stamp_to_keep
from hfs.mountd.cache.objects.unlinked import Unlinked, sync_disk

__all__ = [
    "OUR_LIMITS",
    "RAW",
    "UNDECIDED",
    "CacheContext",
    "Change",
    "Changed",
    "Damaged",
    "Descriptors",
    "Disk",
    "DiskSpace",
    "Health",
    "Looked",
    "ObjectIdAllocator",
    "Room",
    "RunInThread",
    "Shrinker",
    "Shrinking",
    "StagedFile",
    "State",
    "Threads",
    "Trust",
    "Turns",
    "Unlinked",
    "WantedRead",
    "WritePace",
    "checksum_of_zeros",
    "is_open",
    "is_ours",
    "lend_object",
    "lend_opened",
    "look_at",
    "object_name",
    "read_ahead",
    "read_object",
    "read_objects_ahead",
    "recall",
    "set_objects_aside",
    "some_objects",
    "staging_io",
    "stamp_of",
    "stamp_to_keep",
    "sync_disk",
]
