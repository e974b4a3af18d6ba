"""What a cache of a root holds now: a daemon knows better than the ledger, where it writes seconds later."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hfs.client.client import Client
from hfs.mountd.base.errors import HfsError
from hfs.mountd.ledger import Listed

_LIMIT_S = 2.0


class Held(NamedTuple):
    """Of one cache."""

    bytes: int
    """Staged."""
    pinned_bytes: int
    """Of them, what goes only by name."""


def held(entry: Listed) -> Held:
    """As the ledger has it, where its daemon cannot be asked: another user's may say nothing, and there may be many."""
    is_ours = entry.owner == os.geteuid()
    if is_ours and entry.running and entry.serving is not None and _is_socket_of(entry.serving.control, entry.owner):
        try:
            staged = Client(os.fsdecode(entry.serving.control)).status(_LIMIT_S)["staged"]
            return Held(int(staged["room_bytes"]), int(staged.get("pinned_bytes", 0)))
        except (HfsError, KeyError, TypeError, ValueError, AttributeError):
            pass  # another user's daemon may say what it likes
    return Held(entry.grant.used_bytes, entry.claims.pinned_bytes)


def _is_socket_of(path: bytes, owner: int) -> bool:
    """Whoever keeps caches in the root writes by himself where his daemon listens: nobody else is asked."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == owner
