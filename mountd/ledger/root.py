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
import time
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from hfs.mountd.core.attributes import is_lasting
from hfs.mountd.core.cache_directory import move_away, open_cache_directory
from hfs.mountd.core.path_steps import open_step, stat_name
from hfs.mountd.ledger.folder import FOLDER
from hfs.mountd.ledger.ledger import Ledger, Registration
from hfs.mountd.ledger.record import Notice, read_notice
from hfs.policies.prefetch.yielding import Waits

_NAME = re.compile(r"[0-9]+-[0-9a-f]{16}")
_INDEX = "index.sqlite"


_LOOK_NS = 1_000_000_000
"""How often it is looked who is there, in a folder that may have many names."""

_GOOD_NS = 500_000_000
"""A notice that is older says nothing: its daemon has nothing to tell, has stopped or was killed. They are written
every twentieth of a second, by daemons that may be late."""

_MOST_HEARD = 64
"""A millisecond of a thread, twenty times a second."""


class NeighbourWaits(NamedTuple):
    """How the readers of one neighbour wait."""

    source: Waits | None
    """None: for another server than ours."""
    disk: Waits


class Board:
    """What the daemons of a root tell each other while they run: how their readers wait.

    For the source it concerns those that read from the same server; for the disk, on which the root lies, all of them.

    Each writes a notice into its own record and reads those of the others, by read(2): who maps a file that another
    user may cut short dies of it. Whoever keeps caches in the root may tell what he likes; what follows is bounded by
    who reads (`policies/prefetch/yielding.py`). Everything blocks, for some 20 us a neighbour; one thread at a time.
    """

    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        device: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`device`: st_dev of the source. Those of one file system wait for the same server."""
        self._ledger = ledger
        self._registration = registration
        self._device = device
        self._clock_ns = clock_ns
        self._others: dict[str, bool] = {}
        """By name, whether they wait for the same server."""
        self._looked_ns: int | None = None
        self._told: tuple[Waits, Waits] | None = None

    def exchange(self, source: Waits, disk: Waits) -> dict[str, NeighbourWaits] | None:
        """Tell how ours wait, and hear of theirs, by name: what is fresh. None: there is nobody to tell.

        Raises OSError where our own record, or the folder, cannot be read or written.
        """
        now_ns = self._clock_ns()
        if self._looked_ns is None or now_ns >= self._looked_ns + _LOOK_NS:
            self._looked_ns = now_ns
            self._look()
        if not self._others:
            return None
        # Who only waits on says so again; who has nothing new to say becomes out of date.
        if source.waiting or disk.waiting or self._told != (source, disk):
            self._told = source, disk
            self._registration.tell(Notice(now_ns, source, disk))
        heard = {name: self._hear(name, now_ns) for name in self._others}
        return {name: waits for name, waits in heard.items() if waits is not None}

    def _hear(self, name: str, now_ns: int) -> NeighbourWaits | None:
        fd = self._ledger.open_record(name)
        if fd is None:
            return None
        try:
            notice = read_notice(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        if notice is None or not now_ns - _GOOD_NS <= notice.told_ns <= now_ns + _GOOD_NS:
            return None
        return NeighbourWaits(notice.source if self._others[name] else None, notice.disk)

    def _look(self) -> None:
        others = [entry for entry in self._registration.others() if entry.running]
        # Our user's first: others may keep as many records there as they like.
        others.sort(key=lambda entry: (not entry.is_ours, entry.name))
        self._others = {
            entry.name: entry.serving is not None and entry.serving.device == self._device
            for entry in others[:_MOST_HEARD]
        }


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
