"""The pace of staging: how chunks are written, and written back, while readers wait for the disk.

A drive takes what it is given in the order in which it comes, or nearly so: a read behind 8 MiB waits until these are
written, whatever I/O class they have where no scheduler heeds it. So while a reader waits a chunk goes in pieces, and
while readers of other mounts do, with a rest behind each that is the longer the less is to be written (`share`, which
policies/prefetch/yielding.py finds out). Bounded: whoever writes goes on after each rest, so no chunk is held up for
ever, and what another mount's daemon says costs no more than that.

What is small is written through the page cache, which a sync then empties at once. So while readers of other mounts
wait it is written back file by file before that.

The event loop says what the share is; threads write by it.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence

from hfs.mountd.cache.objects.io import ObjectIO
from hfs.policies.prefetch.yielding import rest_s

_PIECE_BYTES = 512 << 10
"""A SATA drive writes it in a millisecond or three: hardly longer than a read takes. Of more, few drives are faster."""


class WritePace:
    """Of one cache."""

    def __init__(
        self,
        readers_wait: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`readers_wait`: whether any of ours wait for the disk; asked in threads. `sleep` blocks."""
        self._readers_wait = readers_wait
        self._clock = clock
        self._sleep = sleep
        self.share = 1.0
        """The part of the time in which there may be something to write; 1: all."""

    def write(
        self, io: ObjectIO, fd: int, parts: Sequence[memoryview | mmap.mmap], offset: int, *, rests: bool
    ) -> None:
        """In a thread: as `ObjectIO.write`. Without `rests` in pieces at most. Raises OSError."""
        if self.share >= 1 and not self._readers_wait():
            io.write(fd, parts, offset)
            return
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                began_s = self._clock()
                piece = memoryview(part)[start : start + _PIECE_BYTES]
                io.write(fd, [piece], offset)
                offset += len(piece)
                if rests and self.share < 1:
                    self._sleep(rest_s(self._clock() - began_s, self.share))

    def write_back(self, io: ObjectIO, fd: int, size_bytes: int) -> None:
        """In a thread: have what memory alone has of an object written, as long as readers of others wait. Raises
        OSError, after which nobody knows what of it is on the disk."""
        for start in range(0, size_bytes, _PIECE_BYTES):
            if self.share >= 1:
                return
            began_s = self._clock()
            io.write_out(fd, start, _PIECE_BYTES)
            self._sleep(rest_s(self._clock() - began_s, self.share))
