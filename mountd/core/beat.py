"""The event loop's beat: by it the keeper sees that it turns (mountd/supervisor/pulse.py)."""

from __future__ import annotations

import os
import struct

_WORKS, _STEP = 1, 4
"""BEAT_WORKS and BEAT_STEP of mountd/native/plane/plane.h."""


class Beat:
    """The first in the keeper's memfd; -1: nobody looks."""

    def __init__(self, beats_fd: int) -> None:
        self._beats_fd = beats_fd
        self._turns = 0

    def turn(self) -> None:
        """It goes on, and will again within a second or two."""
        self._turns += _STEP
        self._write(self._turns | _WORKS)

    def end(self) -> None:
        """It will not, and need not."""
        self._write(0)

    def _write(self, turns: int) -> None:
        if self._beats_fd >= 0:
            os.pwrite(self._beats_fd, struct.pack("=Q", turns), 0)
