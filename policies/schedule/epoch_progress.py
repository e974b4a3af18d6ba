"""A learner as the schedule sees it: its orders, how far it is in them, how fast it is, whether it has stopped.

Stopped: a learner that has not moved for 5 s though what it needs next is here validates, saves, or hangs. It waits for
nothing from us, so its uses come after all others', and what it leaves unused no longer counts against the others.

Rates: a learner that is slow because its data does not come must not be given even less, so its rate counts as a
quarter of the fastest one's at least; one that has shown no rate counts as the fastest.

Knows nothing of units' bytes and of budgets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.uses import ABSENT, HERE, TAKEN, Uses

GUARD_SAMPLES = 4096
"""How far a sampler may be ahead of the reads: 16 workers with two batches of 128 each."""

UNKNOWN_RATE = 100.0
"""Samples a second as long as no learner's rate is known: only ratios matter."""

_SLOWEST_PART = 4
_STOPPED_S = 5.0
_STOPPED_UNITS = 64
"""So many of the next units may not be on their way: some batches."""
_JUDGED_AT_ONCE = 16
_LOOK_AT_USES = 16_384
"""So many uses tell which share of them is here, to half a percent, in 0.1 ms: 64 learners are told of at once."""


_MEASURE_S = 1.0
_MEMORY_S = 10.0
"""Some batches of a slow job, and short enough that a learner that speeds up after its first epoch is soon known."""
_PAUSE_S = 60.0
"""Who says nothing for so long does something else (validation, a checkpoint): that is no pace."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a learner stands."""

    epoch: int
    position: int
    """Samples that its sampler has given out."""
    samples: int
    """Length of the epoch; 0 between epochs."""
    rate: float | None
    """Samples a second."""
    here_share: float
    """Of the uses that are left, in 0..1; 1 if none are left. What was used ahead of the sampler is not left. Estimated
    from 16 384 of them at most."""
    eta_s: float | None
    """Until the end of the epoch, at this rate."""
    ahead_bytes: int
    """Fetched for it and not used."""
    stopped: bool


class Pace:
    """How fast one learner goes through its epoch. `rate`: samples a second, above 0; None as long as nothing is known.

    A sampler is drawn in bursts: a loader draws some batches for each of its workers at once when the epoch begins,
    then one whenever a batch is done, and reports of it come late and together. So progress is measured over a second
    at least, the first second of an epoch does not count, and an average over ten seconds is what is told. Times are
    seconds of one clock that never goes back.
    """

    __slots__ = ("_from", "_since_s", "_warm", "rate")

    def __init__(self) -> None:
        self.rate: float | None = None
        self._from = 0
        self._since_s = 0.0
        self._warm = False

    def begin(self, now_s: float) -> None:
        """An epoch begins, at position 0. The rate of the one before holds until this one's is known."""
        self._from, self._since_s, self._warm = 0, now_s, False

    def moved(self, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples of the epoch; never fewer than before."""
        spent_s = now_s - self._since_s
        if spent_s < _MEASURE_S:
            return
        measured = (position - self._from) / spent_s
        if self._warm and spent_s < _PAUSE_S and measured > 0:
            if self.rate is None:
                self.rate = measured
            else:
                self.rate += (1.0 - math.exp(-spent_s / _MEMORY_S)) * (measured - self.rate)
        self._from, self._since_s, self._warm = position, now_s, True


class EpochProgress:
    """One learner, at `epoch`. `uses`: of that epoch, None between epochs; `following`: of the one after, if known."""

    __slots__ = ("epoch", "following", "judged_s", "moved_s", "pace", "position", "stopped", "uses")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.position = 0
        """Samples of the epoch that its sampler has given out."""
        self.uses: Uses | None = None
        self.following: Uses | None = None
        self.pace = Pace()
        self.moved_s = 0.0
        """When it last did something."""
        self.stopped = False
        """It has not moved for 5 s, though what it needs next is here (or will not come); as of `judged_s`."""
        self.judged_s = -math.inf

    def begin(self, epoch: int, uses: Uses, now_s: float) -> None:
        """A new epoch, at its first sample."""
        self.epoch, self.position, self.moved_s = epoch, 0, now_s
        self.stopped, self.judged_s = False, -math.inf
        self.uses, self.following = uses, None
        self.pace.begin(now_s)

    def announce(self, uses: Uses) -> None:
        """The order of the epoch after this one."""
        self.following = uses

    def move(self, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples."""
        self.position, self.moved_s, self.stopped = position, now_s, False
        self.pace.moved(position, now_s)

    def see(self, unit: int, now_s: float) -> None:
        """The first use of `unit` that was not over, which there must be, is over."""
        assert self.uses is not None
        self.uses.see(unit)
        self.moved_s, self.stopped = now_s, False

    def end(self) -> None:
        """Nothing of the epoch is pending."""
        self.uses, self.position = None, 0

    @property
    def may_want(self) -> bool:
        """Some of its uses may lack their unit; a microsecond."""
        return any(uses is not None and uses.may_lack for uses in (self.uses, self.following))

    def orders(self) -> list[tuple[Uses, int]]:
        """The orders that are known, and the sampler's position in each: before the start of one that follows."""
        found = [] if self.uses is None else [(self.uses, self.position)]
        if self.following is not None:
            found.append((self.following, self.position - (0 if self.uses is None else self.uses.samples)))
        return found

    def judge(self, state: NDArray[np.uint8], now_s: float) -> bool:
        """Look whether it has `stopped`: up to a millisecond, where there are millions of units."""
        self.stopped, self.judged_s = self.is_stopped(state, now_s), now_s
        return self.stopped

    def is_stopped(self, state: NDArray[np.uint8], now_s: float) -> bool:
        """The same now; changes nothing."""
        if now_s - self.moved_s <= _STOPPED_S:
            return False
        for uses, position in self.orders():
            following = uses.over_at(position)
            # A sample may have any number of uses.
            start = max(uses.over_at(position - GUARD_SAMPLES), following - _LOOK_AT_USES)
            units = uses.order[start : following + _STOPPED_UNITS]
            # On its way: perhaps it waits for that. Further on, units may be absent since the budget is used up.
            if np.any(state[units] == TAKEN):
                return False
            absent = np.flatnonzero(state[units[: following - start + 1]] == ABSENT)
            return not bool(np.any(uses.heads(units[absent]) <= absent + start))
        return True

    def _here_share(self, uses: Uses, state: NDArray[np.uint8]) -> float:
        start = uses.over_at(self.position)
        left = np.arange(start, uses.n, 1 + (uses.n - start) // _LOOK_AT_USES)
        units = uses.order[left]
        units = units[uses.heads(units) <= left]  # somebody has used the others already: nobody fetches them
        return int(np.count_nonzero(state[units] == HERE)) / len(units) if len(units) else 1.0

    def standing(self, state: NDArray[np.uint8], ahead_bytes: int, now_s: float) -> Standing:
        """Where it stands. `state`: of all units; `ahead_bytes`: what was fetched for it and is not used."""
        uses, rate = self.uses, self.pace.rate
        if uses is None:
            return Standing(self.epoch, 0, 0, rate, 1.0, None, ahead_bytes, stopped=False)
        here = self._here_share(uses, state)
        eta_s = None if rate is None else max(uses.samples - self.position, 0) / rate
        stopped = self.judge(state, now_s)
        return Standing(self.epoch, self.position, uses.samples, rate, here, eta_s, ahead_bytes, stopped)


def judge_some(learners: Mapping[int, EpochProgress], state: NDArray[np.uint8], now_s: float) -> None:
    """Look which of the learners have `stopped`; of many at those that were looked at longest ago."""
    for found in heapq.nsmallest(_JUDGED_AT_ONCE, learners.values(), key=lambda each: each.judged_s):
        found.judge(state, now_s)


def learner_rates(learners: Mapping[int, EpochProgress]) -> dict[int, float]:
    """Samples a second to reckon with, by learner."""
    rates = {learner: found.pace.rate for learner, found in list(learners.items())}
    fastest = max((rate for rate in rates.values() if rate is not None), default=UNKNOWN_RATE)
    return {learner: max(fastest if rate is None else rate, fastest / _SLOWEST_PART) for learner, rate in rates.items()}
