"""Descriptors of the source that stay open between calls: of directories, and of large files that are being read.

A directory is opened beneath the root, through no symlink, once for each path that is used, and kept for the
time-to-live of attributes. As long as its descriptor is open its file system lives, and what has its st_dev lies on it.

A large file's descriptor waits for the next read of the same version, so that a chunk does not cost an open. Where the
process runs out of descriptors, half of each go.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from hfs.mountd.core.attributes import Version
from hfs.mountd.native.statx import open_directory
from hfs.mountd.source.file_systems import FileSystems

OPEN_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""How a name in a directory is opened. O_NONBLOCK: a file that became a FIFO under our hands must not hang the thread;
it means nothing for regular files. O_NOCTTY: nor may a terminal become ours."""


def show(directory: bytes, name: bytes) -> str:
    """A path for a message: below the source, undecodable bytes escaped."""
    joined = b"/".join(part for part in (directory, name) if part) or b"."
    return joined.decode("utf-8", "backslashreplace")


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
        self._forgotten = 0

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
            forgotten = self._forgotten
        fresh = OpenDirectory(open_directory(self.root.fd, path), now_s + self._ttl_s, self._file_systems)
        with self._lock:
            if forgotten != self._forgotten:
                return fresh  # it may be what is no more at this path
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
            self._forgotten += 1
            self._held.pop(path, None)
            for known in [known for known in self._held if known.startswith(below)]:
                del self._held[known]


class IdleFiles:
    """Descriptors of large files between two reads, the one used last at the end. Any thread."""

    def __init__(self, at_most: int) -> None:
        """`at_most`: descriptors kept."""
        self._at_most = at_most
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Version, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            held, self._held = list(self._held), OrderedDict()
        _close_all([fd for _, fd in held])

    def take(self, version: Version) -> int | None:
        """A descriptor of `version`, which is the caller's from now on; None if there is none."""
        with self._lock:
            for key in self._held:
                if key[0] == version:
                    del self._held[key]
                    return key[1]
        return None

    def keep(self, version: Version, fd: int) -> None:
        """In a thread: `fd`, owned from now on, for the next read of `version`."""
        with self._lock:
            self._held[(version, fd)] = None
            out = [self._held.popitem(last=False)[0][1] for _ in range(len(self._held) - self._at_most)]
        _close_all(out)

    def release(self, version: Version) -> None:
        """The last handle of `version` is closed: its descriptors go. Never blocks: a close may ask the source (Lustre,
        NFS and FUSE do), which may hang, and this is called on the event loop."""
        with self._lock:
            mine = [key for key in self._held if key[0] == version]
        self._close_later(mine)

    def let_go(self) -> None:
        """Close half of them, those that were not used for longest. Never blocks."""
        with self._lock:
            oldest = list(self._held)[: len(self._held) - len(self._held) // 2]
        self._close_later(oldest)

    def _close_later(self, keys: Sequence[tuple[Version, int]]) -> None:
        with self._lock:
            mine = [key for key in keys if key in self._held]
            for key in mine:
                del self._held[key]
        if not mine:
            return
        try:
            threading.Thread(target=_close_all, args=([fd for _, fd in mine],), daemon=True).start()
        except RuntimeError:  # no more threads: reads will close them
            with self._lock:
                self._held.update(dict.fromkeys(mine))


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
