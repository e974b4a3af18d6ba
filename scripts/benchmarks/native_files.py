"""Files whose bytes are computed, and eight readers of them in a job: what is done meanwhile, nobody may notice."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.benchmarks.common import HFS, BenchError, Work
from scripts.benchmarks.native_job import Home, Job, job
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import LEAST_BYTES, block, version_block

READERS = 8
FILES, FILES_QUICK = 2000, 200
LARGE, LARGE_BYTES = 4, 32 << 20
FIRST_LARGE = 900_000
"""Numbers of the large files begin here."""
HANGS_S = 20.0
"""A read that lasts so long hangs."""


class Changing:
    """The source, and what readers are told of it."""

    def __init__(self, work: Work, options: Options, *, kept: float = 0.0) -> None:
        """`kept`: the share of the small files that is not to be read yet."""
        self.count = options.size(FILES, FILES_QUICK)
        self.source, told = work.new("files"), work.new("told")
        self.told = told / "state", told / "beside"
        """For the readers."""
        for folder in ("small", "large"):
            (self.source / folder).mkdir()
        for number in range(FIRST_LARGE, FIRST_LARGE + LARGE):
            (self.source / "large" / str(number)).write_bytes(block(number, 0, LARGE_BYTES))
        for number in range(self.count):
            self.path(number).write_bytes(version_block(number, 0))
        self.told[0].write_bytes(bytes(8 * (1 + self.count)))
        self.told[1].write_bytes(bytes(LEAST_BYTES))
        self._state: npt.NDArray[np.int64] = np.memmap(self.told[0], np.int64, "r+")
        self._versions = [0] * self.count
        self.may_read(self.count - int(self.count * kept))

    @property
    def readable(self) -> int:
        """So many of the small files may be read."""
        return int(self._state[0])

    def may_read(self, count: int) -> None:
        self._state[0] = count

    def path(self, number: int) -> Path:
        return self.source / "small" / str(number)

    def change(self, number: int) -> None:
        """Another version takes the place of this one, at once."""
        self._versions[number] += 1
        new = self.told[0].with_name("new")
        new.write_bytes(version_block(number, self._versions[number]))
        new.rename(self.path(number))

    def changed(self, number: int) -> None:
        """Whoever opens it from now on must see it as it is now."""
        self._state[1 + number] = self._versions[number]

    @contextlib.contextmanager
    def read(self, work: Work, user: str) -> Iterator["Reading"]:
        """A job whose readers read on and on what may be read. All that is staged, and each name was looked up."""
        home = Home(work, user)
        cache, listed = home.own / "cache", home.own / "list"
        listed.write_text("".join(f"small/{number}\n" for number in range(self.readable)) + "large\n")
        with job(home, self.source, cache, 0, "changing.py") as warming:
            warming.command(HFS, "cache", "warm", "--files-from", listed, self.source)
        with job(home, self.source, cache, READERS, "changing.py", self.source, *self.told, "{}") as within:
            within.ask({"do": "all"})
            within.ask({"do": "start"}, READERS)
            yield Reading(within)


class Reading:
    """The readers of a job."""

    def __init__(self, within: Job) -> None:
        self.job = within

    def seen(self, what: str, least: int = 0) -> "Seen":
        """What they have seen so far; what they say of faults is printed. Raises BenchError where they have read less
        than `least` times."""
        seen = Seen()
        for answer in self.job.ask({"do": "look"}, READERS):
            seen.add(answer)
        for text in seen.said:
            print(f"{what}: {text}", file=sys.stderr)
        if seen.counts["opens"] < least:
            raise BenchError(f"{what}: only {seen.counts['opens']} reads meanwhile")
        return seen


class Seen:
    """What all readers together have seen."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest_s = self.longest_open_s = 0.0
        self.said: list[str] = []

    def add(self, answer: dict[str, Any]) -> None:
        """Of one of them. One whose read lasts and lasts has failed."""
        self.counts.update({kind: count for kind, count in answer.items() if isinstance(count, int)})
        self.longest_s = max(self.longest_s, answer["longest_s"], answer["for_s"])
        self.longest_open_s = max(self.longest_open_s, answer["longest_open_s"])
        self.said += answer["said"]
        if answer["for_s"] > HANGS_S:
            self.counts["failed"] += 1
            self.said.append(f"hangs for {answer['for_s']:.0f} s")
