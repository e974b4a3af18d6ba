"""Rows of overlays that are made anew two hundred times under eight readers that open by path.

Meanwhile a tenth of the files is read and staged for the first time, and some are changed at the source, refreshed or
evicted. Judged: opens and reads that fail, bytes of no version, versions from before a `hfs refresh` that has returned,
and opens that take long. Beside it the readers open a file that nobody serves: what is slow there is the machine.
"""

import random
import sys
import time
from collections.abc import Sequence

from scripts.benchmarks.common import HFS, Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.native_files import READERS, Changing, Reading
from scripts.benchmarks.native_job import USERS
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most

RENEWALS, RENEWALS_QUICK = 200, 12
TOUCHED = 3
"""Files that are changed, refreshed or evicted at a time."""
STAGED_LATER = 0.1
_LEAST_READS = 1000
_LIMIT_S = 10.0
"""An overlay that is to be made anew and has not been by then is not."""
_MISSED = 10
"""So many that are not made anew, and no more are waited for."""
SEED = 20_261_127


def renewals(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    times = options.size(RENEWALS, RENEWALS_QUICK)
    for user in USERS:
        with got.attempt(*(f"{user} {key}" for key in _KEYS)):
            files = Changing(work, options, kept=STAGED_LATER)
            with files.read(work, user) as reading:
                turns = Turns(files, reading, times)
                began_s = time.monotonic()
                turns.run()
                spent_s = time.monotonic() - began_s
                seen = reading.seen(f"renewals, {user}", _LEAST_READS)
            for key in ("failed", "wrong", "old", "opens_slow", "beside_slow", "opens"):
                got.add(f"{user} {key}", float(seen.counts[key]))
            got.add(f"{user} longest", seen.longest_open_s)
            got.add(f"{user} refused", float(turns.refused))
            got.add(f"{user} renewed", float(turns.renewed))
            got.add(f"{user} each", spent_s / max(1, turns.renewed))
    rows = []
    for user in USERS:
        what = f"{user}, {times} new overlays under {READERS} readers that open by path"
        rows += [
            got.row(f"{what}: opens and reads that fail", f"{user} failed", at_most(0), ""),
            got.row("  reads of wrong bytes", f"{user} wrong", at_most(0), ""),
            got.row("  reads of a version from before a refresh", f"{user} old", at_most(0), ""),
            got.row("  opens slower than 100 ms", f"{user} opens_slow", at_most(0), ""),
            got.row("  the same of a file that nobody serves", f"{user} beside_slow", None, ""),
            got.row("  the slowest open", f"{user} longest", None, "s"),
            got.row("  commands that were refused", f"{user} refused", at_most(0), ""),
            got.row("  overlays that were made anew", f"{user} renewed", at_least(times), ""),
            got.row("  seconds for each, its command included", f"{user} each", None, "s"),
            got.row("  reads meanwhile", f"{user} opens", None, ""),
        ]
    return rows


_KEYS = ("failed", "wrong", "old", "opens_slow", "beside_slow", "longest", "refused", "renewed", "each", "opens")


class Turns:
    """What is done to the files of one job, a turn after the other."""

    def __init__(self, files: Changing, reading: Reading, times: int) -> None:
        self._files, self._job, self._times = files, reading.job, times
        self._random = random.Random(SEED)
        self._first = files.readable
        self.renewed = self.refused = 0

    def run(self) -> None:
        kinds = (self._change, self._evict, self._refresh)
        turn = missed = 0
        while self.renewed < self._times and missed < _MISSED:
            turn += 1
            self._stage(turn)
            before = self._job.overlays()
            kinds[turn % len(kinds)](self._random.sample(range(self._files.readable), TOUCHED))
            if self._job.renewed(before, _LIMIT_S):
                self.renewed += 1
            else:
                missed += 1

    def _stage(self, turn: int) -> None:
        """Some more may be read: every second time they are staged before that, else by it."""
        before = self._files.readable
        after = min(self._files.count, self._first + (self._files.count - self._first) * turn // self._times)
        if turn % 2 and after > before:
            self._hfs("cache", "warm", numbers=range(before, after))
        self._files.may_read(after)

    def _change(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._files.change(number)
        self._hfs("refresh", numbers=numbers)
        for number in numbers:
            self._files.changed(number)

    def _evict(self, numbers: Sequence[int]) -> None:
        self._hfs("cache", "evict", numbers=numbers)

    def _refresh(self, numbers: Sequence[int]) -> None:
        self._hfs("refresh", numbers=numbers)

    def _hfs(self, *words: str, numbers: Sequence[int]) -> None:
        code, _, err = self._job.tried(HFS, *words, *(self._files.path(number) for number in numbers))
        if code:
            self.refused += 1
            print(f"renewals: hfs {' '.join(words)}: exit code {code}: {err.strip()}", file=sys.stderr)
