"""The ways of reading that are compared, and the comparison: the same reads in two places, taken in turn.

A place is a folder with names; the native one is the staged copy itself. Knows nothing of hfs: rclone and bindfs are
measured with the same code.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import BenchError, reader, together
from scripts.benchmarks.options import Options

KIB, MIB = 1024, 1024**2

TURNS = 3
"""Pairs of parts (native, mount) of one ratio: their medians pass over a part that others on the machine disturbed."""

ENOUGH_S = 3.0
"""Turns end after this long: a mount whose one pass takes seconds needs no second, and rclone's would take minutes."""

LEAST_S, LEAST_S_QUICK = 0.5, 0.1
"""A part repeats its pass until it has taken this long."""


@dataclass(frozen=True)
class Access:
    """One way of reading. `do`, `size`, `count` and `direct` are those of readers/staged.py."""

    what: str
    do: str
    size: int = 0
    count: int | None = None
    direct: bool = False
    processes: int = 1


RANDOM_128K = Access("random 128 KiB, 1 process", "random", 128 * KIB)
RANDOM_4K = Access("random 4 KiB, 1 process", "random", 4 * KIB, 60_000)
SEQUENTIAL = Access("sequential 1 MiB", "sequential", MIB)
MMAP = Access("shared mmap, random pages, 2 processes", "mmap", 4 * KIB, 60_000, processes=2)
TOUCH = replace(MMAP, what=f"{MMAP.what}, one byte of each", size=1)
"""Nothing but page faults: as each pass maps the file anew, they are the worst case of a mapping."""
FILES = Access("open-read-close", "files")

OF_LARGE = (RANDOM_128K, RANDOM_4K, SEQUENTIAL, MMAP)


@dataclass(frozen=True)
class Place:
    """Files to read: the names below `root`, in the same order in every place."""

    root: Path
    names: tuple[str, ...]


Ask = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Has the readers of an access, all at once, do what a request says; the answer of each."""


class Duel:
    """The same reads natively and elsewhere. Every ratio is native time / time elsewhere.

    Raises BenchError where other bytes are read than natively, or where a reader fails.
    """

    def __init__(self, ask: Ask, access: Access, native: Place, seed: int, least_s: float) -> None:
        self.access, self.native, self.seed, self.least_s = access, native, seed, least_s
        self._ask = ask
        self.read_bytes = 0
        """Bytes of one pass of the process that reads most: so many different ones are read at least."""
        self._seen: list[tuple[int, int]] | None = None

    def pass_s(self, place: Place, *, once: bool = False) -> float:
        """Seconds of a pass, the median of as many as a part needs; `once`: of a single one."""
        how = asdict(self.access)
        request = {key: how[key] for key in ("do", "size", "count", "direct")}
        request |= {"root": str(place.root), "names": place.names, "seed": self.seed}
        request["least_s"] = 0.0 if once else self.least_s
        answers = self._ask(request)
        seen = [(answer["bytes"], answer["check"]) for answer in answers]
        if self._seen is None:
            self._seen = seen
            self.read_bytes = max(size for size, _ in seen)
        elif seen != self._seen:
            raise BenchError(f"{self.access.what}: other bytes in {place.root.name} than in {self.native.root.name}")
        return statistics.fmean(answer["pass_s"] for answer in answers)

    def first(self, place: Place) -> float:
        """Of one pass, between two native parts."""
        before = self.pass_s(self.native)
        spent = self.pass_s(place, once=True)
        return statistics.fmean([before, self.pass_s(self.native)]) / spent

    def again(self, place: Place) -> float:
        """Of several parts in turn."""
        native: list[float] = []
        mounted: list[float] = []
        begin = time.monotonic()
        while len(mounted) < TURNS and time.monotonic() - begin < ENOUGH_S:
            native.append(self.pass_s(self.native))
            mounted.append(self.pass_s(place))
        return statistics.median(native) / statistics.median(mounted)

    def cold(self, place: Place, drop: Callable[[], None]) -> float:
        """Of two passes each, `drop` before every one. Native is first and last: a disk becomes warm as well."""
        spent = []
        for one in (self.native, place, place, self.native):
            drop()
            spent.append(self.pass_s(one, once=True))
        return (spent[0] + spent[3]) / (spent[1] + spent[2])


@contextlib.contextmanager
def duel(access: Access, native: Place, options: Options, seed: int) -> Iterator[Duel]:
    """With readers of its own, which end with it."""
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(reader("staged.py", index)) for index in range(access.processes)]
        yield Duel(lambda request: together(programs, request)[1], access, native, seed, least_s(options))


def least_s(options: Options) -> float:
    """Of a part."""
    return LEAST_S_QUICK if options.quick else LEAST_S
