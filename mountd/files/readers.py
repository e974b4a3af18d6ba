"""The readers: which processes the daemon has answered how many reads and bytes to since it started.

The extension hands the caller's thread on; which process it belongs to is looked up in /proc when it is first seen.
Reads that the kernel answers by itself (page cache, passthrough) never reach the daemon and are not here; what the
kernel reads ahead counts for the process whose read made it do so.

`served` is called at each read: it is a look into a dict and three additions. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from hfs.mountd.core.caller import UNSEEN, process_of

_SHOWN = 32
_KEPT = 1024
_MAX_THREADS = 8192
"""Threads remembered: beyond it all are looked up again, 60 us each."""


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
