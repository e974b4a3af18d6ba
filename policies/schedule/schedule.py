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

import numpy as np
import numpy.ma  # used by np.unique, which imports it at its first call: the first hint would wait 20 to 40 ms
from numpy.typing import NDArray

from hfs.policies.prefetch.sweep import Sweep
from hfs.policies.schedule.epoch_progress import GUARD_SAMPLES, UNKNOWN_RATE, EpochProgress, Standing
from hfs.policies.schedule.expected_uses import ExpectedUses
from hfs.policies.schedule.fetch_order import FetchOrder
from hfs.policies.schedule.unit_table import UnitTable
from hfs.policies.schedule.uses import FAILED, Indices, Uses, made

_SEEN_AHEAD_SAMPLES = 8192
"""A unit that is read so long before it is due is read by somebody else (a copy, a checksum); reports may be late."""


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
        """`unit_bytes`: of each unit, or an estimate for all that `arrived` corrects.

        `sweep`: as many as `sweep_units` units are fetched in the order of their numbers where that delays nobody.
        """
        self._guard_samples = guard_samples
        self._uses_are_seen = uses_are_seen
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
        found = self._learners.get(learner)
        expected = found.following if found else None
        uses = made(len(self.units), units, at, samples, expected)
        if found is None:
            found = self._learners[learner] = EpochProgress(epoch)
        found.begin(epoch, uses, now_s)
        self.fetch_order.plan_anew()
        self._release_all(learner, uses if uses is expected else None)
        failed = np.flatnonzero(self.units.state == FAILED)
        failed = failed[uses.heads(failed) < uses.n]
        self.units.try_again(failed)
        self._reopen(failed)

    def follow_next(
        self, learner: int, epoch: int, units: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int
    ) -> None:
        """The order of the epoch after the one under way, known early. Raises ValueError as `follow` does."""
        found = self._learners.get(learner)
        uses = made(len(self.units), units, at, samples, found.following if found else None)
        if found is None:
            found = self._learners[learner] = EpochProgress(epoch - 1)
        if found.following is not None and found.following is not uses:
            self._release_all(learner, found.uses)
            self.fetch_order.plan_anew()
        found.announce(uses)

    def advance(self, learner: int, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples of the epoch. Going back is ignored."""
        found = self._learners.get(learner)
        if found is None or found.uses is None or position <= found.position:
            return
        # The first report of an epoch that is further than a loader draws ahead: it is resumed, not begun.
        resumed = found.position == 0 and position > self._guard_samples
        if not self._uses_are_seen:
            given_out = found.uses.order[found.uses.done : found.uses.over_at(position)]
            self.units.release(learner, given_out)
        found.move(position, now_s)
        done = found.uses.over_at(position if resumed else position - self._guard_samples)
        self.units.release(learner, found.uses.pass_until(done, self.units.state))

    def over(self, learner: int) -> None:
        """The epoch has ended, at its end or before: nothing of it is pending."""
        found = self._learners.get(learner)
        if found is not None:
            found.end()
            self.fetch_order.plan_anew()
            self._release_all(learner, found.following)

    def leave(self, learner: int) -> None:
        """The learner has gone, with all that it had announced."""
        if self._learners.pop(learner, None) is not None:
            self._release_all(learner, None)
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
            if self.units.owner(unit) == learner:
                self.units.uncharge(unit)

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
        self._reopen(np.array([unit]))

    def evicted(self, units: Indices) -> None:
        """These are no longer here: they are given again if a use of them lies ahead. Units being fetched stay so."""
        self._reopen(self.units.evict(units))

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

    def _reopen(self, units: Indices) -> None:
        """These are absent again."""
        if len(units):
            self.fetch_order.plan_anew()
            for found in self._learners.values():
                for uses, _ in found.orders():
                    uses.reopen(units)

    def _release_all(self, learner: int, kept: Uses | None) -> None:
        """Nothing counts for this learner any more, except what was planned for `kept`."""
        charged = self.units.owned_by(learner)
        if kept is not None:
            charged = charged[kept.heads(charged) >= kept.cursor]
        self.units.release(learner, charged)
