"""The cache root, as --cache names it: a folder of caches, one a source and user, each with its own daemon and index.

    DIR/ledger/            who may hold how much of the size, and who is served by whom
    DIR/UID-HASH/          one cache; the hash is of what SOURCE is (file system and inode), not of what it is called,
                           and of the user as whom it is read, if that is another one

Everything blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

import xxhash

from hfs.mountd.core.cache_directory import move_away, open_cache_directory
from hfs.mountd.core.path_steps import open_step, stat_name
from hfs.mountd.core.version import is_lasting
from hfs.mountd.ledger import Ledger
from hfs.mountd.ledger.folder import FOLDER

_NAME = re.compile(r"[0-9]+-[0-9a-f]{16}")
_INDEX = "index.sqlite"


def cache_name(source_id: str, inode: int, path: str, reader: int | None = None) -> str:
    """What the cache of a source is called. `source_id`: of its file system; if that is good for one run only, the path
    stands for it: versions hold the identity too, so nothing wrong is found there. `reader`: the user as whom the
    source is read, if that is not who mounts: another one may not read all that is staged for him."""
    what = f"{source_id}\0{inode}" if is_lasting(source_id) else f"path\0{path}"
    what += "" if reader is None else f"\0as {reader}"
    return f"{os.geteuid()}-{xxhash.xxh3_64_hexdigest(what.encode(errors='surrogateescape'))}"


class CacheRoot:
    """Open until closed."""

    def __init__(self, path: str) -> None:
        """Made for our user alone if it is not there. Raises ConfigError, OSError."""
        self.directory = open_cache_directory(path, make=True, shared_ok=True)
        try:
            self.ledger = Ledger(self.directory.fd, shared=self.directory.shared)
        except BaseException:
            self.directory.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        self.ledger.close()
        self.directory.close()

    def path_of(self, name: str) -> str:
        """Where a cache lies."""
        return f"{self.directory.path.rstrip('/')}/{name}"

    def make_way(self, name: str) -> None:
        """Where several users share the root, root moves away what another has put in the place of its cache. Raises
        OSError."""
        if self.directory.shared and os.geteuid() == 0:
            move_away(self.directory.fd, name, stat.S_IFDIR)


def has_ledger(path: str) -> bool:
    """Whether there is a root at this path. Whoever may have put the folder there, or mounted on it, is not asked."""
    try:
        os.close(open_step(f"{path}/{FOLDER}"))
    except PermissionError:
        return True  # another user's mount, which root takes away
    except OSError:
        return False
    return True


def caches_below(path: str) -> list[str]:
    """Paths of our user's caches in a root; of a cache itself, this one. Raises ConfigError, OSError."""
    with open_cache_directory(path, make=False, shared_ok=True) as directory:
        found = [path] if not directory.shared and directory.exists(_INDEX) else []
        for name in sorted(directory.names()):
            if not _NAME.fullmatch(name):
                continue
            with contextlib.suppress(OSError):  # gone, or served by another user
                status = stat_name(name, directory.fd)
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    found.append(f"{path.rstrip('/')}/{name}")
        return found
