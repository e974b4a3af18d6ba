"""A cache root as commands look at it: one that is there, and whatever is wrong with it in words.

Makes nothing: `hfs cache du --cache /home/me` must leave no ledger there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hfs.client.client import Client
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mountd.ledger import CacheRoot, Listed, has_ledger

_LIMIT_S = 2.0


@contextlib.contextmanager
def told_of(path: str) -> Iterator[None]:
    """Turn an OSError of the block, which works on the root at `path`, into a MountError that names it."""
    try:
        yield
    except OSError as error:
        name = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        text = f"the cache {path} cannot be used: {error.strerror}{name}; see what is there, or give another --cache"
        raise MountError(text) from None


@contextlib.contextmanager
def cache_root(path: str) -> Iterator[CacheRoot]:
    """The root that --cache names, until the block ends. Raises ConfigError where there is none, MountError."""
    if not has_ledger(path):
        raise ConfigError(f"--cache {path}: holds no cache of hfs; give the DIR of hfs mount --cache DIR")
    with told_of(path), contextlib.closing(CacheRoot(path)) as root:
        yield root


class Held(NamedTuple):
    """What one cache holds now: its daemon knows better than the ledger, where it writes seconds later."""

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
