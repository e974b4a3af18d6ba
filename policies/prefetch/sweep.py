"""Sweeps: which of the units that are needed next are fetched in the order of the file, and which in that of their use.

For units that hold many samples (chunks of a file). In random order of small samples the next thousand of them need all
the chunks of a gigabyte, and no reader gets far before nearly all of these are here: then their order of use is worth
nothing, and the order of the file lets the source read from end to end (coalescing over many batches: LMDBIO, Pumma et
al., 2019, section on COAL). Large samples, or groups of neighbours, are complete after a few chunks: then whoever
fetches the last ones first lets a learner wait.

So a window of units in order of use is swept as far as only a small part of it is used before its end. Sweeps go round:
the next one begins where the last one was. Pure; keeps one plan and knows neither bytes nor time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_USED_SHARE = 1 / 8
"""Samples that are read until the end of the window, of all that it holds. Samples of an eighth of a chunk or more are
fetched in their own order; 19 KB in chunks of 8 MiB, at random, use 1.5 % of the window, 3 KB records 0.2 %."""


_LONG = 16
"""More than a shuffled group has: 12 MB in chunks of 2 MiB are seven."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The next unit of a sweep, and the number of the learner for which it is fetched."""

    unit: int
    owner: int


class Sweep:
    """One plan at a time. `samples_a_unit`: how many samples a unit holds on average, more than 0."""

    def __init__(self, samples_a_unit: float) -> None:
        self._samples_a_unit = samples_a_unit
        self._units: NDArray[np.int32] = np.empty(0, np.int32)
        self._owners: NDArray[np.intp] = np.empty(0, np.intp)
        self._done = 0
        self._last = -1
        self._swept: frozenset[int] = frozenset()

    def plan(self, units: NDArray[np.int32], owners: NDArray[np.intp], samples: NDArray[np.float64]) -> None:
        """A new plan. `units`: int32 [n], in order of use, each once; `owners`: whose each is. `samples`: float64 [n],
        ascending: how many samples are read, by all learners, from the first unit's use on until each is needed."""
        held = self._samples_a_unit * np.arange(1, len(units) + 1)
        sparse = np.flatnonzero(samples <= _USED_SHARE * held)
        count = int(sparse[-1]) + 1 if len(sparse) else min(1, len(units))
        order = np.argsort(units[:count], kind="stable")
        ahead = int(np.searchsorted(units[order], self._last, "right"))
        order = np.concatenate((order[ahead:], order[:ahead]))
        self._units, self._owners, self._done = units[order], owners[order], 0
        self._swept = frozenset(self._units.tolist()) if count > 1 else frozenset()

    def forget(self) -> None:
        """The plan no longer holds: what learners want has changed."""
        self._units, self._done, self._swept = self._units[:0], 0, frozenset()

    def upcoming(self) -> Planned | None:
        """What comes next; None if the plan is at its end."""
        if self._done == len(self._units):
            return None
        return Planned(int(self._units[self._done]), int(self._owners[self._done]))

    def go_on(self) -> None:
        """What came next has been taken, or is not wanted any more."""
        self._last = int(self._units[self._done])
        self._done += 1

    @property
    def is_long(self) -> bool:
        """So many units are swept that all those who want one of them wait for most."""
        return len(self._swept) >= _LONG

    def holds(self, unit: int) -> bool:
        """Whether this unit is one of many that come in the order of the file; also if it has just been taken."""
        return unit in self._swept
