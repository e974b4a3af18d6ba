"""The keeper's one thread: what it sleeps for. Descriptors, points in time, signals; each calls one function."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence

_MOST_S = 86400.0
"""The kernel counts milliseconds in 31 bits, and a timer may be a month away."""


class Loop:
    """Register what is waited for, then `turn` for as long as there is something to do."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def watch(self, what: int | socket.socket, call: Callable[[], object]) -> None:
        """`call` whenever `what` is readable, until `ignore`."""
        self._selector.register(what, selectors.EVENT_READ, call)

    def ignore(self, what: int | socket.socket) -> None:
        """Undo `watch`; to be called before it is closed. Nothing to do is no error."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(what)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """`call` once, that much later at the soonest."""
        self._timers.append((time.monotonic() + seconds, call))

    def turn(self) -> None:
        """Wait until something happens, and call what waits for it."""
        now_s = time.monotonic()
        due = [call for when_s, call in self._timers if when_s <= now_s]
        self._timers = [timer for timer in self._timers if timer[0] > now_s]
        for call in due:
            call()
        if due:
            return  # what was called may have left nothing to wait for
        next_s = min((when_s for when_s, _ in self._timers), default=None)
        wait_s = None if next_s is None else min(_MOST_S, max(0.0, next_s - now_s))
        for key, _ in self._selector.select(wait_s):
            if any(key is watched for watched in self._selector.get_map().values()):  # not ignored by what came before
                key.data()

    @contextlib.contextmanager
    def signals(self, numbers: Sequence[int], call: Callable[[bytes], None]) -> Iterator[None]:
        """Inside the block `call` gets the numbers of these signals, as bytes, instead of their usual effect."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            for number in numbers:
                signal.signal(number, lambda *_: None)
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            self.watch(ours, lambda: call(ours.recv(4096)))
            try:
                yield
            finally:
                signal.set_wakeup_fd(before)
                self.ignore(ours)
