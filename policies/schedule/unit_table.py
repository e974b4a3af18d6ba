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

import numpy as np
from numpy.typing import NDArray

from hfs.policies.schedule.accounts import Accounts
from hfs.policies.schedule.uses import ABSENT, FAILED, HERE, TAKEN, Indices


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
