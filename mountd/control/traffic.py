"""Traffic: what jobs have read, what the source and other nodes gave for it, in all and in the last minute.

Looks every five seconds at counters that others keep, and remembers what it saw in a minute. Event loop only; never
waits for anything but the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from hfs.mountd.core.metrics import Metrics
from hfs.policies.traffic import Estimate, ReadCounts, estimated

LOOK_S = 5.0
"""Short enough that the last minute is one, long enough to cost nothing: a look takes 20 us."""
_LOOKS = 12


_SCHEDSTAT = "/proc/self/schedstat"
"""Of the first thread of this process, which runs the event loop: nanoseconds it ran, nanoseconds it was ready to run
and did not, turns."""


def waited_for_core_s(path: str = _SCHEDSTAT) -> float:
    """How long the event loop has waited for a processor since the process began; 0 where the kernel does not count
    (CONFIG_SCHED_INFO).

    A daemon that computes 0.4 s each second and waits for a core in the other 0.6 is as much of a brake as one that
    computes all the time; its CPU alone does not show it.
    """
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class TrafficLook(NamedTuple):
    """Totals since the daemon began."""

    at_s: float
    """Of the monotonic clock."""
    read_bytes: int
    """By jobs; about, or at least."""
    passed_bytes: int
    memory_bytes: int
    """These two: see `policies.traffic.Estimate`."""
    source_bytes: int
    peer_bytes: int
    staged_bytes: int
    source_wait_s: float
    """All readers together have waited so long for the source."""
    cpu_s: float
    """The daemon has computed so long, on all cores together."""
    loop_s: float
    """The event loop, which is one thread, has computed so long."""
    core_wait_s: float
    """It was ready to so long, and had no core."""
    yielded_s: float
    """Fetching ahead has stepped back for readers of other mounts for so long."""


class Traffic:
    """`run` is a task for life."""

    def __init__(
        self,
        metrics: Metrics,
        counted: Callable[[], ReadCounts],
        staged_bytes: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._counted = counted
        self._staged_bytes = staged_bytes
        self._clock = clock
        self._recent: deque[TrafficLook] = deque([self._look()], maxlen=_LOOKS)

    async def run(self) -> None:
        """TrafficLook again and again. Never returns."""
        while True:
            await trio.sleep(LOOK_S)
            self._recent.append(self._look())

    def _look(self) -> TrafficLook:
        metrics, estimate = self._metrics, estimated(self._counted())
        return TrafficLook(
            self._clock(),
            estimate.read_bytes,
            estimate.passed_bytes,
            estimate.memory_bytes,
            metrics["source_read_bytes"],
            metrics["peer_read_bytes"],
            self._staged_bytes(),
            metrics["source_wait_ns"] / 1e9,
            time.process_time(),
            time.thread_time(),
            waited_for_core_s(),
            metrics["prefetch_yielded_ns"] / 1e9,
        )

    def gather(self) -> dict[str, object]:
        """The key `traffic` of the status."""
        now = self._look()
        before = self._recent[0]
        estimate: Estimate = estimated(self._counted())
        return {
            "traffic": {
                **_told(now),
                "is_at_least": estimate.is_at_least,
                "minute": {"seconds": round(now.at_s - before.at_s, 3), **_told(_difference(now, before))},
            }
        }


def _difference(now: TrafficLook, before: TrafficLook) -> TrafficLook:
    return TrafficLook._make(after - earlier for after, earlier in zip(now, before, strict=True))


def _told(look: TrafficLook) -> dict[str, float]:
    shown = look._replace(read_bytes=max(0, look.read_bytes), memory_bytes=max(0, look.memory_bytes))
    return {name: round(value, 6) for name, value in shown._asdict().items() if name != "at_s"}
