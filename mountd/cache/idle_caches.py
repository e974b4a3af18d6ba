"""A cache that no daemon has gives up what was used longest ago, for one that lacks room.

Opened for a second at most, under its own locks, by the daemon that needs the room: a daemon of its own that starts
meanwhile waits as long. Only caches of the same user are opened so.
"""

from __future__ import annotations

import logging
import time

import trio

from hfs.mountd.base.errors import HfsError
from hfs.mountd.cache.cache import CacheSettings
from hfs.mountd.cache.objects import RunInThread
from hfs.mountd.cache.opening import open_cache
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import CacheRoot
from hfs.policies.cache.evictions import Lru

log = logging.getLogger(__name__)

_NO_LIMIT_BYTES = 1 << 62
_SLICE_BYTES = 256 << 20
_LONGEST_S = 1.0


async def evict_idle(root: CacheRoot, run_in_thread: RunInThread, name: str, wanted_bytes: int) -> None:
    """Give up so much of the cache `name`, as far as a second goes, and write down what is left."""
    path = root.path_of(name)
    try:
        hold = await run_in_thread(root.ledger.hold, name)
    except (OSError, HfsError):
        return  # it has a daemon by now, or another owner
    try:
        settings = CacheSettings(_NO_LIMIT_BYTES, keeps_floor=False, eviction=Lru.name)
        async with open_cache(path, settings, metrics=Metrics(), run_in_thread=run_in_thread) as cache:
            with trio.move_on_after(_LONGEST_S):
                await cache.ready.wait()
            if not cache.ready.is_set():
                return  # after a crash of a large cache; another time
            room, before = cache.room, cache.room.used_bytes
            until_s = time.monotonic() + _LONGEST_S
            while room.used_bytes > max(0, before - wanted_bytes) and time.monotonic() < until_s:
                room.capacity_bytes = max(0, before - wanted_bytes, room.used_bytes - _SLICE_BYTES)
                if not await cache.evictor.make_room():
                    break
            left = room.used_bytes
        await run_in_thread(hold.settle, left, room.pinned_bytes)
        log.info("%s: %d bytes made room for a cache that is in use", path, before - left)
    except (OSError, HfsError) as error:
        log.warning("%s: nothing can be evicted there: %s", path, error)
    finally:
        hold.close()
