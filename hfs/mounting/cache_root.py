"""A cache root as commands look at it: one that is there, and whatever is wrong with it in words.

Makes nothing: `hfs cache du --cache /home/me` must leave no ledger there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hfs.mountd.base.errors import ConfigError, MountError
from hfs.mountd.ledger import CacheRoot, has_ledger


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
