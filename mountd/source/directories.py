"""Open directories of the source: a descriptor for each path that is used, kept for the time-to-live of attributes.

A descriptor is opened beneath the root, through no symlink, and keeps the file system that the directory lies on: as
long as it is open, that file system lives, and what has its st_dev lies on it. Used by `source` only, in its threads;
what is said to be `nowait` on the event loop too.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict

from mountd.native.beneath import open_directory
from mountd.source.file_systems import FileSystems

__all__ = ["Directories", "OpenDirectory"]


class OpenDirectory:
    """An O_PATH descriptor, closed when nobody holds it any more: a thread in the middle of a call keeps it alive."""

    __slots__ = ("__weakref__", "device", "expires_s", "fd", "file_system")

    def __init__(self, fd: int, expires_s: float, file_systems: FileSystems) -> None:
        """`fd`: owned from now on."""
        self.fd = fd
        self.expires_s = expires_s
        self.device, self.file_system = file_systems.of(fd)
        """st_dev, and the identity of its file system, empty for that of the root."""

    def __del__(self) -> None:
        os.close(self.fd)


class Directories:
    """Any thread, but for the methods that say otherwise."""

    def __init__(self, root_fd: int, file_systems: FileSystems, ttl_s: float, at_most: int) -> None:
        """`root_fd`: owned from now on. `at_most`: directories that are kept open."""
        self.root = OpenDirectory(root_fd, float("inf"), file_systems)
        self._file_systems = file_systems
        self._ttl_s = ttl_s
        self._at_most = at_most
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, OpenDirectory] = OrderedDict()

    def close(self) -> None:
        """Let go of all but the root."""
        with self._lock:
            self._held.clear()

    def get_nowait(self, path: bytes) -> OpenDirectory | None:
        """The directory at `path` if it is open, and not for too long."""
        found = self.root if not path else self._held.get(path)
        return found if found is not None and found.expires_s > time.monotonic() else None

    def get(self, path: bytes) -> OpenDirectory:
        """In a thread: the directory at `path`. Raises OSError."""
        if not path:
            return self.root
        now_s = time.monotonic()
        with self._lock:
            held = self._held.get(path)
            if held is not None and held.expires_s > now_s:
                self._held.move_to_end(path)
                return held
        fresh = OpenDirectory(open_directory(self.root.fd, path), now_s + self._ttl_s, self._file_systems)
        with self._lock:
            self._held[path] = fresh
            while len(self._held) > self._at_most:
                self._held.popitem(last=False)
        return fresh

    def let_go(self) -> None:
        """Close half of them, those that were not used for longest; what a call uses lives until its end."""
        with self._lock:
            for _ in range(len(self._held) - len(self._held) // 2):
                self._held.popitem(last=False)

    def forget(self, path: bytes) -> None:
        """The directory at `path` is another one now: open it and all below it anew next time."""
        below = path + b"/"
        with self._lock:
            self._held.pop(path, None)
            for known in [known for known in self._held if known.startswith(below)]:
                del self._held[known]
