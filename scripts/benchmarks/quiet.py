"""Whether the machine was quiet while something was measured: what other processes took, and what the host withheld.

What is measured runs in a control group of its own (cgroup v2, which counts CPU time without any controller), with all
that it starts, also what becomes a daemon. The rest of the machine's busy time is others'.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.benchmarks.common import BenchError

MOST_OTHERS = 0.10
"""Cores that others may take, on average, in a run that is kept."""
MOST_STEAL = 0.05
"""Of the time of all cores, that the host may withhold."""


@dataclass(frozen=True)
class Quiet:
    """What a run had beside it. None: it cannot be told here."""

    others_cores: float | None
    steal_share: float

    @property
    def is_quiet(self) -> bool:
        return self.others_cores is not None and self.others_cores <= MOST_OTHERS and self.steal_share <= MOST_STEAL

    def __str__(self) -> str:
        others = "unknown (no control group)" if self.others_cores is None else f"{self.others_cores:.2f} cores"
        return f"others took {others}, the host withheld {self.steal_share:.1%}"

    def record(self) -> dict[str, float | None]:
        """For the file of results."""
        return asdict(self)


@dataclass(frozen=True)
class _Clock:
    """Seconds since the machine began."""

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float | None


class Group:
    """A control group, and all that was started in it. `path` is None where there can be none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def enter(self) -> None:
        """In a child that is about to become what is measured."""
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def now(self) -> _Clock:
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            int(word) / ticks for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
        own_s = None
        if self.path is not None:
            words = (self.path / "cpu.stat").read_text().split()
            own_s = int(words[words.index("usage_usec") + 1]) / 1e6
        return _Clock(time.monotonic(), user + nice + system + irq + softirq, steal, own_s)


def between(before: _Clock, after: _Clock) -> Quiet:
    """What it was from one moment to another."""
    spent_s = max(after.at_s - before.at_s, 1e-3)
    busy_s, steal_s = after.busy_s - before.busy_s, after.steal_s - before.steal_s
    own_s = after.own_s - before.own_s if after.own_s is not None and before.own_s is not None else None
    others = None if own_s is None else max(0.0, busy_s - own_s) / spent_s
    return Quiet(others, steal_s / spent_s / (os.cpu_count() or 1))


@contextmanager
def group() -> Iterator[Group]:
    """One for this run, removed at the end. Without root, or cgroup v2, it is none."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines())
    root = next((Path(where) for _what, where, kind, *_ in mounts if kind == "cgroup2"), None)
    path = root / f"hfs-bench-{os.getpid()}" if root is not None else None
    try:
        if path is not None:
            path.mkdir()
    except OSError:
        path = None
    try:
        yield Group(path)
    finally:
        if path is not None:
            _remove(path)


def _remove(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
        except OSError:  # a daemon of it is just ending
            time.sleep(0.1)
        else:
            return
    left = (path / "cgroup.procs").read_text().split()
    raise BenchError(f"processes of the benchmark have not ended: {', '.join(left)}")
