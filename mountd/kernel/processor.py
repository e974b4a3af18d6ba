"""How long the event loop has waited for a processor, as the kernel counts it (Documentation/scheduler, sched-stats).

A daemon that computes 0.4 s each second and waits for a core in the other 0.6 is as much of a brake as one that
computes all the time; its CPU alone does not show it. One small file of /proc is read, for some 10 us.
"""

from __future__ import annotations

_SCHEDSTAT = "/proc/self/schedstat"
"""Of the first thread of this process, which runs the event loop: nanoseconds it ran, nanoseconds it was ready to run
and did not, turns."""


def waited_for_core_s(path: str = _SCHEDSTAT) -> float:
    """Since the process began; 0 where the kernel does not count (CONFIG_SCHED_INFO)."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
