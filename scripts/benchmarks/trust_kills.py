"""Rows of a daemon that is killed again and again (kill -9) under four readers, a reader of mapped files and a warm.

The keeper of the mount starts the next daemon. Judged: that nobody sees a wrong byte, a short listing, an open that
fails, or waits for ever; how soon a file that nobody has looked up is opened again; and what becomes of handles that
were open. Kills come at random moments once the daemon before has answered for a second: sooner is a loop of crashes,
which has a test of its own.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hfs.mounting import keeper
from scripts.benchmarks import data
from scripts.benchmarks.common import HFS, BenchError, Reader, Work, hfs_mount, reader
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block, wrong_bytes
from scripts.benchmarks.table import Row, at_most, median_row

READERS = 4
MODES = {
    "passthrough": (80, 8, ()),
    "daemon": (80, 8, ("--io-mode", "daemon")),
    "stateless": (40, 4, ("--io-mode", "stateless", "--immutable")),
}
"""How many kills, how many with --quick, and how the mount is made. Each mode is a group of rows: 200 kills take ten
minutes."""
LARGE, LARGE_BYTES = 6, 32 << 20
CLASSES, SMALL_A_CLASS, SMALL_BYTES = 8, 100, 100_000
FRESH, FRESH_BYTES = 400, 20_000
CACHE = "256M"
LIVES_S = (1.1, 2.6)
"""A daemon is killed so long after it has begun to answer: at random within."""
HANGS_S = 20.0
"""An operation that takes longer hangs; the longest that is none waits for a daemon and then for its turn."""
SERVES_LIMIT_S = 60.0
SEED = 20_261_122


def kills(mode: str, work: Work, options: Options, command: str) -> list[Row]:
    """`mode`: one of MODES."""
    times, times_quick, arguments = MODES[mode]
    attack = Attack(work, _folder(work), arguments, SEED + list(MODES).index(mode))
    attack.run(options.size(times, times_quick))
    for text in attack.said:
        print(f"kills, {mode}: {text}", file=sys.stderr)
    counts, opened_s = attack.counts, sorted(attack.opened_s)
    what = (
        f"kill -9 of the daemon, {counts['kills']} times, {mode}, under {READERS} readers, a mapped reader and a warm"
    )
    figures = {
        f"{what}: wrong bytes": "wrong",
        "  listings that are empty or short": "listings_wrong",
        "  readers that hang, or were ended": "hung",
        "  opens, stats and listings that fail": "opens_failed",
        "  reads that fail otherwise than as stale, or are short": "reads_bad",
        "  handles open at a kill: failed otherwise than as stale": "held_failed",
    }
    counts["reads_bad"] = counts["reads_failed"] + counts["short"]
    held = sum(counts[name] for name in ("held_on", "held_stale", "held_failed"))
    on = 100 * counts["held_on"] / max(1, held)
    return [
        *(median_row(name, [float(counts[key])], "", command, at_most(0)) for name, key in figures.items()),
        median_row(
            "  a new file is opened again after: median", [opened_s[len(opened_s) // 2]], "s", command, at_most(0.7)
        ),
        median_row("  a new file is opened again after: worst", [opened_s[-1]], "s", command, at_most(2)),
        median_row(f"  handles open at a kill: read on (of {held})", [on], "%", command),
        median_row("  reads of files just opened that were stale", [float(counts["stale"])], "", command),
        median_row("  operations meanwhile", [float(counts["operations"])], "", command),
    ]


class Attack:
    """One mount, its readers, and its kills."""

    def __init__(self, work: Work, folder: Path, arguments: tuple[str, ...], seed: int) -> None:
        self._work, self._folder, self._arguments, self._seed = work, folder, arguments, seed
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.opened_s: list[float] = []
        self.said: list[str] = []

    def run(self, times: int) -> None:
        options = ("--cache-size", CACHE, "--ttl", "5", *self._arguments)
        with ExitStack() as stack:
            mount = stack.enter_context(hfs_mount(self._work, self._folder, options=options))
            readers = [
                stack.enter_context(reader("killed.py", mount.path, "files", self._seed + i)) for i in range(READERS)
            ]
            mapped = stack.enter_context(reader("killed.py", mount.path, "mapped", self._seed))
            for one in (*readers, mapped):
                one.do(do="start")
            stack.enter_context(_warming(mount.path / "small"))
            fresh = iter(sorted((mount.path / "fresh").iterdir(), key=lambda _: self._random.random()))
            pid, answers_since_s = _wait_serving(mount.path, 0), time.monotonic()
            for _ in range(times):
                self._kill(pid, answers_since_s + self._random.uniform(*LIVES_S), next(fresh), readers)
                pid, answers_since_s = _wait_serving(mount.path, pid), time.monotonic()
                for one in readers:
                    self._ask(one, do="judge")
                self._look([*readers, mapped])
            for one in (*readers, mapped):
                self._count(one)
            mount.pid = _wait_serving(mount.path, 0)

    def _kill(self, pid: int, at_s: float, fresh: Path, readers: list[Reader]) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))
        for one in readers:
            self._ask(one, do="hold")
        time.sleep(self._random.uniform(0, 0.05))
        begin_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.counts["kills"] += 1
        try:
            with fresh.open("rb", buffering=0) as file:
                self.opened_s.append(time.monotonic() - begin_s)
                self.counts["wrong"] += wrong_bytes(int(fresh.name), 0, file.read(FRESH_BYTES))
        except OSError as error:
            self.counts["opens_failed"] += 1
            self.said.append(f"opens_failed: {fresh}: {error}")

    def _ask(self, one: Reader, **request: Any) -> dict[str, Any]:
        one.send(request)
        try:
            return one.answer(HANGS_S)
        except BenchError as error:
            self.counts["hung"] += 1
            raise BenchError(f"{error} (hung or ended after {self.counts['kills']} kills)") from None

    def _look(self, readers: list[Reader]) -> None:
        for one in readers:
            deadline = time.monotonic() + HANGS_S
            while self._ask(one, do="look")["for_s"] > HANGS_S / 2:
                if time.monotonic() > deadline:
                    self.counts["hung"] += 1
                    break
                time.sleep(0.1)

    def _count(self, one: Reader) -> None:
        answer = self._ask(one, do="look")
        self.said += answer.pop("said")
        answer.pop("for_s")
        self.counts.update(answer)


def _wait_serving(mount: Path, not_pid: int) -> int:
    """Wait until a daemon answers, another one than `not_pid`; its pid. Raises BenchError."""
    limit = time.monotonic() + SERVES_LIMIT_S
    while time.monotonic() < limit:
        kept = keeper.find(str(mount))
        if kept is not None and kept.why_refused:
            raise BenchError(f"the keeper has given up: {kept.why_refused}")
        if kept is not None and kept.status["answers"] and kept.status["daemon"] != not_pid:
            return int(kept.status["daemon"])
        time.sleep(0.01)
    raise BenchError(f"no daemon answers {SERVES_LIMIT_S:g} s after a kill")


@contextmanager
def _warming(path: Path) -> Iterator[None]:
    """`hfs cache warm` again and again, whatever comes of it: the daemon that it asks dies."""
    ended = threading.Event()

    def warm() -> None:
        while not ended.is_set():
            subprocess.run([HFS, "cache", "warm", path], capture_output=True, stdin=subprocess.DEVNULL, check=False)

    thread = threading.Thread(target=warm)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _folder(work: Work) -> Path:
    def make(root: Path) -> None:
        sizes = {f"large/{number}": LARGE_BYTES + number for number in range(LARGE)}
        for number in range(CLASSES * SMALL_A_CLASS):
            sizes[f"small/class-{number % CLASSES}/{LARGE + number}"] = SMALL_BYTES + number % 5000
        for number in range(FRESH):
            sizes[f"fresh/{10_000 + number}"] = FRESH_BYTES
        for name, size in sizes.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(block(int(os.path.basename(name)), 0, size))

    spec: dict[str, object] = {"kills": [LARGE, LARGE_BYTES, CLASSES, SMALL_A_CLASS, SMALL_BYTES, FRESH, FRESH_BYTES]}
    return data.stamped(work.data / "kills", spec, make)
