"""The lock of a cache directory: one process at a time, until its descriptor is closed or it has ended."""

from __future__ import annotations

import fcntl
import os

from hfs.mountd.base.errors import CacheInUse
from hfs.mountd.core.cache_directory import CacheDirectory


def lock_cache(directory: CacheDirectory) -> int:
    """Own the cache directory until the returned descriptor is closed. Raises CacheInUse, OSError."""
    fd = directory.open("lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise CacheInUse(
            f"the cache {directory.path} is in use by process {owner}: "
            "use the mount that it serves, or another --cache directory"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
