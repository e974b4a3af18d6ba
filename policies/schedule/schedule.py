"""The schedule of a node: from the orders its learners will read in, what to fetch next and what is needed again when.

A *unit* is a chunk of a layout, or a whole small file. `mountd` owns a Schedule for each layout, tells it what the
learners say (`follow`, `advance`, `over`) and what became of units (`arrived`, `here`, `failed`, `refused`,
`evicted`, `seen`), and asks for what to fetch (`take`), what to make ready just before its use (`near`), and what
eviction needs to know (`next_use_s`). Pure; never fetches, never evicts, never decides whether the cache has room.

Time. A use at position p of a learner whose sampler has given out `position` samples is expected in
(p - position) / rate seconds. A learner that is slow because its data does not come must not be given even less, so its
rate counts as a quarter of the fastest one's at least; who has shown no rate counts as the fastest.

Over. Loaders draw ahead of what they read. So a use whose sample was given out is due *now* until its unit is seen
being used, the sampler is `guard_samples` past it, or the epoch is over.

Budget. What was taken and is not used counts against the budget, for the learner it was taken for, until the first use
after that is over: what is in hand is no longer ahead, unless its use lasts (a group of B samples in one unit is one
use). Where uses are never seen, since the page cache serves them, it counts until its sample is given out: a guard of
many samples would leave nothing of a small budget. Two buffers of B samples each as budget make double buffering (Lee
et al., paper A). Each learner that wants something has an equal share of what the others leave.

Stopped. A learner has stopped when it has not moved for 5 s though what it needs next is here: it validates, saves, or
hangs. It waits for nothing from us, so its uses come after all others', and what it leaves unused no longer counts
against the others.

Costs: `follow` of 1.28 million uses some 50 ms, or nothing when they were announced by `follow_next`; `take` well below
2 ms; all else microseconds. Memory: 13 bytes a unit, and for each order of each learner what
`policies/schedule/uses.py` says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.ma  # used by np.unique, which imports it at its first call: the first hint would wait 20 to 40 ms
from numpy.typing import NDArray

from policies.prefetch.sweep import Sweep
from policies.schedule.epoch_progress import GUARD_SAMPLES, EpochProgress, Standing
from policies.schedule.merging import Merged, Wanted, merge
from policies.schedule.uses import ABSENT, FAILED, HERE, TAKEN, Indices, Uses, made

__all__ = ["GUARD_SAMPLES", "Schedule", "Standing"]

_SEEN_AHEAD_SAMPLES = 8192
"""A unit that is read so long before its turn is read by somebody else (a copy, a checksum); reports may be late."""
_AFTER_ALL_S = 1e7
"""What is added to the times of a stopped learner: longer than any epoch, and finite, since the uses are known."""
_SLOWEST_PART = 4
_UNKNOWN_RATE = 100.0
"""Samples a second as long as nobody's rate is known: only ratios matter."""
_LOOK_AT_USES = 1 << 18
"""Uses that one `take` looks at, over all learners: about a millisecond."""
_READ_BEHIND_SAMPLES = 512
_READ_AHEAD_SAMPLES = 256
"""What is read about now: a loader has some batches of it in its queue, and draws the next."""
_NOBODY = -1


class Schedule:
    """All learners of one layout. Units are 0 to units - 1. Times are seconds of one clock that never goes back."""

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
        self._units = units
        self._sweep = sweep
        self._sweep_units = sweep_units
        self._guard_samples = guard_samples
        self._uses_are_seen = uses_are_seen
        self._learners: dict[int, EpochProgress] = {}
        self._numbers = 0
        self._owners: dict[int, EpochProgress] = {}
        # Single elements by way of Python's own types, which is four times as fast; all at once by way of numpy.
        self._state_of = bytearray(units)
        self._state = np.frombuffer(self._state_of, np.uint8)
        self._bytes = np.full(units, unit_bytes, np.int64)
        self._bytes_of = self._bytes.data
        self._owner = np.full(units, _NOBODY, np.int32)
        self._owner_of = self._owner.data
        self.searching = False
        """The last `take` was short since it had looked at enough, not since there is no more: ask again."""

    # --- Learners

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
        uses = made(self._units, units, at, samples, expected)
        if found is None:
            found = self._join(learner)
        found.begin(epoch, uses, now_s)
        self._plan_anew()
        self._release_all(found, uses if uses is expected else None)
        failed = np.flatnonzero(self._state == FAILED)
        failed = failed[uses.heads(failed) < uses.n]
        self._state[failed] = ABSENT
        self._reopen(failed)

    def follow_next(
        self, learner: int, epoch: int, units: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int
    ) -> None:
        """The order of the epoch after the one under way, known early. Raises ValueError as `follow` does."""
        found = self._learners.get(learner)
        uses = made(self._units, units, at, samples, found.following if found else None)
        if found is None:
            found = self._join(learner)
            found.epoch = epoch - 1
        if found.following is not None and found.following is not uses:
            self._release_all(found, found.uses)
            self._plan_anew()
        found.following = uses

    def advance(self, learner: int, position: int, now_s: float) -> None:
        """The sampler has given out `position` samples of the epoch. Going back is ignored."""
        found = self._learners.get(learner)
        if found is None or found.uses is None or position <= found.position:
            return
        # The first word in an epoch that is further than a loader draws ahead: it is resumed, not begun.
        resumed = found.position == 0 and position > self._guard_samples
        if not self._uses_are_seen:
            given_out = found.uses.order[found.uses.done : found.uses.over_at(position)]
            self._release(found, np.unique(given_out[self._owner[given_out] == found.number]))
        found.move(position, now_s)
        done = found.uses.over_at(position if resumed else position - self._guard_samples)
        self._release(found, found.uses.pass_until(done, self._state))

    def seen(self, unit: int, now_s: float) -> None:
        """Somebody uses this unit: the use of it that was due first, of all learners, is over."""
        nearest: EpochProgress | None = None
        nearest_s = 0.0
        for found in self._learners.values():
            uses = found.uses
            if uses is None or (head := uses.head(unit)) >= uses.n:
                continue
            distance = uses.position(head) - found.position
            if distance < _SEEN_AHEAD_SAMPLES:
                due_s = distance / (found.pace.rate or _UNKNOWN_RATE)
                if nearest is None or due_s < nearest_s:
                    nearest, nearest_s = found, due_s
        if nearest is not None and nearest.uses is not None:
            nearest.uses.see(unit)
            nearest.moved_s = now_s
            if self._owner_of[unit] == nearest.number:
                self._uncharge(unit)

    def over(self, learner: int) -> None:
        """The epoch has ended, at its end or before: nothing of it is pending."""
        found = self._learners.get(learner)
        if found is not None:
            found.uses, found.position = None, 0
            self._plan_anew()
            self._release_all(found, found.following)

    def leave(self, learner: int) -> None:
        """The learner has gone, with all that it had announced."""
        found = self._learners.pop(learner, None)
        if found is not None:
            self._release_all(found, None)
            self._plan_anew()
            del self._owners[found.number]

    # --- Fetching

    def take(self, limit: int, budget_bytes: int, now_s: float) -> list[int]:
        """At most `limit` units to fetch now, soonest use first. Each is given once and then needs one of `arrived`,
        `here`, `failed` and `refused`.

        What is ahead stays within `budget_bytes`, except that a learner with nothing ahead gets a unit in any case, and
        that who comes later gets its share even if those before took all.
        """
        if limit <= 0 or budget_bytes <= 0:
            return []
        self.searching = False
        going: list[EpochProgress] = []
        stopped: list[EpochProgress] = []
        for found in self._learners.values():
            (stopped if found.is_stopped(self._state, now_s) else going).append(found)
        take = self._take if self._sweep is None else self._sweep_on
        taken = take(going, limit, budget_bytes)
        # These may use what the others leave, and nothing that the others would miss.
        left_bytes = budget_bytes - sum(found.ahead_bytes for found in going)
        if len(taken) < limit and left_bytes > 0:
            taken += take(stopped, limit - len(taken), left_bytes)
        return taken

    def arrived(self, unit: int, size_bytes: int) -> None:
        """A unit that was taken is here now; it counts against the budget until it is used."""
        self._state_of[unit] = HERE
        number = self._owner_of[unit]
        if number != _NOBODY:
            self._owners[number].ahead_bytes += size_bytes - self._bytes_of[unit]
        self._bytes_of[unit] = size_bytes

    def here(self, unit: int, size_bytes: int) -> None:
        """The unit was here before, or came by itself: it costs no budget."""
        self._uncharge(unit)
        self._state_of[unit] = HERE
        self._bytes_of[unit] = size_bytes

    def failed(self, unit: int) -> None:
        """It could not be fetched: not asked for again before somebody's next epoch that needs it."""
        self._uncharge(unit)
        self._state_of[unit] = FAILED

    def refused(self, unit: int) -> None:
        """It was not fetched now: it will be given again."""
        self._uncharge(unit)
        self._state_of[unit] = ABSENT
        self._reopen(np.array([unit]))

    def evicted(self, units: Indices) -> None:
        """These are no longer here: they are given again if a use of them lies ahead. Units being fetched stay so."""
        units = np.unique(units[self._state[units] == HERE])
        if len(units):
            for number in np.unique(self._owner[units]).tolist():
                if number != _NOBODY:
                    self._release(self._owners[number], units)
            self._state[units] = ABSENT
            self._reopen(units)

    def near(self, learner: int, limit: int, now_s: float) -> list[int]:  # noqa: ARG002 - as all calls that ask
        """Which units that are here to make ready: those of the next `limit` uses from the learner's position on.

        In order, each once for each use; a unit that comes later than its use got near is given when it is here.
        """
        found = self._learners.get(learner)
        if found is None or found.uses is None:
            return []
        units: list[int] = found.uses.ready(found.uses.over_at(found.position), limit, self._state).tolist()
        return units

    def soon(self, unit: int) -> int | None:
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

    @property
    def is_sweeping(self) -> bool:
        """Many units come in the order of their numbers, and nobody waits for a certain one of them."""
        return self._sweep is not None and self._sweep.is_long

    def comes(self, unit: int) -> bool:
        """Whether a unit is not here and comes in its turn of a sweep, which nobody gains by overtaking."""
        return self._sweep is not None and self._state_of[unit] in {ABSENT, TAKEN} and self._sweep.holds(unit)

    # --- Eviction

    def next_use_s(self, units: Indices | None, now_s: float) -> NDArray[np.float64]:
        """When each of `units` (all if None) is expected to be used next; float64, inf where no use is known.

        The only one that may be asked in another thread than the rest; it may then see half of a change.
        """
        asked = np.arange(self._units) if units is None else units
        soonest = np.full(len(asked), np.inf)
        rates = self._rates()
        for found in list(self._learners.values()):
            after_s = _AFTER_ALL_S if found.is_stopped(self._state, now_s) else 0.0
            for uses, position in found.orders():
                heads = uses.heads(asked)
                known = np.flatnonzero(heads < uses.n)
                ahead = np.maximum(uses.positions(heads[known]) - position, 0)
                soonest[known] = np.minimum(
                    soonest[known], now_s + after_s + ahead / rates.get(found.number, _UNKNOWN_RATE)
                )
        return soonest

    # --- Accounts

    def second_use_s(self, units: Indices, now_s: float) -> NDArray[np.float64]:
        """When each of `units` is expected to be used after its next use; float64, inf where that is not known."""
        soonest = np.full(len(units), np.inf)
        second = np.full(len(units), np.inf)
        rates = self._rates()
        for found in self._learners.values():
            after_s = _AFTER_ALL_S if found.is_stopped(self._state, now_s) else 0.0
            for uses, position in found.orders():
                heads = uses.heads(units)
                for which in (heads, uses.after(heads)):
                    known = np.flatnonzero(which < uses.n)
                    ahead = np.maximum(uses.positions(which[known]) - position, 0)
                    use_s = now_s + after_s + ahead / rates[found.number]
                    second[known] = np.minimum(second[known], np.maximum(soonest[known], use_s))
                    soonest[known] = np.minimum(soonest[known], use_s)
        return second

    def bytes_of(self, units: Indices) -> NDArray[np.int64]:
        """Bytes of each of `units`, as far as they are known."""
        return self._bytes[units]

    @property
    def ahead_bytes(self) -> int:
        """Bytes taken and not used, for all learners; of what is on its way, as far as sizes are known."""
        return sum(found.ahead_bytes for found in self._learners.values())

    def statistics(self, learner: int, now_s: float = 0.0) -> Standing | None:
        """Where the learner stands; None for one that is not known. `now_s` says whether it has stopped."""
        found = self._learners.get(learner)
        return found.standing(self._state, now_s) if found else None

    # --- Within

    def _join(self, learner: int) -> EpochProgress:
        self._numbers += 1
        self._learners[learner] = self._owners[self._numbers] = EpochProgress(self._numbers)
        return self._learners[learner]

    def _rates(self) -> dict[int, float]:
        """Samples a second to reckon with, by number of the learner."""
        rates = {found.number: found.pace.rate for found in list(self._learners.values())}
        fastest = max((rate for rate in rates.values() if rate is not None), default=_UNKNOWN_RATE)
        return {
            number: max(fastest if rate is None else rate, fastest / _SLOWEST_PART) for number, rate in rates.items()
        }

    def _take(self, learners: list[EpochProgress], limit: int, budget_bytes: int) -> list[int]:
        """The learners' next units, merged by time, within the budget; they are taken and charged."""
        taken: list[int] = []
        rates = self._rates()
        look_at = {found.number: _LOOK_AT_USES // len(learners) for found in learners}
        while learners and len(taken) < limit:
            merged = self._merged(learners, limit - len(taken), budget_bytes, rates, look_at)
            if merged is None or not len(merged.units):
                break
            self._state[merged.units] = TAKEN
            self._owner[merged.units] = merged.owners
            owners, which = np.unique(merged.owners, return_inverse=True)
            for number, size_bytes in zip(owners, np.bincount(which, self._bytes[merged.units]).tolist(), strict=True):
                self._owners[int(number)].ahead_bytes += int(size_bytes)
            taken += merged.units.tolist()
        return taken

    def _merged(
        self,
        learners: list[EpochProgress],
        limit: int,
        budget_bytes: int,
        rates: dict[int, float],
        look_at: dict[int, int],
    ) -> Merged | None:
        """The learners' next units, merged by time, within the budget; None if nobody wants any. Changes nothing.

        Owners are numbers of learners. They may be fewer than `limit` though there are more.
        """
        # Each learner's part and some more: where one comes more often than that, there is another round.
        each = min(limit, 8 + 5 * limit // (4 * len(learners)))
        asked = [(found, self._wanted(found, each, rates[found.number], look_at)) for found in learners]
        wanting = [(found, wanted) for found, wanted in asked if wanted is not None]
        if not wanting:
            return None
        part_bytes = budget_bytes // len(learners)
        idle_bytes = sum(min(found.ahead_bytes, part_bytes) for found, wanted in asked if wanted is None)
        merged = merge(
            [wanted for _, wanted in wanting],
            self._bytes,
            limit=limit,
            budget_bytes=budget_bytes,
            idle_bytes=idle_bytes,
        )
        numbers = np.array([found.number for found, _ in wanting], np.intp)
        return replace(merged, owners=numbers[merged.owners])

    def _sweep_on(self, learners: list[EpochProgress], limit: int, budget_bytes: int) -> list[int]:
        """As `_take`, in the order of the sweep, of which a new one is planned when one has ended."""
        assert self._sweep is not None
        taken: list[int] = []
        rates: dict[int, float] | None = None
        while learners and len(taken) < limit:
            coming = self._sweep.upcoming()
            if coming is None:
                if rates is not None:
                    break  # what was planned just now is not to be had
                rates = self._rates()
                look_at = {found.number: _LOOK_AT_USES // len(learners) for found in learners}
                merged = self._merged(learners, max(limit, self._sweep_units), budget_bytes, rates, look_at)
                if merged is None or not len(merged.units):
                    break
                together = sum(rates[found.number] for found in learners)
                samples = (merged.due_s - merged.due_s[0]) * together + len(learners)
                self._sweep.plan(merged.units, merged.owners, samples)
                continue
            owner = self._owners.get(coming.owner)
            if owner is not None and self._is_wanted(owner, coming.unit):
                size_bytes = self._bytes_of[coming.unit]
                if owner.ahead_bytes and self.ahead_bytes + size_bytes > budget_bytes:
                    break
                self._state_of[coming.unit] = TAKEN
                self._owner_of[coming.unit] = owner.number
                owner.ahead_bytes += size_bytes
                taken.append(coming.unit)
            self._sweep.go_on()
        return taken

    def _is_wanted(self, learner: EpochProgress, unit: int) -> bool:
        """A unit that was planned for a learner is neither here nor over yet."""
        return self._state_of[unit] == ABSENT and any(uses.head(unit) < uses.n for uses, _ in learner.orders())

    def _wanted(self, found: EpochProgress, limit: int, rate: float, look_at: dict[int, int]) -> Wanted | None:
        """The next units that a learner needs and that are absent; None if there are none."""
        units: list[NDArray[np.int32]] = []
        due_s: list[NDArray[np.float64]] = []
        known = 0
        for uses, position in found.orders():
            absent, looked = uses.absent(limit - known, look_at[found.number], self._state)
            look_at[found.number] -= looked
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
        if len(units) == 1:
            return Wanted(units[0], due_s[0], known >= limit, found.ahead_bytes)
        # What this epoch needs may be needed in the next one, too.
        both = np.concatenate(units)
        once = np.sort(np.unique(both, return_index=True)[1])
        return Wanted(both[once], np.concatenate(due_s)[once], known >= limit, found.ahead_bytes)

    def _reopen(self, units: Indices) -> None:
        if len(units):
            self._plan_anew()
            for found in self._learners.values():
                for uses, _ in found.orders():
                    uses.reopen(units)

    def _plan_anew(self) -> None:
        if self._sweep is not None:
            self._sweep.forget()

    def _uncharge(self, unit: int) -> None:
        number = self._owner_of[unit]
        if number != _NOBODY:
            self._owners[number].ahead_bytes -= self._bytes_of[unit]
            self._owner_of[unit] = _NOBODY

    def _release(self, found: EpochProgress, units: Indices) -> None:
        """What `units`, each given once, count for this learner counts no longer."""
        charged = units[self._owner[units] == found.number]
        if len(charged):
            found.ahead_bytes -= int(self._bytes[charged].sum())
            self._owner[charged] = _NOBODY

    def _release_all(self, found: EpochProgress, kept: Uses | None) -> None:
        """Nothing counts for this learner any more, except what was planned for `kept`."""
        charged = np.flatnonzero(self._owner == found.number)
        if kept is not None:
            charged = charged[kept.heads(charged) >= kept.cursor]
        self._release(found, charged)
