"""A process of its own that becomes a user and empties that user's old caches. Its arguments are ROOT
EXPIRE_S UID GID (hfs/mounting/own_process.py). Prints what went wrong, or nothing.

All that it runs is imported and has run once before it becomes the user: the library of the interpreter may lie where
that one cannot enter, such as below root's home.
"""

from __future__ import annotations

import os
import sys
import tempfile

import trio

from hfs.mountd.cache import CacheSettings, open_cache
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mounting import offline


def evict(root_path: str, expire_s: float) -> str:
    """What went wrong; empty: nothing."""
    try:
        offline.evict(root_path, (), expire_s, None)
    except (HfsError, OSError) as error:
        return str(error)
    return ""


def _rehearse() -> None:
    """With a cache that is empty."""
    with tempfile.TemporaryDirectory(prefix="hfs-evict-") as place:

        async def make() -> None:
            async with open_cache(place, CacheSettings(1 << 30), metrics=Metrics()) as cache:
                await cache.ready.wait()

        trio.run(make)
        evict(place, 1.0)


def main() -> None:
    """Never raises; whatever it is, is said."""
    try:
        root_path, expire_s, uid, gid = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        _rehearse()
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        said = evict(root_path, expire_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(said[:4096].encode("utf-8", "backslashreplace").decode())
