"""The schedule of a node: from the orders its learners will read in, what to fetch next and what is needed again when.

A *unit* is a chunk of a layout, or a whole small file. `mountd` owns a Schedule for each layout, tells it what the
learners say (`follow`, `advance`, `over`) and what became of units (`arrived`, `here`, `failed`, `refused`,
`evicted`, `seen`), and asks its parts: what to fetch (`fetch_order`), when units are used next, as eviction needs to
know (`expected`), and itself what to make ready just before its use (`near`). Pure; never fetches, never evicts, never
decides whether the cache has room.

Over. Loaders draw ahead of what they read. So a use whose sample was given out is due *now* until its unit is seen
being used, the sampler is `guard_samples` past it, or the epoch is over.

Costs: `follow` of 1.28 million uses some 50 ms, or nothing when they were announced by `follow_next`; `take` well below
2 ms; all else microseconds. Memory: 13 bytes a unit, and for each order of each learner what
`policies/schedule/uses.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.ma  # used by np.unique, which imports it at its first call: the first hint would wait 20 to 40 ms
from numpy.typing import NDArray

from hfs.policies.schedule.epoch_progress import (
    GUARD_SAMPLES,
    UNKNOWN_RATE,
    EpochProgress,
    Standing,
    judge_some,
    learner_rates,
)
from hfs.policies.schedule.fetch_order import FetchOrder, Sweep
from hfs.policies.schedule.unit_table import STEP_UNITS, UnitTable
from hfs.policies.schedule.uses import FAILED, Indices, Uses, made

_SEEN_AHEAD_SAMPLES = 8192
"""A unit that is read so long before it is due is read by somebody else (a copy, a checksum); reports may be late."""


_AFTER_ALL_S = 1e7
"""What is added to the times of a stopped learner: longer than any epoch, and finite, since the uses are known."""

_READ_BEHIND_SAMPLES = 512
_READ_AHEAD_SAMPLES = 256
"""What is read about now: a loader has some batches of it in its queue, and draws the next."""


class ExpectedUses:
    """When each unit is expected to be used, from the uses that are not over: what eviction and miss policy ask.

    A use at position p of a learner whose sampler has given out `position` samples is expected in (p - position) /
    rate seconds, and after the uses of all others if the learner has stopped. Loaders draw ahead of what they read: a
    use whose sample was given out is expected now until it is over. Changes nothing. `learners`: by number, changed by
    the schedule.
    """

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


class Schedule:
    """All learners of one layout. Units are 0 to units - 1; learners are told apart by numbers from 0 on. Times are
    seconds of one clock that never goes back."""

    def __init__(
        self,
        units: int,
        unit_bytes: NDArray[np.int64] | int,
        *,
        guard_samples: int = GUARD_SAMPLES,
        uses_are_seen: bool = True,
        sweep: Sweep | None = None,
        sweep_units: int = 0,
    ) -> None:
        """`unit_bytes`: of each unit, or an estimate for all that `arrived` corrects. `uses_are_seen` may change:
        whether `seen` is told of what is used.

        `sweep`: as many as `sweep_units` units are fetched in the order of their numbers where that delays nobody.
        """
        self._guard_samples = guard_samples
        self.uses_are_seen = uses_are_seen
        self._learners: dict[int, EpochProgress] = {}
        self.units = UnitTable(units, unit_bytes)
        self.expected = ExpectedUses(self._learners, self.units)
        self.fetch_order = FetchOrder(self._learners, self.units, sweep, sweep_units)

    # --- What learners say

    def follow(
        self,
        learner: int,
        epoch: int,
        units: NDArray[np.int32],
        at: NDArray[np.int64] | None,
        samples: int,
        now_s: float,
    ) -> None:
        """A new epoch of `samples` samples has begun: use i needs unit units[i] at sample position at[i].

        `units`: int32 [n], each in [0, units). `at`: int64 [n], ascending, in [0, samples), or None for at[i] == i. It
        replaces the order before; if it is the one that `follow_next` announced, what was planned for it is kept. What
        could not be fetched is tried again. Raises ValueError for arrays that are not as said; then nothing changes.
        """
        _to_the_end(self.follow_steps(learner, epoch, self.uses(learner, units, at, samples), now_s))

    def follow_next(
        self, learner: int, epoch: int, units: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int
    ) -> None:
        """The order of the epoch after the one under way, known early. Raises ValueError as `follow` does."""
        _to_the_end(self.follow_next_steps(learner, epoch, self.uses(learner, units, at, samples)))

    def uses(self, learner: int, units: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int) -> Uses:
        """An order for `follow_steps` or `follow_next_steps`. Raises ValueError as `follow` does.

        May be made in another thread, but for one learner one after the other: nothing changes.
        """
        found = self._learners.get(learner)
        return made(len(self.units), units, at, samples, found.following if found else None)

    def follow_steps(self, learner: int, epoch: int, uses: Uses, now_s: float) -> Iterator[None]:
        """As `follow`, in steps of a millisecond. The learner says no more before the last of them."""
        found = self._learners.get(learner)
        is_expected = found is not None and uses is found.following
        if found is None:
            found = self._learners[learner] = EpochProgress(epoch)
        found.begin(epoch, uses, now_s)
        self.fetch_order.plan_anew()
        yield from self.units.ahead.release_all_but(learner, _planned_for(uses if is_expected else None))
        for first, end in self.units.ahead.steps():
            failed = np.flatnonzero(self.units.state[first:end] == FAILED) + first
            failed = failed[uses.heads(failed) < uses.n]
            self.units.try_again(failed)
            yield from self._reopen(failed)
            yield

    def follow_next_steps(self, learner: int, epoch: int, uses: Uses) -> Iterator[None]:
        """As `follow_next`, in steps."""
        found = self._learners.get(learner)
        if found is None:
            found = self._learners[learner] = EpochProgress(epoch - 1)
        before = found.following
        found.announce(uses)
        if before is not None and before is not uses:
            self.fetch_order.plan_anew()
            yield from self.units.ahead.release_all_but(learner, _planned_for(found.uses))

    def advance(self, learner: int, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples of the epoch. Going back is ignored."""
        _to_the_end(self.advance_steps(learner, position, now_s))

    def advance_steps(self, learner: int, position: int, now_s: float) -> Iterator[None]:
        """The same in steps."""
        found = self._learners.get(learner)
        if found is None or found.uses is None or position <= found.position:
            return
        uses = found.uses
        # The first report of an epoch that is further than a loader draws ahead: it is resumed, not begun.
        resumed = found.position == 0 and position > self._guard_samples
        before, given_out = uses.done, uses.over_at(position)
        found.move(position, now_s)
        if not self.uses_are_seen:
            for first in range(before, given_out, STEP_UNITS):
                self.units.ahead.release(learner, uses.order[first : min(first + STEP_UNITS, given_out)])
                yield
        done = uses.over_at(position if resumed else position - self._guard_samples)
        while uses.done < done:
            self.units.ahead.release(learner, uses.pass_until(min(uses.done + STEP_UNITS, done), self.units.state))
            yield

    def over(self, learner: int) -> None:
        """The epoch has ended, at its end or before: nothing of it is pending."""
        _to_the_end(self.over_steps(learner))

    def over_steps(self, learner: int) -> Iterator[None]:
        """The same in steps."""
        found = self._learners.get(learner)
        if found is not None:
            found.end()
            self.fetch_order.plan_anew()
            yield from self.units.ahead.release_all_but(learner, _planned_for(found.following))

    def leave(self, learner: int) -> None:
        """The learner has gone, with all that it had announced."""
        if self._learners.pop(learner, None) is not None:
            self.units.ahead.release_all(learner)
            self.fetch_order.plan_anew()

    # --- What becomes of units

    def seen(self, unit: int, now_s: float) -> None:
        """Somebody uses this unit: the use of it that was due first, of all learners, is over."""
        nearest: tuple[float, int] | None = None
        for learner, found in self._learners.items():
            uses = found.uses
            if uses is None or (head := uses.head(unit)) >= uses.n:
                continue
            distance = uses.position(head) - found.position
            if distance < _SEEN_AHEAD_SAMPLES:
                due_s = distance / (found.pace.rate or UNKNOWN_RATE)
                if nearest is None or due_s < nearest[0]:
                    nearest = due_s, learner
        if nearest is not None:
            learner = nearest[1]
            self._learners[learner].see(unit, now_s)
            if self.units.ahead.owner(unit) == learner:
                self.units.ahead.uncharge(unit)

    def arrived(self, unit: int, size_bytes: int) -> None:
        """A unit that was taken is here now; it counts against the budget until it is used."""
        self.units.arrived(unit, size_bytes)

    def here(self, unit: int, size_bytes: int) -> None:
        """The unit was here before, or came by itself: it costs no budget."""
        self.units.here(unit, size_bytes)

    def failed(self, unit: int) -> None:
        """It could not be fetched: not asked for again before somebody's next epoch that needs it."""
        self.units.failed(unit)

    def refused(self, unit: int) -> None:
        """It was not fetched now: it will be given again."""
        self.units.refused(unit)
        _to_the_end(self._reopen(np.array([unit])))

    def evicted(self, units: Indices) -> None:
        """These are no longer here: they are given again if a use of them lies ahead. Units being fetched stay so."""
        _to_the_end(self._reopen(self.units.evict(units)))

    def near(self, learner: int, limit: int) -> list[int]:
        """Which units that are here to make ready: those of the next `limit` uses from the learner's position on.

        In order, each once for each use; a unit that comes later than its use got near is given when it is here.
        """
        found = self._learners.get(learner)
        if found is None or found.uses is None:
            return []
        units: list[int] = found.uses.ready(found.uses.over_at(found.position), limit, self.units.state).tolist()
        return units

    def statistics(self, learner: int, now_s: float = 0.0) -> Standing | None:
        """Where the learner stands; None for one that is not known. `now_s` says whether it has stopped."""
        found = self._learners.get(learner)
        return found.standing(self.units.state, self.units.ahead_bytes_of(learner), now_s) if found else None

    # --- Within

    def _reopen(self, units: Indices) -> Iterator[None]:
        """These are absent again: one learner in a step, where there may be hundreds."""
        if len(units):
            self.fetch_order.plan_anew()
            for found in list(self._learners.values()):
                for uses, _ in found.orders():
                    uses.reopen(units)
                yield


def _planned_for(uses: Uses | None) -> Callable[[Indices], NDArray[np.bool_]] | None:
    return None if uses is None else lambda charged: uses.heads(charged) < uses.cursor


def _to_the_end(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
