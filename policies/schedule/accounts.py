"""For which learner each unit counts as ahead, and how many bytes that is together.

A unit that is charged is marked with the learner's *account*. That nothing counts for a learner any more costs nothing,
however much did: its account is closed. Owned by `unit_table.py`. Memory: 4 bytes a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.uses import Indices

_NOBODY = -1

STEP_UNITS = 1 << 15
"""What is looked at in one step where all are: a millisecond or two, where the processor has to fetch each of them."""


class Accounts:
    """Learners are numbers. `sizes`: int64, bytes of each unit, changed by its owner."""

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
