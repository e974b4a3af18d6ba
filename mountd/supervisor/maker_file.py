"""What whoever makes overlays (a *maker*) tells the daemon: a file of its own in the directory `overlays` of the cache.

    maker-PID-RANDOM    16 bytes: the numbers of the oldest of its generations that has not gone, and of the one shown

It is locked for as long as the maker lives. The daemon reads it, and lets nothing go that an older generation may have
open (mountd/cache/generation.py). One that is left without a lock was a killed maker's: what it has made may be in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

NUMBERS = struct.Struct("<QQ")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW


class MakerFile:
    """Of this process."""

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        self._told: tuple[int, int] | None = None
        try:
            while True:
                self._name = f"maker-{os.getpid()}-{os.urandom(4).hex()}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY
                self._fd = os.open(self._name, flags, 0o600, dir_fd=self._directory)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if os.fstat(self._fd).st_nlink:
                    return
                os.close(self._fd)  # a daemon that has just begun took it for one that was left
        except BaseException:
            os.close(self._directory)
            raise

    def tell(self, oldest: int, shown: int) -> None:
        """Raises OSError where the disk has no room, the first time; later what was told before stays."""
        if (oldest, shown) == self._told:
            return
        try:
            os.pwrite(self._fd, NUMBERS.pack(oldest, shown), 0)
        except OSError:
            if self._told is None:
                raise
            return  # it has the room that it needs: the disk is broken
        self._told = oldest, shown

    def close(self, *, removed: bool) -> None:
        """`removed`: nothing is left that was made. Else it stays, without a lock."""
        if removed:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
        os.close(self._fd)
        os.close(self._directory)
