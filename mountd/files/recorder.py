"""Recording: what is read, told to whoever asks while it happens.

Opens and reads say what reaches the daemon; clients take it (`hfs-hint record`). Nothing is
kept when nobody records, and a client that is too slow loses the newest, counted. While somebody records, nothing is
put into the page cache ahead of its readers where that would hide their reads. Event loop only.
"""

from __future__ import annotations

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

    def __init__(self, begins: Callable[[], object] = lambda: None) -> None:
        """`begins` is called before anybody records."""
        self._begins = begins
        self._recordings: list[Recording] = []

    @property
    def active(self) -> bool:
        """Somebody records."""
        return bool(self._recordings)

    def start(self) -> Recording:
        """One more client; `stop` belongs to it."""
        recording = Recording()
        self._begins()
        self._recordings.append(recording)
        return recording

    def stop(self, recording: Recording) -> None:
        """The client has gone."""
        self._recordings.remove(recording)

    def touched(self, node: Node, offset: int, size: int, thread_id: int = 0) -> None:
        """Bytes of a file are about to be read, by this thread (0: not known). Cheap when nobody records."""
        if self._recordings:
            touch = Touch(node.path, offset, size, int(trio.current_time() * 1e6), thread_id)
            for recording in self._recordings:
                recording.add(touch)
