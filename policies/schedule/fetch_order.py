"""What to fetch next: the learners' orders merged by time of use, within a budget that they share.

What was taken and is not used (`unit_table.py`) counts against the budget. Each learner that wants something has an
equal share of what the others leave; learners that have stopped come last. Units that hold many samples are fetched in
the order of their numbers where that delays nobody (`Sweep`).

Never fetches, never decides whether the cache has room. Cost: `take` well below 2 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.epoch_progress import EpochProgress, judge_some, learner_rates
from hfs.policies.schedule.unit_table import UnitTable

_LOOK_AT_USES = 1 << 16
"""Uses that one `take` looks at, over all learners: about a millisecond."""

_AT_ONCE = 32
"""Learners among whose orders one `take` chooses: each costs 50 us, and all of a user's would take 10 ms. Where units
hold many samples, a choice is one for many takes, and is made among all."""


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
    """Which of the units that are needed next are fetched in the order of the file, and which in that of their use.

    For units that hold many samples (chunks of a file). In random order of small samples the next thousand of them need
    all the chunks of a gigabyte, and no reader gets far before nearly all of these are here: then their order of use is
    worth nothing, and the order of the file lets the source read from end to end (coalescing over many batches: LMDBIO,
    Pumma et al., 2019, section on COAL). Large samples, or groups of neighbours, are complete after a few chunks: then
    whoever fetches the last ones first lets a learner wait.

    So a window of units in order of use is swept as far as only a small part of it is used before its end. Sweeps go
    round: the next one begins where the last one was. One plan at a time; knows neither bytes nor time.
    `samples_a_unit`: how many samples a unit holds on average, more than 0.
    """

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one learner wants next: `units` (int32 [n], n > 0, each once), due in `due_s` seconds (ascending)."""

    units: NDArray[np.int32]
    due_s: NDArray[np.float64]
    more: bool
    """It wants more than these."""
    ahead_bytes: int
    """What it has got and not used."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What to fetch: `units` (int32 [n]), soonest first and each once; when each is due, in seconds (float64 [n]); and
    whose it is (`owners`, intp [n]: indices of what was merged)."""

    units: NDArray[np.int32]
    due_s: NDArray[np.float64]
    owners: NDArray[np.intp]


def merge(
    wanting: Sequence[Wanted], unit_bytes: NDArray[np.int64], *, limit: int, budget_bytes: int, idle_bytes: int
) -> Merged:
    """The units to fetch, soonest first.

    As many as `limit` and the budget allow and as the order is known: nothing later than the last unit that is known of
    a learner that wants more, so at least one if there is budget. `unit_bytes`: of all units. `idle_bytes`: what those
    have ahead who want nothing, each counted with its equal part of the budget at most. The rest of the budget is
    shared equally; nobody's share is less because another has more than its own, which happens when some come later.
    A learner with nothing ahead gets its first unit in any case. So what is ahead afterwards is within the budget, but
    for one unit a learner and for what some had beyond their share.
    """
    share_bytes = (budget_bytes - idle_bytes) // len(wanting)
    ahead_bytes = idle_bytes
    horizon_s = np.inf
    units, due_s, counts = [], [], []
    for wanted in wanting:
        ahead_bytes += min(wanted.ahead_bytes, share_bytes)
        allowed = len(wanted.units)
        total = np.cumsum(unit_bytes[wanted.units])
        if total[-1] + wanted.ahead_bytes > share_bytes:
            allowed = int(total.searchsorted(share_bytes - wanted.ahead_bytes, "right"))
            allowed = max(allowed, 0 if wanted.ahead_bytes else 1)
        if wanted.more and allowed == len(wanted.units):
            horizon_s = min(horizon_s, wanted.due_s[-1])
        units.append(wanted.units[:allowed])
        due_s.append(wanted.due_s[:allowed])
        counts.append(allowed)
    if len(wanting) == 1:
        merged, due, owners = units[0], due_s[0], np.zeros(counts[0], np.intp)
    else:
        due = np.concatenate(due_s)
        order = due.argsort(kind="stable")
        order = order[: due[order].searchsorted(horizon_s, "right")]
        merged, due = np.concatenate(units)[order], due[order]
        owners = np.repeat(np.arange(len(wanting)), counts)[order]
        ascending = np.sort(merged)
        if np.any(ascending[1:] == ascending[:-1]):  # seldom, and to say which costs ten times as much
            once = np.sort(np.unique(merged, return_index=True)[1])
            merged, due, owners = merged[once], due[once], owners[once]
    sizes = unit_bytes[merged]
    before = ahead_bytes + np.cumsum(sizes) - sizes
    fits = before < budget_bytes
    if not fits.all():
        owner, first = np.unique(owners, return_index=True)
        fits[first[[not wanting[of].ahead_bytes for of in owner.tolist()]]] = True
    return Merged(merged[fits][:limit], due[fits][:limit], owners[fits][:limit])


class FetchOrder:
    """`learners`: by number, changed by the schedule. `sweep`: as many as `sweep_units` units are fetched in the order
    of their numbers."""

    def __init__(
        self, learners: Mapping[int, EpochProgress], units: UnitTable, sweep: Sweep | None, sweep_units: int
    ) -> None:
        self._learners = learners
        self._units = units
        self._sweep = sweep
        self._sweep_units = sweep_units
        self.searching = False
        """The last `take` was short since it had looked at enough, not since there is no more: ask again."""
        self._turns: dict[int, int] = {}
        """When each learner had its turn, where there are many: by number, of `_turn`."""
        self._turn = 0
        self._in_vain: set[int] = set()
        """Those who had it since somebody has got something."""

    def take(self, limit: int, budget_bytes: int, now_s: float) -> list[int]:
        """At most `limit` units to fetch now, soonest use first. Each is given once and then needs one of the
        schedule's `arrived`, `here`, `failed` and `refused`.

        What is ahead stays within `budget_bytes`, except that a learner with nothing ahead gets a unit in any case, and
        that who comes later gets its share even if those before took all.
        """
        if limit <= 0 or budget_bytes <= 0:
            return []
        self.searching = False
        going: dict[int, EpochProgress] = {}
        stopped: dict[int, EpochProgress] = {}
        judge_some(self._learners, self._units.state, now_s)
        for learner, found in self._learners.items():
            (stopped if found.stopped else going)[learner] = found
        take = self._take_by_use if self._sweep is None else self._take_by_number
        taken = take(going, limit, budget_bytes)
        # These may use what the others leave, and nothing that the others would miss.
        left_bytes = budget_bytes - sum(map(self._units.ahead_bytes_of, going))
        if len(taken) < limit and left_bytes > 0 and not self.searching:
            taken += take(stopped, limit - len(taken), left_bytes)
        if taken or not self.searching:
            self._in_vain.clear()
        return taken

    @property
    def is_sweeping(self) -> bool:
        """Many units come in the order of their numbers, and nobody waits for a certain one of them."""
        return self._sweep is not None and self._sweep.is_long

    def comes_in_sweep(self, unit: int) -> bool:
        """Whether a unit is not here and comes when a sweep reaches it, which nobody gains by overtaking."""
        return self._sweep is not None and self._units.is_coming(unit) and self._sweep.holds(unit)

    def plan_anew(self) -> None:
        """What learners want has changed."""
        if self._sweep is not None:
            self._sweep.forget()

    def _take_by_use(self, learners: dict[int, EpochProgress], limit: int, budget_bytes: int) -> list[int]:
        """The learners' next units, merged by time, within the budget; they are taken and charged."""
        taken: list[int] = []
        rates = learner_rates(self._learners)
        if len(learners) > _AT_ONCE:
            learners, budget_bytes = self._whose_turn(learners, budget_bytes)
        look_at = self._uses_to_look_at(learners)
        for _ in range(_AT_ONCE // max(1, len(learners)) + 1):
            if not learners or len(taken) >= limit:
                break
            merged = self._merged(learners, limit - len(taken), budget_bytes, rates, look_at)
            if merged is None or not len(merged.units):
                break
            self._units.take_all(merged.units, merged.owners)
            taken += merged.units.tolist()
        return taken

    def _take_by_number(self, learners: dict[int, EpochProgress], limit: int, budget_bytes: int) -> list[int]:
        """As `_take_by_use`, in the order of the sweep, of which a new one is planned when one has ended."""
        assert self._sweep is not None
        taken: list[int] = []
        rates: dict[int, float] | None = None
        while learners and len(taken) < limit:
            coming = self._sweep.upcoming()
            if coming is None:
                if rates is not None:
                    break  # what was planned just now is not to be had
                rates = learner_rates(self._learners)
                look_at = self._uses_to_look_at(learners)
                merged = self._merged(learners, max(limit, self._sweep_units), budget_bytes, rates, look_at)
                if merged is None or not len(merged.units):
                    break
                together = sum(rates[learner] for learner in learners)
                samples = (merged.due_s - merged.due_s[0]) * together + len(learners)
                self._sweep.plan(merged.units, merged.owners, samples)
                continue
            owner = self._learners.get(coming.owner)
            if owner is not None and self._is_wanted(owner, coming.unit):
                size_bytes = int(self._units.sizes[coming.unit])
                ahead_bytes = self._units.ahead_bytes
                if self._units.ahead_bytes_of(coming.owner) and ahead_bytes + size_bytes > budget_bytes:
                    break
                self._units.take(coming.unit, coming.owner)
                taken.append(coming.unit)
            self._sweep.go_on()
        return taken

    def _whose_turn(
        self, learners: dict[int, EpochProgress], budget_bytes: int
    ) -> tuple[dict[int, EpochProgress], int]:
        """As many as are gone through at once, of those who may want something, and their part of the budget."""
        wanting = [learner for learner, found in learners.items() if found.may_want]
        idle = learners.keys() - wanting
        idle_bytes = sum(min(self._units.ahead_bytes_of(learner), budget_bytes // len(learners)) for learner in idle)
        left = sorted(set(wanting) - self._in_vain, key=lambda learner: self._turns.get(learner, 0))
        chosen = left[:_AT_ONCE]
        self.searching |= len(left) > len(chosen)
        self._in_vain.update(chosen)
        self._turn += 1
        self._turns = {learner: self._turns.get(learner, 0) for learner in wanting} | dict.fromkeys(chosen, self._turn)
        part_bytes = (budget_bytes - idle_bytes) * len(chosen) // max(1, len(wanting))
        return {learner: learners[learner] for learner in chosen}, part_bytes

    @staticmethod
    def _uses_to_look_at(learners: Mapping[int, EpochProgress]) -> dict[int, int]:
        return {learner: _LOOK_AT_USES // len(learners) for learner in learners}

    def _merged(
        self,
        learners: dict[int, EpochProgress],
        limit: int,
        budget_bytes: int,
        rates: dict[int, float],
        look_at: dict[int, int],
    ) -> Merged | None:
        """The learners' next units, merged by time, within the budget; None if nobody wants any. Takes none of them.

        Owners are numbers of learners. They may be fewer than `limit` though there are more.
        """
        # Each learner's part and some more: where one comes more often than that, there is another round.
        each = min(limit, 8 + 5 * limit // (4 * len(learners)))
        asked = [(learner, self._wanted(learner, each, rates[learner], look_at)) for learner in learners]
        wanting = [(learner, wanted) for learner, wanted in asked if wanted is not None]
        if not wanting:
            return None
        part_bytes = budget_bytes // len(learners)
        idle_bytes = sum(
            min(self._units.ahead_bytes_of(learner), part_bytes) for learner, wanted in asked if wanted is None
        )
        merged = merge(
            [wanted for _, wanted in wanting],
            self._units.sizes,
            limit=limit,
            budget_bytes=budget_bytes,
            idle_bytes=idle_bytes,
        )
        numbers = np.array([learner for learner, _ in wanting], np.intp)
        return replace(merged, owners=numbers[merged.owners])

    def _is_wanted(self, learner: EpochProgress, unit: int) -> bool:
        """A unit that was planned for a learner is neither here nor over yet."""
        return self._units.is_absent(unit) and any(uses.head(unit) < uses.n for uses, _ in learner.orders())

    def _wanted(self, learner: int, limit: int, rate: float, look_at: dict[int, int]) -> Wanted | None:
        """The next units that a learner needs and that are absent; None if there are none."""
        units: list[NDArray[np.int32]] = []
        due_s: list[NDArray[np.float64]] = []
        known = 0
        for uses, position in self._learners[learner].orders():
            absent, looked = uses.absent(limit - known, look_at[learner], self._units.state)
            look_at[learner] -= looked
            if len(absent):
                units.append(uses.order[absent])
                due_s.append((uses.positions(absent) - position) / rate)
                known += len(absent)
            if known >= limit:
                break
            if uses.cursor < uses.n:
                self.searching = True
                break
        if not known:
            return None
        ahead_bytes = self._units.ahead_bytes_of(learner)
        if len(units) == 1:
            return Wanted(units[0], due_s[0], known >= limit, ahead_bytes)
        # What this epoch needs may be needed in the next one, too.
        both = np.concatenate(units)
        once = np.sort(np.unique(both, return_index=True)[1])
        return Wanted(both[once], np.concatenate(due_s)[once], known >= limit, ahead_bytes)
