"""Exposed I/O: how long a learner waits for data, counted where it waits.

    loader = timed(DataLoader(dataset, sampler=sampler, ...))          # and use it as before
    for record in loader.epochs: print(record.exposed_s, record.compute_s, record.other_s)

or, in a loop that calls next() itself,

    with waiting(sampler):
        batch = next(batches)

What is counted is passed on to the daemon about once a second, if the sampler is hinted (`hfs/hint.py`); `hfs status`
and `hfs run` show it. A few microseconds a batch; imports no framework, touches no data, never waits for the daemon.

The time of an epoch runs from the end of the epoch before (for the first one: from `timed`, or the first `waiting`) to
its own end, and all of it is one of three:

    exposed   inside next(), where it gave a batch: the first batch included, which nothing could hide
    compute   from a next() that gave a batch to the beginning of the following next(), or to where the loop was left
    other     the rest: before the first next() (starting workers; validation and checkpoints since the epoch before)
              and the last next(), which found no more
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any

from hfs.hint import Hints, hints_of
from hfs.mountd.wire.hints import Waited

__all__ = ["EpochTimes", "Timed", "Waiting", "timed", "waiting"]

_TELL_S = 1.0
"""What a person who watches `hfs status` can follow."""

_ONE_CORE = 1.2
"""A process that computes for more than this share of the time does so in several threads."""


@dataclasses.dataclass(frozen=True)
class EpochTimes:
    """Where the time of an epoch went. exposed_s + compute_s + other_s is all of it, see the top of the file."""

    epoch: int
    """The hinted sampler's; without one a count from 0."""
    exposed_s: float
    compute_s: float
    other_s: float
    batches: int
    first_batch_s: float
    """The part of `exposed_s` that was waited for the first batch; 0 if there was none."""


class _Clock:
    """The sums of one epoch under way. Told each moment at which something else begins."""

    __slots__ = (
        *("_began", "_due", "_hints", "_workers"),
        *("batches", "compute_s", "epoch", "exposed_s", "first_batch_s", "mark", "other_s"),
    )

    def __init__(self, since: float, hints: Hints | None) -> None:
        self.epoch: int | None = None
        self.mark = since
        """When what happens now began."""
        self.exposed_s = self.compute_s = self.other_s = self.first_batch_s = 0.0
        self.batches = 0
        self._due = 0.0
        self._hints = hints
        self._began = time.monotonic(), time.process_time()
        self._workers: int | None = 0

    def before_next(self, now: float) -> None:
        if self.batches:
            self.compute_s += now - self.mark
        else:
            self.other_s += now - self.mark
        self.mark = now

    def after_next(self, now: float) -> None:
        waited_s = now - self.mark
        self.exposed_s += waited_s
        if not self.batches:
            self.first_batch_s = waited_s
            if self._hints is not None:
                self.epoch = self._hints.epoch
        self.batches += 1
        self.mark = now
        if now >= self._due:
            self._due = now + _TELL_S
            self._count_workers(now)  # while there are some: they may end with the epoch
            self.tell()

    def tell(self) -> None:
        """Pass the sums on."""
        if self._hints is not None and self.epoch is not None:
            times = self.exposed_s, self.compute_s, self.other_s
            cores = len(os.sched_getaffinity(0))
            self._hints.say_waited(Waited(self.epoch, *times, self.batches, self._workers, cores))

    def _count_workers(self, now: float) -> None:
        """Most of the processes that there were. Whoever loads in threads is not known by them."""
        since, since_cpu_s = self._began
        if time.process_time() - since_cpu_s > _ONE_CORE * max(now - since, _TELL_S):
            self._workers = None
        module = sys.modules.get("multiprocessing")
        if self._workers is not None and module is not None:
            self._workers = max(self._workers, len(module.active_children()))

    def end(self, number: int) -> EpochTimes:
        """The sums; `number` is that of an epoch that has none of its own."""
        self.tell()
        epoch = number if self.epoch is None else self.epoch
        return EpochTimes(epoch, self.exposed_s, self.compute_s, self.other_s, self.batches, self.first_batch_s)

    def found_no_more(self, now: float) -> None:
        self.other_s += now - self.mark
        self.mark = now


def timed(loader: Any, sampler: object = None) -> Timed:  # noqa: ANN401 - any iterable of batches
    """The same loader, whose epochs are accounted for.

    `sampler`: the hinted one, whose daemon is told; found by itself in a DataLoader. Without one the figures stay here.
    """
    return Timed(loader, sampler)


class Timed:
    """A loader that keeps the times of its epochs. All else is the loader's."""

    def __init__(self, loader: Any, sampler: object = None) -> None:  # noqa: ANN401 - any loader, and whatever its attributes are
        self.loader = loader
        self.epochs: list[EpochTimes] = []
        """Of the epochs that have ended, in the order of their ends."""
        self._since = time.monotonic()
        found = (sampler, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None))
        self._hints = next((hints for each in found if (hints := hints_of(each)) is not None), None)

    def __iter__(self) -> Iterator[Any]:
        return self._batches(iter(self.loader))

    def _batches(self, iterator: Iterator[Any]) -> Generator[Any, None, None]:
        now = time.monotonic
        clock = _Clock(self._since, self._hints)
        try:
            while True:
                clock.before_next(now())
                try:
                    batch = next(iterator)
                except BaseException as error:
                    clock.found_no_more(now())
                    if isinstance(error, StopIteration):
                        return
                    raise
                clock.after_next(now())
                yield batch
                del batch  # the loop has its own; two at a time would be twice the memory
        except GeneratorExit:
            clock.before_next(now())
            raise
        finally:
            self._since = now()
            self.epochs.append(clock.end(len(self.epochs)))

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any loader, and whatever its attributes are
        if name == "loader" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # while it is copied or unpickled
        return getattr(self.loader, name)


class Waiting:
    """Accounts for a loop that calls next() itself, within `with`. A StopIteration that passes ends the epoch.

    So does `end_epoch`, and the first batch of a hinted sampler's next epoch. Not for two loops at once.
    """

    def __init__(self, hints: Hints | None = None) -> None:
        self.epochs: list[EpochTimes] = []
        """Of the epochs that have ended."""
        self._hints = hints
        self._clock = _Clock(time.monotonic(), hints)

    def __enter__(self) -> None:
        self._clock.before_next(time.monotonic())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = time.monotonic()
        if kind is not None and issubclass(kind, StopIteration | StopAsyncIteration):
            self._clock.found_no_more(now)
            self._end(now)
            return
        clock, hints = self._clock, self._hints
        if hints is not None and clock.epoch is not None and hints.epoch != clock.epoch:
            waited_since = clock.mark
            self._end(waited_since)
            self._clock.before_next(waited_since)
        self._clock.after_next(now)

    def end_epoch(self) -> EpochTimes:
        """The epoch has ended here. Gives its times."""
        now = time.monotonic()
        self._clock.before_next(now)
        return self._end(now)

    def _end(self, now: float) -> EpochTimes:
        self.epochs.append(self._clock.end(len(self.epochs)))
        self._clock = _Clock(now, self._hints)
        return self.epochs[-1]


_of_process: list[Waiting] = []


def waiting(sampler: object = None) -> Waiting:
    """The account of this (hinted) sampler in this process; without a hinted one, that of the process."""
    hints = hints_of(sampler)
    if hints is not None:
        if not isinstance(hints.account, Waiting):
            hints.account = Waiting(hints)
        return hints.account
    if not _of_process:
        _of_process.append(Waiting())
    return _of_process[0]
