"""Rows of warm files: opened, read from the page cache and closed, by four readers and by one."""

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scripts.benchmarks.common import Mount, Work
from scripts.benchmarks.fastpath_access import FILES, TURNS, Access, Duel, Place, duel
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import Staged, small_folder, staged, title
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_floor import floor
from scripts.benchmarks.table import Bar, Row, at_least, at_most

FOUR = replace(FILES, what="open-read-close, 4 readers", processes=4)
ONE = replace(FILES, what="open-read-close, 1 reader")

THREADS = len(os.sched_getaffinity(0))
"""Of the floor: as many as the data plane has on few cores."""


def cpu_ns(pid: int, thread: int | None = None) -> int:
    """CPU time of a process so far, or of one of its threads, in nanoseconds."""
    threads = os.listdir(f"/proc/{pid}/task") if thread is None else [str(thread)]
    return sum(int(Path(f"/proc/{pid}/task/{number}/schedstat").read_text().split()[0]) for number in threads)


class Turns:
    """Passes of the same reads in several places, in turn. `spent_s` by place: seconds of each pass."""

    def __init__(self, reads: Duel, places: dict[str, Place], watched: Callable[[str], object]) -> None:
        """`watched(place)` is called before and after each pass."""
        self.spent_s: dict[str, list[float]] = {name: [] for name in places}
        for place in places.values():
            reads.pass_s(place, once=True)  # brings pages, and what Python has to be asked for once
            reads.pass_s(place, once=True)
        for _ in range(TURNS):
            for name, place in places.items():
                watched(name)
                self.spent_s[name].append(reads.pass_s(place, once=True))
                watched(name)

    def ratio(self, other: str, name: str) -> float:
        """Speed in `name` / speed in `other`."""
        return statistics.median(self.spent_s[other]) / statistics.median(self.spent_s[name])


class Watch:
    """CPU time that a daemon has spent while it was watched: all of it, and its event loop's."""

    def __init__(self, mount: Mount) -> None:
        self._pid = mount.pid
        self._began: tuple[int, int] | None = None
        self.all_ns = self.python_ns = 0

    def __call__(self, place: str) -> None:
        if place != "mount":
            return
        now = cpu_ns(self._pid), cpu_ns(self._pid, self._pid)
        if self._began is None:
            self._began = now
        else:
            self.all_ns += now[0] - self._began[0]
            self.python_ns += now[1] - self._began[1]
            self._began = None


def _one(data: Staged, mode: str, access: Access, options: Options, seed: int, got: Results, key: str) -> None:
    with (
        data.mounted(mode) as mount,
        floor(data.work, data.source, THREADS) as lowest,
        duel(access, data.native, options, seed) as reads,
    ):
        places = {"native": data.native, "floor": data.place(lowest), "mount": data.place(mount.path)}
        watch = Watch(mount)
        turns = Turns(reads, places, watch)
        opens = len(data.names) * access.processes * TURNS
        got.add(f"{key} floor", turns.ratio("floor", "mount"))
        got.add(f"{key} native", turns.ratio("native", "mount"))
        got.add(f"{key} floor/native", turns.ratio("native", "floor"))
        got.add(f"{key} cpu", watch.all_ns / 1e3 / opens)
        got.add(f"{key} python", watch.python_ns / 1e6 / opens * 1000)
        got.add(f"{key} speed", opens / TURNS / statistics.median(turns.spent_s["mount"]))


_MEASURED = ("floor", "native", "floor/native", "cpu", "python", "speed")


def warm(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    accesses = {"four": FOUR, "one": ONE}
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            for number, access in accesses.items():
                for mode in ("auto", "passthrough"):
                    key = f"{number} {mode}"
                    with got.attempt(*(f"{key} {what}" for what in _MEASURED)):
                        _one(data, mode, access, options, seed, got, key)

    def row(number: str, mode: str, what: str, words: str, bar: Bar | None = None, unit: str = "x") -> Row:
        return got.row(f"{title(accesses[number], options)}, {mode}: {words}", f"{number} {mode} {what}", bar, unit)

    return [
        row("four", "auto", "floor", f"speed / floor with {THREADS} threads", at_least(0.7)),
        row("four", "auto", "cpu", "CPU of the daemon a file", at_most(20), "us"),
        row("four", "auto", "python", "CPU of Python for 1 000 files", at_most(1), "ms"),
        row("four", "auto", "native", "speed / native"),
        row("four", "auto", "floor/native", "floor / native"),
        row("four", "auto", "speed", "files a second", None, "/s"),
        row("one", "auto", "floor", f"speed / floor with {THREADS} threads", at_least(0.8)),
        row("one", "auto", "native", "speed / native"),
        row("one", "auto", "floor/native", "floor / native"),
        row("one", "passthrough", "native", "speed / native", at_least(0.2)),
        row("four", "passthrough", "floor", f"speed / floor with {THREADS} threads"),
        row("four", "passthrough", "cpu", "CPU of the daemon a file", None, "us"),
    ]


def order(work: Work, options: Options, command: str) -> list[Row]:
    """What is staged is read again in the order of the epoch before, and in another one, in turns."""
    got = Results(command)
    with staged(work, small_folder(work, options)) as data:
        for seed in range(options.runs):
            with (
                got.attempt("order"),
                data.mounted("auto") as mount,
                duel(FOUR, data.native, options, seed) as same,
                duel(FOUR, data.native, options, seed + 1000) as other,
            ):
                place = data.place(mount.path)
                for reads in (same, other):
                    reads.pass_s(place, once=True)
                    reads.pass_s(place, once=True)
                again: list[float] = []
                anew: list[float] = []
                for _ in range(TURNS):
                    same.pass_s(place, once=True)
                    again.append(same.pass_s(place, once=True))
                    anew.append(other.pass_s(place, once=True))
                got.add("order", statistics.median(anew) / statistics.median(again))
    return [got.row(f"{title(FOUR, options)}, auto: same order again / a new order", "order", at_least(0.98))]
