"""The readers: which processes the daemon has answered how many reads and bytes to since it started.

The extension hands the caller's thread on; which process it belongs to is looked up in /proc when it is first seen.
Reads that the kernel answers by itself (page cache, passthrough) never reach the daemon and are not here; what the
kernel reads ahead counts for the process whose read made it do so.

`served` is called at each read: it is a look into a dict and three additions. Event loop only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import trio

from hfs.mountd.core.caller import UNSEEN, process_of
from hfs.mountd.namespace import Node
from hfs.mountd.wire.protocol import Touch

_SHOWN = 32
_KEPT = 1024
_MAX_THREADS = 8192
"""Threads remembered: beyond it all are looked up again, 60 us each."""


_MAX_WAITING = 100_000
"""Reads that a client has not taken yet: 10 MB, a second or more of reading."""

_AT_ONCE = 10_000


class Recording:
    """Recording: what is read, told to whoever asks while it happens.

    Opens and reads say what reaches the daemon, opens that the data plane answers a moment later; clients take it
    (`hfs-hint record`). Nothing is kept when nobody records, and a client that is too slow loses the newest, counted.
    While somebody records, nothing is put into the page cache ahead of its readers where that would hide their reads.
    Event loop only.

    What one client has still to take.
    """

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


@dataclass(slots=True)
class _Reader:
    pid: int
    command: str
    reads: int = 0
    bytes: int = 0
    turn: int = 0
    """When it was served last, counted in reads."""


class Readers:
    """Figures by process. The one that was not served for longest goes when there are more than 1024."""

    def __init__(self, process_of: Callable[[int], tuple[int, str] | None] = process_of, kept: int = _KEPT) -> None:
        self._process_of = process_of
        self._kept = kept
        self._by_thread: dict[int, _Reader] = {}
        self._by_pid: dict[int, _Reader] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._by_pid)

    def served(self, thread: int, size: int) -> None:
        """A read of `thread` was answered with `size` bytes. Thread 0: a caller that our /proc does not show."""
        self.served_many(thread, 1, size)

    def served_many(self, thread: int, reads: int, size: int) -> None:
        """The same of several reads, of so many bytes together."""
        reader = self._by_thread.get(thread)
        if reader is None:
            reader = self._meet(thread)
        self._turn += 1
        reader.turn = self._turn
        reader.reads += reads
        reader.bytes += size

    def shown(self) -> list[dict[str, object]]:
        """Those that were served most bytes, most first."""
        most = sorted(self._by_pid.values(), key=attrgetter("bytes"), reverse=True)[:_SHOWN]
        return [
            {"pid": reader.pid, "command": self._command(reader), "reads": reader.reads, "bytes": reader.bytes}
            for reader in most
        ]

    def _meet(self, thread: int) -> _Reader:
        # A thread that has gone already is shown by its own number.
        pid, command = (self._process_of(thread) or (thread, "")) if thread else UNSEEN
        if len(self._by_thread) >= _MAX_THREADS:
            self._by_thread.clear()
        reader = self._by_pid.get(pid)
        if reader is None:
            reader = self._by_pid[pid] = _Reader(pid, command)
            if len(self._by_pid) > self._kept:
                self._drop_oldest(reader)
        self._by_thread[thread] = reader
        return reader

    def _drop_oldest(self, newest: _Reader) -> None:
        oldest = min((r for r in self._by_pid.values() if r is not newest), key=attrgetter("turn"))
        del self._by_pid[oldest.pid]
        for thread in [thread for thread, reader in self._by_thread.items() if reader is oldest]:
            del self._by_thread[thread]

    def _command(self, reader: _Reader) -> str:
        """The name it has now, while it lives: a shell whose script lies on the mount becomes the training job."""
        found = self._process_of(reader.pid) if reader.pid else None
        if found is not None and found[0] == reader.pid:
            reader.command = found[1]
        return reader.command
