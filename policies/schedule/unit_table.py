"""What is known of each unit: whether it is here, how many bytes it has, and for which learner it counts as ahead.

What was fetched for a learner and is not used counts against the budget, for that learner, until the first use after
that is over: what is in hand is no longer ahead, unless its use lasts (a group of B samples in one unit is one use).
Where uses are never seen, since the page cache serves them, it counts until its sample is given out: a guard of many
samples would leave nothing of a small budget. Two buffers of B samples each as budget make double buffering (Lee et
al.).

Owned and changed by `policies/schedule/schedule.py`, and by `fetch_order.py` when units are taken. Knows no orders and
no time. Memory: 13 bytes a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.uses import ABSENT, FAILED, HERE, TAKEN, Indices

_NOBODY = -1

STEP_UNITS = 1 << 15
"""What is looked at in one step where all are: a millisecond or two, where the processor has to fetch each of them."""


class Accounts:
    """For which learner each unit counts as ahead, and how many bytes that is together.

    A unit that is charged is marked with the learner's *account*. That nothing counts for a learner any more costs
    nothing, however much did: its account is closed. Learners are numbers. `sizes`: int64, bytes of each unit, changed
    by its owner.
    """

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self._sizes = sizes
        self._size_of = sizes.data
        self._account = np.full(len(sizes), _NOBODY, np.int32)
        self._account_of = self._account.data
        self._numbers = count()
        self._open: dict[int, int] = {}
        """The account of each learner for which anything was charged."""
        self._former: dict[int, int] = {}
        """Of each learner, while units go from that account to the new one."""
        self._learner_of: dict[int, int] = {}
        """Of each account that is not closed."""
        self._bytes: dict[int, int] = {}
        """By account."""

    @property
    def bytes(self) -> int:
        """What is charged, for all learners."""
        return sum(self._bytes.values())

    def bytes_of(self, learner: int) -> int:
        """The same for one learner."""
        return sum(self._bytes.get(of[learner], 0) for of in (self._open, self._former) if learner in of)

    def owner(self, unit: int) -> int | None:
        """The learner for which `unit` counts as ahead."""
        return self._learner_of.get(self._account_of[unit])

    def steps(self) -> Iterator[tuple[int, int]]:
        """All units, some at a time: first and end."""
        for first in range(0, len(self._account), STEP_UNITS):
            yield first, min(first + STEP_UNITS, len(self._account))

    def charge(self, unit: int, learner: int) -> None:
        """It counts for `learner` from now on."""
        self._account_of[unit] = account = self._account_for(learner)
        self._count(account, self._size_of[unit])

    def charge_all(self, units: NDArray[np.int32], learners: NDArray[np.intp]) -> None:
        """These, each given once, count for one learner each."""
        owners, which = np.unique(learners, return_inverse=True)
        accounts = [self._account_for(owner) for owner in owners.tolist()]
        self._account[units] = np.array(accounts, np.int32)[which]
        for account, size_bytes in zip(accounts, np.bincount(which, self._sizes[units]).tolist(), strict=True):
            self._count(account, int(size_bytes))

    def uncharge(self, unit: int) -> None:
        """This unit counts for nobody any more."""
        self._count(self._account_of[unit], -self._size_of[unit])
        self._account_of[unit] = _NOBODY

    def resized(self, unit: int, more_bytes: int) -> None:
        """It has so many more bytes than was known."""
        self._count(self._account_of[unit], more_bytes)

    def uncharge_all(self, units: Indices) -> None:
        """These count for nobody any more."""
        for account in np.unique(self._account[units]).tolist():
            self._release(account, units)

    def release(self, learner: int, units: Indices) -> None:
        """What of `units` counts for this learner counts no longer."""
        account = self._open.get(learner)
        if account is not None:
            self._release(account, units)

    def release_all(self, learner: int) -> None:
        """Nothing counts for this learner any more."""
        for accounts in (self._open, self._former):
            account = accounts.pop(learner, None)
            if account is not None:
                del self._learner_of[account]
                self._bytes.pop(account, None)

    def release_all_but(self, learner: int, kept: Callable[[Indices], NDArray[np.bool_]] | None) -> Iterator[None]:
        """The same, in steps, except for those units of which `kept` says so."""
        before = self._open.get(learner)
        if before is None or kept is None:
            self.release_all(learner)
            return
        self._former[learner] = self._open.pop(learner)
        after = self._account_for(learner)
        for first, end in self.steps():
            charged = np.flatnonzero(self._account[first:end] == before) + first
            if len(charged):
                stays = charged[kept(charged)]
                self._release(before, charged)
                self._account[stays] = after
                self._count(after, int(self._sizes[stays].sum()))
            yield
            if before not in self._learner_of:
                return  # the learner has gone
        del self._former[learner], self._learner_of[before]
        self._bytes.pop(before, None)

    def _account_for(self, learner: int) -> int:
        account = self._open.get(learner)
        if account is None:
            account = self._open[learner] = next(self._numbers)
            self._learner_of[account] = learner
        return account

    def _release(self, account: int, units: Indices) -> None:
        charged = np.unique(units[self._account[units] == account])
        if len(charged):
            self._count(account, -int(self._sizes[charged].sum()))
            self._account[charged] = _NOBODY

    def _count(self, account: int, more_bytes: int) -> None:
        if account in self._learner_of:
            self._bytes[account] = self._bytes.get(account, 0) + more_bytes


class UnitTable:
    """Units are 0 to units - 1; learners are numbers from 0 on."""

    def __init__(self, units: int, unit_bytes: NDArray[np.int64] | int) -> None:
        """`unit_bytes`: of each unit, or an estimate for all that `arrived` and `here` correct."""
        # Single elements by way of Python's own types, which is four times as fast; all at once by way of numpy.
        self._state_of = bytearray(units)
        self.state = np.frombuffer(self._state_of, np.uint8)
        """uint8 [units]: ABSENT, TAKEN, HERE or FAILED."""
        self.sizes = np.full(units, unit_bytes, np.int64)
        """int64 [units]: bytes, as far as they are known."""
        self._size_of = self.sizes.data
        self.ahead = Accounts(self.sizes)

    def __len__(self) -> int:
        return len(self.state)

    @property
    def ahead_bytes(self) -> int:
        """Bytes taken and not used, for all learners; of what is on its way, as far as sizes are known."""
        return self.ahead.bytes

    def ahead_bytes_of(self, learner: int) -> int:
        """The same for one learner."""
        return self.ahead.bytes_of(learner)

    def is_absent(self, unit: int) -> bool:
        """Whether `unit` is neither here nor on its way, and may be fetched."""
        return self._state_of[unit] == ABSENT

    def is_coming(self, unit: int) -> bool:
        """Whether `unit` is not here and may still come."""
        return self._state_of[unit] in {ABSENT, TAKEN}

    # --- What becomes of units

    def take(self, unit: int, learner: int) -> None:
        """One unit is fetched from now on, for `learner`."""
        self._state_of[unit] = TAKEN
        self.ahead.charge(unit, learner)

    def take_all(self, units: NDArray[np.int32], learners: NDArray[np.intp]) -> None:
        """These, each given once, are fetched from now on, for one learner each."""
        self.state[units] = TAKEN
        self.ahead.charge_all(units, learners)

    def arrived(self, unit: int, size_bytes: int) -> None:
        """A unit that was taken is here; it goes on counting for its learner."""
        self._state_of[unit] = HERE
        self.ahead.resized(unit, size_bytes - self._size_of[unit])
        self._size_of[unit] = size_bytes

    def here(self, unit: int, size_bytes: int) -> None:
        """The unit was here before, or came by itself: it counts for nobody."""
        self.ahead.uncharge(unit)
        self._state_of[unit] = HERE
        self._size_of[unit] = size_bytes

    def failed(self, unit: int) -> None:
        """It could not be fetched."""
        self.ahead.uncharge(unit)
        self._state_of[unit] = FAILED

    def refused(self, unit: int) -> None:
        """It was not fetched, but may be."""
        self.ahead.uncharge(unit)
        self._state_of[unit] = ABSENT

    def evict(self, units: Indices) -> Indices:
        """These are no longer here. Those of them, each once, that were; what is being fetched stays so."""
        gone: Indices = np.unique(units[self.state[units] == HERE])
        if len(gone):
            self.ahead.uncharge_all(gone)
            self.state[gone] = ABSENT
        return gone

    def try_again(self, units: Indices) -> None:
        """These could not be fetched, and may be asked for again."""
        self.state[units] = ABSENT
