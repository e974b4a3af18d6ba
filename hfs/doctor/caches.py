"""Caches of the root that no daemon uses: is the index of each what it should be, from the outside?

Nothing is opened as a database and nothing locked: a daemon that starts meanwhile must find its cache free. So only
what the file's own beginning says is compared with its length; `hfs cache check --cache DIR` reads everything.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from hfs.doctor import cache_place
from hfs.doctor.check_result import CheckResult, good, limit
from hfs.doctor.surroundings import Surroundings
from hfs.mountd.base.errors import HfsError
from hfs.mountd.ledger import CacheRoot, caches_below, has_ledger

_NAME = "cache-index"
_INDEX, _MARK = "index.sqlite", "index.damaged"
_MAGIC = b"SQLite format 3\0"
_APPLICATION = b"hfs1"
_HEADER = struct.Struct(">16sH10xI36x4s")
"""Magic, bytes of a page (1: 65 536), pages, application id; see the file format of SQLite."""


def check(around: Surroundings) -> Iterator[CheckResult]:
    """One finding for each damaged index; one of all if none is. Nothing where the cache cannot be used anyway."""
    place = None if around.cache is None else cache_place.place_of(around)
    if place is None or isinstance(place, CheckResult) or not place.is_there:
        return
    try:
        used, caches = _used(place.path), caches_below(place.path)
    except (HfsError, OSError):
        return  # `cache_place` says why
    damaged = 0
    for cache in caches:
        why = None if os.path.basename(cache) in used else damage(cache)
        if why is not None:
            damaged += 1
            text = f"{cache}: its index is damaged ({why}): the next mount sets it aside, and stages anew"
            yield limit(_NAME, text, f"nothing need be done; to free the room now: rm -r {cache}")
    if caches and not damaged:
        many = "1 cache" if len(caches) == 1 else f"{len(caches)} caches"
        yield good(_NAME, f"{many} below {place.path}, no damage to be seen from outside")


def _used(path: str) -> set[str]:
    if not has_ledger(path):
        return set()
    root = CacheRoot(path)
    try:
        return {entry.name for entry in root.ledger.listed() if entry.running}
    finally:
        root.close()


def damage(cache: str) -> str | None:
    """What is wrong with the index of a cache; None: nothing that is seen from outside, or it has none."""
    if os.path.lexists(f"{cache}/{_MARK}"):
        return "a damaged page was met"
    try:
        fd = os.open(f"{cache}/{_INDEX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    try:
        head, size = os.pread(fd, _HEADER.size, 0), os.fstat(fd).st_size
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(fd)
    if not head:
        return None  # a new one, of which all is in the log
    if len(head) < _HEADER.size:
        return f"{size} bytes are left of it"
    magic, page, pages, application = _HEADER.unpack(head)
    if magic != _MAGIC or application not in {_APPLICATION, bytes(4)}:
        return "it does not begin as one"
    if os.path.exists(f"{cache}/{_INDEX}-wal"):
        return None  # what is missing at its end may stand in the log
    expected = (65536 if page == 1 else page) * pages
    return f"{size} bytes long instead of {expected}" if size < expected else None
