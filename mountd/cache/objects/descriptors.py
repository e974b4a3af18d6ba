"""Open descriptors of staged files, the least recently used closed first.

A descriptor that a thread reads with is never closed under it: its number could be given to another file, and the
thread would read that file's bytes. So users are counted, and a descriptor that is dropped while in use is closed by
its last user. Event loop only; what threads open is handed in with `put`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Descriptor:
    """One open descriptor and how many use it."""

    __slots__ = ("dropped", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class Descriptors:
    """By object number."""

    def __init__(self, close: Callable[[int], None], limit: int) -> None:
        self._close = close
        self._limit = limit
        self._held: OrderedDict[int, Descriptor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get_nowait(self, object_id: int) -> int | None:
        """The descriptor, for use before the next await; None if the object is not open."""
        held = self._held.get(object_id)
        if held is None:
            return None
        self._held.move_to_end(object_id)
        return held.fd

    def acquire(self, object_id: int) -> Descriptor | None:
        """The descriptor for use in a thread; give it back with `release`."""
        held = self._held.get(object_id)
        if held is not None:
            self._held.move_to_end(object_id)
            held.users += 1
        return held

    def release(self, descriptor: Descriptor) -> None:
        """Undo `acquire`."""
        descriptor.users -= 1
        if descriptor.dropped and not descriptor.users:
            self._close(descriptor.fd)

    def put(self, object_id: int, fd: int) -> None:
        """Keep a descriptor that a thread has opened; closed at once if the object is open already."""
        if object_id in self._held:
            self._close(fd)
            return
        self._held[object_id] = Descriptor(fd)
        while len(self._held) > self._limit:
            _, oldest = self._held.popitem(last=False)
            self._drop(oldest)

    def discard(self, object_id: int) -> int | None:
        """Forget an object that is about to be removed. Returns the descriptor that the caller must close, in a thread
        (closing the last one of a removed file frees its blocks); None if there is none or a reader will close it.
        """
        held = self._held.pop(object_id, None)
        if held is None:
            return None
        if held.users:
            held.dropped = True
            return None
        return held.fd

    def let_go(self) -> None:
        """Drop half of them, those that were not used for longest."""
        for _ in range(len(self._held) - len(self._held) // 2):
            self._drop(self._held.popitem(last=False)[1])

    def close(self) -> None:
        """Drop all."""
        while self._held:
            self._drop(self._held.popitem()[1])

    def _drop(self, held: Descriptor) -> None:
        held.dropped = True
        if not held.users:
            self._close(held.fd)
