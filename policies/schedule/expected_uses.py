"""When each unit is expected to be used, from the orders of all learners: what eviction and miss policy ask.

A use at position p of a learner whose sampler has given out `position` samples is expected in (p - position) / rate
seconds, and after the uses of all others if the learner has stopped. Loaders draw ahead of what they read: a use whose
sample was given out is expected now until it is over. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.epoch_progress import UNKNOWN_RATE, EpochProgress, judge_some, learner_rates
from hfs.policies.schedule.unit_table import UnitTable
from hfs.policies.schedule.uses import Indices

_AFTER_ALL_S = 1e7
"""What is added to the times of a stopped learner: longer than any epoch, and finite, since the uses are known."""

_READ_BEHIND_SAMPLES = 512
_READ_AHEAD_SAMPLES = 256
"""What is read about now: a loader has some batches of it in its queue, and draws the next."""


class ExpectedUses:
    """The uses that are not over. `learners`: by number, changed by the schedule."""

    def __init__(self, learners: Mapping[int, EpochProgress], units: UnitTable) -> None:
        self._learners = learners
        self._units = units

    def next_use_s(self, units: Indices | None, now_s: float) -> NDArray[np.float64]:
        """When each of `units` (all if None) is expected to be used next; float64, inf where no use is known.

        The only one that may be asked in another thread than the rest; it may then see half of a change.
        """
        asked = np.arange(len(self._units)) if units is None else units
        soonest = np.full(len(asked), np.inf)
        rates = learner_rates(self._learners)
        for learner, found in list(self._learners.items()):
            after_s = _AFTER_ALL_S if found.is_stopped(self._units.state, now_s) else 0.0
            for uses, position in found.orders():
                heads = uses.heads(asked)
                known = np.flatnonzero(heads < uses.n)
                ahead = np.maximum(uses.positions(heads[known]) - position, 0)
                soonest[known] = np.minimum(soonest[known], now_s + after_s + ahead / rates.get(learner, UNKNOWN_RATE))
        return soonest

    def second_use_s(self, units: Indices, now_s: float) -> NDArray[np.float64]:
        """When each of `units` is expected to be used after its next use; float64, inf where that is not known."""
        soonest = np.full(len(units), np.inf)
        second = np.full(len(units), np.inf)
        rates = learner_rates(self._learners)
        judge_some(self._learners, self._units.state, now_s)
        for learner, found in self._learners.items():
            after_s = _AFTER_ALL_S if found.stopped else 0.0
            for uses, position in found.orders():
                heads = uses.heads(units)
                for which in (heads, uses.after(heads)):
                    known = np.flatnonzero(which < uses.n)
                    ahead = np.maximum(uses.positions(which[known]) - position, 0)
                    use_s = now_s + after_s + ahead / rates[learner]
                    second[known] = np.minimum(second[known], np.maximum(soonest[known], use_s))
                    soonest[known] = np.minimum(soonest[known], use_s)
        return second

    def samples_soon(self, unit: int) -> int | None:
        """How many of the samples that are read about now need this unit, over all learners; None if none ever will.

        0: only later ones do.
        """
        wanted, count = False, 0
        for found in self._learners.values():
            for uses, position in found.orders():
                wanted |= uses.head(unit) < uses.n
                count += uses.samples_of(unit, position - _READ_BEHIND_SAMPLES, position + _READ_AHEAD_SAMPLES)
        return count if wanted or count else None

    def is_wanted(self, unit: int) -> bool:
        """Whether a use of it that is known is not over."""
        return any(uses.head(unit) < uses.n for found in self._learners.values() for uses, _ in found.orders())
