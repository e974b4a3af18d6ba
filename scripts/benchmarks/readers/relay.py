"""A switch of Ethernet that delays, loses and cuts: a network interface eth0 in each of some network namespaces.

    relay.py NAMESPACE...     files that stand for them, numbered from 0

Requests: {"delay_s": D, "loss": P, "cut": [[A, B], ...]}; what is not said is not changed. Each frame takes D seconds,
and is lost with probability P (drawn from a fixed seed); from A to B nothing comes, B to A is another pair. The
interfaces go with this process.
"""

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import threading
import time
from collections import deque
from typing import Any

from barrier import serve

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME_BYTES = 65536
_AT_ONCE = 64
_LONGEST_QUEUE = 20_000
"""Frames; a switch has no more either."""


class Relay:
    def __init__(self, ends: list[int]) -> None:
        self._ends = ends
        self._addresses: dict[bytes, int] = {}
        """Whose Ethernet address it is."""
        self._delayed: deque[tuple[float, int, bytes]] = deque()
        self._draw = random.Random(1)
        self.delay_s, self.loss = 0.0, 0.0
        self.cut: frozenset[tuple[int, int]] = frozenset()

    def run(self) -> None:
        poll = select.poll()
        numbers = {end: number for number, end in enumerate(self._ends)}
        for end in self._ends:
            poll.register(end, select.POLLIN)
        while True:
            due_ms = max(0.0, (self._delayed[0][0] - time.monotonic()) * 1000) if self._delayed else None
            for end, _ in poll.poll(due_ms):
                self._take(end, numbers[end])
            now_s = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now_s:
                _, to, frame = self._delayed.popleft()
                self._write(to, frame)

    def _take(self, end: int, sender: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(end, _FRAME_BYTES)
            except BlockingIOError:
                return
            self._addresses[frame[6:12]] = sender
            known = self._addresses.get(frame[:6])
            for to in range(len(self._ends)) if known is None else (known,):
                if to == sender or (sender, to) in self.cut or self._draw.random() < self.loss:
                    continue
                if not self.delay_s:
                    self._write(to, frame)
                elif len(self._delayed) < _LONGEST_QUEUE:
                    self._delayed.append((time.monotonic() + self.delay_s, to, frame))

    def _write(self, to: int, frame: bytes) -> None:
        try:
            os.write(self._ends[to], frame)
        except OSError:
            pass  # nobody listens there yet, or its queue is full


def interface(namespace: str) -> int:
    """A new eth0 there. Its end is read here, wherever this process is."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), namespace)
    os.close(descriptor)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    return end


if __name__ == "__main__":
    relay = Relay([interface(namespace) for namespace in sys.argv[1:]])
    threading.Thread(target=relay.run, daemon=True).start()

    def rule(
        delay_s: float | None = None, loss: float | None = None, cut: list[list[int]] | None = None
    ) -> dict[str, Any]:
        relay.delay_s = relay.delay_s if delay_s is None else delay_s
        relay.loss = relay.loss if loss is None else loss
        relay.cut = relay.cut if cut is None else frozenset((a, b) for a, b in cut)
        return {}

    serve(rule)
