"""Places for threads in the source: so many calls at a time, and those that hang do not count for ever.

A call that takes longer than `slow_s` gives its place to the next one though its thread is still in the source: the
server that it asks may be dead, and another one healthy. How many may hang like this, and below which directory, says
`Hanging`; calls that it does not admit wait until one of those comes back, others go before them. Now and
then one of them is tried all the same, since a call that never returns does not mean that its server is still dead.

Event loop only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

import trio

_LOOK_S = 1.0
"""How often who waits looks whether a call has become slow meanwhile, or another pool has freed what it waits for."""

_TRY_EVERY_S = 5.0
"""A call that would have to wait for one that hangs is tried so often: of a pool with 512 threads that never return the
last is taken after 40 minutes, and a source that was healed is used again after seconds."""


_LEAST = 8
"""What the deepest directory may have: enough to see that it answers again."""


class Hanging:
    """How many calls may hang below each directory of the source before others below it wait in line.

    A part of the source may hang while the rest is healthy: one server of many, a file system mounted below. Each call
    that hangs there keeps a thread, and there are only so many. So a directory may have half as many hanging calls
    below it as its parent may: whatever hangs leaves half of the threads of every directory above it to its neighbours.
    Which directory it is that hangs need not be known, and no directory is so deep that nothing may be asked of it.

    Paths are relative to the source; empty is its root. Nothing is kept of directories without a hanging call.
    """

    def __init__(self, most: int) -> None:
        """`most`: how many may hang in all."""
        self.most = most
        self._below: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return self._below[b""]

    def began(self, directory: bytes) -> None:
        """A call that asks `directory` takes so long that it is taken to hang."""
        for above in _and_above(directory):
            self._below[above] += 1

    def ended(self, directory: bytes) -> None:
        """It has come back."""
        for above in _and_above(directory):
            self._below[above] -= 1
            if not self._below[above]:
                del self._below[above]

    def admits(self, directory: bytes) -> bool:
        """Whether one more call may ask `directory`."""
        if not self._below:
            return True
        return all(
            self._below[above] < max(min(_LEAST, self.most), self.most >> depth)
            for depth, above in enumerate(_and_above(directory))
        )


def _and_above(directory: bytes) -> Iterator[bytes]:
    """The root, then each directory on the way to `directory`, and that itself."""
    yield b""
    if not directory:
        return
    end = directory.find(b"/")
    while end >= 0:
        yield directory[:end]
        end = directory.find(b"/", end + 1)
    yield directory


class Permit:
    """One call under way."""

    __slots__ = ("began_s", "directory", "hangs")

    def __init__(self, directory: bytes, began_s: float) -> None:
        self.directory = directory
        self.began_s = began_s
        self.hangs = False
        """It takes so long that its place is another call's now."""


class _Waiter:
    __slots__ = ("directory", "given", "place")

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self.given = trio.Event()
        self.place: Permit | None = None


class Permits:
    """`count` places; `hanging` may be shared by several pools. `slow_s`: see the file's story; infinite: never."""

    def __init__(self, count: int, hanging: Hanging, *, slow_s: float) -> None:
        self._count = count
        self._hanging = hanging
        self._slow_s = slow_s
        self._running: OrderedDict[Permit, None] = OrderedDict()
        """Those that do not hang, the oldest first."""
        self._line: OrderedDict[_Waiter, None] = OrderedDict()
        self._blocked: OrderedDict[_Waiter, None] = OrderedDict()
        """Not admitted when they came to the head of the line."""
        self._tried_s = -_TRY_EVERY_S
        self._unblocked_s = 0.0
        self._hung = 0

    @property
    def running(self) -> int:
        """Calls under way."""
        return len(self._running) + self._hung

    def hanging(self, limit_s: float) -> int:
        """Calls that hang, and such as are at the source for longer than `limit_s`."""
        before_s = trio.current_time() - limit_s
        return self._hung + sum(place.began_s < before_s for place in self._running)

    @property
    def waiting(self) -> int:
        """Calls that wait for a place, those included that wait for one that hangs."""
        return len(self._line) + len(self._blocked)

    @property
    def in_line(self) -> int:
        """Calls that wait for nothing but a place."""
        return len(self._line)

    async def enter(self, directory: bytes) -> Permit:
        """A place for a call that asks `directory`; `leave` it when its thread has come back."""
        if not self._line and len(self._running) < self._count and self._hanging.admits(directory):
            return self._take(directory)
        waiter = _Waiter(directory)
        self._line[waiter] = None
        try:
            while waiter.place is None:
                self._go_on()
                with trio.move_on_after(_LOOK_S):
                    await waiter.given.wait()
        except BaseException:
            if waiter.place is not None:
                self.leave(waiter.place)
            self._line.pop(waiter, None)
            self._blocked.pop(waiter, None)
            raise
        return waiter.place

    def leave(self, place: Permit) -> None:
        """The thread has come back."""
        if place.hangs:
            self._hung -= 1
            self._hanging.ended(place.directory)
            self._unblock()
        else:
            del self._running[place]
        self._go_on()

    def hangs(self, place: Permit) -> None:
        """Nobody waits for the call any more, and its thread is still in the source."""
        if not place.hangs:
            del self._running[place]
            self._hang(place)
            self._go_on()

    def _take(self, directory: bytes) -> Permit:
        place = Permit(directory, trio.current_time())
        self._running[place] = None
        return place

    def _hang(self, place: Permit) -> None:
        place.hangs = True
        self._hung += 1
        self._hanging.began(place.directory)

    def _unblock(self) -> None:
        """Look again at those that were not admitted: they came before those who are in line now."""
        if self._blocked:
            self._blocked.update(self._line)
            self._line, self._blocked = self._blocked, self._line
            self._blocked.clear()

    def _go_on(self) -> None:
        now_s = trio.current_time()
        while self._running and len(self._hanging) < self._hanging.most:
            oldest = next(iter(self._running))
            if oldest.began_s + self._slow_s > now_s:
                break
            del self._running[oldest]
            self._hang(oldest)
        if now_s >= self._unblocked_s + _LOOK_S:
            self._unblocked_s = now_s
            self._unblock()
        while self._line and len(self._running) < self._count:
            waiter, _ = self._line.popitem(last=False)
            if not self._hanging.admits(waiter.directory) and now_s < self._tried_s + _TRY_EVERY_S:
                self._blocked[waiter] = None
                continue
            if not self._hanging.admits(waiter.directory):
                self._tried_s = now_s
            waiter.place = self._take(waiter.directory)
            waiter.given.set()
