"""Which threads open what they look up: whose look-up of a new name is as good as its open.

A loader worker opens each file that it looks up; `ls -l`, `find` and `os.path.exists` look up and go on. The kernel
asks for a name and says nothing of what for, but a thread goes on as it has begun. So each open of the file that its
thread looked up last counts for the thread, each file that was left unopened counts twice against it, and from two on
it is believed. A change of mind costs two files at most. Pure; files are whatever the caller tells them apart by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

_BELIEVED, _MOST = 2, 4
_LEFT = 2
"""What a file that was not opened takes away: where two of three are, a fetch of each costs less than it saves."""

_MAX_THREADS = 4096
"""Threads that are remembered, the last ones to look something up: 0.2 KB each."""


class _Thread:
    __slots__ = ("last", "score")

    def __init__(self) -> None:
        self.last: Hashable | None = None
        """What it looked up last and has not opened."""
        self.score = 0


class Followed:
    """Thread 0, which is nobody the kernel could name, is never believed."""

    def __init__(self) -> None:
        self._threads: OrderedDict[int, _Thread] = OrderedDict()

    def __len__(self) -> int:
        return len(self._threads)

    def is_expected(self, thread_id: int) -> bool:
        """Whether the thread will open the file that it looks up now."""
        thread = self._threads.get(thread_id)
        return thread is not None and thread.score - (_LEFT if thread.last is not None else 0) >= _BELIEVED

    def looked_up(self, thread_id: int, file: Hashable) -> None:
        """The thread has looked a file up whose name was new."""
        if thread_id == 0:
            return
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = _Thread()
            if len(self._threads) > _MAX_THREADS:
                self._threads.popitem(last=False)
        else:
            self._threads.move_to_end(thread_id)
        if thread.last is not None and thread.last != file:
            thread.score = max(0, thread.score - _LEFT)
        thread.last = file

    def opened(self, thread_id: int, file: Hashable) -> None:
        """The thread has opened a file, or read of it where opens are not told."""
        thread = self._threads.get(thread_id)
        if thread is not None and thread.last is not None and thread.last == file:
            thread.last = None
            thread.score = min(thread.score + 1, _MOST)
