"""Recording: what is read, told to whoever asks while it happens.

Opens and reads say what reaches the daemon, opens that the data plane answers a moment later; clients take it
(`hfs-hint record`). Nothing is
kept when nobody records, and a client that is too slow loses the newest, counted. While somebody records, nothing is
put into the page cache ahead of its readers where that would hide their reads. Event loop only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

from hfs.mountd.namespace import Node
from hfs.mountd.wire.protocol import Touch

_MAX_WAITING = 100_000
"""Reads that a client has not taken yet: 10 MB, a second or more of reading."""

_AT_ONCE = 10_000


class Recording:
    """What one client has still to take."""

    def __init__(self) -> None:
        self.began_us = _now_us()
        self._waiting: deque[Touch] = deque()
        self._lost = 0
        self._more = trio.Event()

    def add(self, touch: Touch) -> None:
        """One more."""
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(touch)
        else:
            self._lost += 1
        self._more.set()

    async def take(self) -> tuple[list[Touch], int]:
        """The next reads, at least one, and how many were lost before them."""
        await self._more.wait()
        touches = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        lost, self._lost = self._lost, 0
        if not self._waiting:
            self._more = trio.Event()
        return touches, lost


class Recorder:
    """Who records now."""

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        """`changed` is called when somebody begins."""
        self._changed = changed
        self._recordings: list[Recording] = []

    @property
    def active(self) -> bool:
        """Somebody records."""
        return bool(self._recordings)

    def start(self) -> Recording:
        """One more client; `stop` belongs to it."""
        recording = Recording()
        self._recordings.append(recording)
        self._changed()
        return recording

    def stop(self, recording: Recording) -> None:
        """The client has gone."""
        self._recordings.remove(recording)

    def touched(self, node: Node, offset: int, size: int, thread_id: int = 0) -> None:
        """Bytes of a file are about to be read, by this thread (0: not known). Cheap when nobody records."""
        if self._recordings:
            self._add(Touch(node.path, offset, size, _now_us(), thread_id))

    def opened(self, path: bytes, size: int, thread_id: int, at_ns: int) -> None:
        """A small file was opened without us, at this `time.monotonic_ns()`: the whole of it is about to be read."""
        if self._recordings and size:
            self._add(Touch(path, 0, size, _now_us() - (time.monotonic_ns() - at_ns) // 1000, thread_id))

    def _add(self, touch: Touch) -> None:
        for recording in self._recordings:
            if touch.at_us >= recording.began_us:
                recording.add(touch)


def _now_us() -> int:
    return int(trio.current_time() * 1e6)
