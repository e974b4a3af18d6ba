"""The uses of one learner's epoch: which unit is needed when, which uses are over, which unit must be fetched next.

Belady's tables, made once by sorting: the next use of the same unit after each use, and the first pending use of each
unit. All steps over many uses are done by numpy, so an epoch of 1.28 million uses is made in some 50 ms and gone
through in some 20 ms altogether. Knows no time and no budget.

Memory: 4 bytes a unit and, for a use, 5 bytes plus 8 where positions are given and 4 where a unit comes twice.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

ABSENT, TAKEN, HERE, FAILED = range(4)
"""States of a unit: not here; given out to be fetched; here; could not be fetched in this epoch."""

_WINDOW = 4096
_MAX_WINDOW = 65_536
"""Uses looked at in one step: as few as fill some calls, more where nothing was found."""


class Uses:
    """Use i needs unit `order[i]` from sample position `at[i]` on, until use i + 1 begins: at least for one
    sample, the last one until the end of the epoch.

    `order`: int32 [n], units in [0, units). `at`: int64 [n], ascending, or None for at[i] == i. `samples`: length of
    the epoch, more than every position. `cursor`: the uses before it have been looked at for fetching. A use is over
    when the unit was seen being used or when `pass_until` says so; the first one of a unit that is not over is its
    *head*.
    """

    __slots__ = (
        *("_again", "_found", "_given", "_head", "_head_view", "_next", "_window"),
        *("at", "cursor", "done", "n", "order", "samples"),
    )

    def __init__(self, units: int, order: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int) -> None:
        n = len(order)
        self.n = n
        self.order = order
        self.at = at
        self.samples = samples
        self.done = 0
        """Uses before it are over; some after it may be, too."""
        self.cursor = 0
        self._window = _WINDOW
        # Uses of units that were absent when the cursor passed them, ascending; those from `_next` on are still wanted.
        self._found: NDArray[np.int64] = np.empty(0, np.int64)
        self._next = 0
        self._given = np.zeros(n, bool)
        numbers = np.arange(n, dtype=np.int32)
        self._head = np.full(units, n, np.int32)
        # Of several values for one place the last one stays: backwards, that is the first use.
        self._head[order[::-1]] = numbers[::-1]
        self._again: NDArray[np.int32] | None = None
        if np.count_nonzero(self._head < n) < n:
            # Sorted by unit, then by number; what follows in a row of equal units is the next use of it.
            keys = order.astype(np.int64) << 32
            keys |= numbers
            keys.sort()
            number = keys.astype(np.int32)
            keys >>= 32
            self._again = np.full(n, n, np.int32)
            same = np.flatnonzero(keys[1:] == keys[:-1])
            self._again[number[same]] = number[same + 1]
        self._head_view = self._head.data

    def equals(self, order: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int) -> bool:
        if samples != self.samples or (at is None) != (self.at is None):
            return False
        return np.array_equal(order, self.order) and (at is None or self.at is None or np.array_equal(at, self.at))

    # --- What is needed when

    def head(self, unit: int) -> int:
        """The first use of `unit` that is not over; n if there is none."""
        return self._head_view[unit]

    def heads(self, units: Indices) -> NDArray[np.int32]:
        return self._head[units]

    def after(self, uses: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each of `uses` the next use of the same unit; n if there is none."""
        after = np.full(len(uses), self.n, np.int32)
        if self._again is not None:
            known = np.flatnonzero(uses < self.n)
            after[known] = self._again[uses[known]]
        return after

    def position(self, use: int) -> int:
        return use if self.at is None else int(self.at[use])

    def positions(self, uses: Indices) -> Indices:
        return uses if self.at is None else self.at[uses]

    def over_at(self, position: int) -> int:
        """How many uses have ended when `position` samples have been used."""
        if position >= self.samples:
            return self.n
        if self.at is None:
            return min(max(position, 0), max(self.n - 1, 0))
        begun = int(np.searchsorted(self.at, position, "right"))
        return min(max(begun - 1, 0), int(np.searchsorted(self.at, position, "left")))

    # --- What is over

    def see(self, unit: int) -> None:
        """The head of `unit`, which must have one, is over."""
        head = self._head_view[unit]
        self._head_view[unit] = after = self.n if self._again is None else int(self._again[head])
        self._keep_known(after)

    def pass_until(self, done: int, state: NDArray[np.uint8]) -> NDArray[np.int32]:
        """All uses before `done` are over. The units, each once, of which a use ended by it."""
        if done <= self.done:
            return self.order[:0]
        units = self.order[self.done : done]
        pending = self._head[units] < done
        if self._again is None:
            units = units[pending]
            self._head[units] = self.n
        else:
            after = self._again[self.done : done]
            pending &= after >= done  # of several uses of a unit the last
            units, after = units[pending], after[pending]
            self._head[units] = after
            lost = after[state[units] == ABSENT]
            if len(lost):
                self._keep_known(int(lost.min()))
        self.done = done
        self.cursor = max(self.cursor, done)
        return units

    # --- What is to be fetched

    @property
    def may_lack(self) -> bool:
        """Whether `absent` may find any."""
        return self.cursor < self.n or self._next < len(self._found)

    def absent(self, limit: int, look_at: int, state: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
        """The next uses whose units are absent, in order, one for each unit, and how many uses were looked at.

        `limit`, or fewer if there are no more or if looking at `look_at` uses did not suffice (`cursor` < n). They come
        again until they are here, taken or over.
        """
        looked = 0
        size = 2 * limit
        while True:
            part = self._found[self._next : self._next + size]
            units = self.order[part]
            valid = (state[units] == ABSENT) & (self._head[units] == part)
            absent = part[valid]
            if len(absent) >= limit:
                break
            if self._next + size < len(self._found):
                size *= 4
                continue
            if self.cursor >= self.n or looked >= look_at:
                break
            until = min(self.n, self.cursor + min(self._window, max(look_at - looked, _WINDOW)))
            found = np.flatnonzero(state[self.order[self.cursor : until]] == ABSENT) + self.cursor
            self._window = _WINDOW if len(found) else min(2 * self._window, _MAX_WINDOW)
            looked += until - self.cursor
            self.cursor = until
            self._found, self._next = np.concatenate((absent, found)) if len(absent) else found, 0
        # What is no longer wanted at the beginning need not be looked at again.
        self._next += int(valid.argmax()) if len(absent) else len(part)
        return absent[:limit], looked

    def reopen(self, units: Indices) -> None:
        """These units are absent again."""
        heads = self._head[units]
        heads = heads[heads < self.cursor]
        if len(heads):
            self._keep_known(int(heads.min()))

    def _keep_known(self, use: int) -> None:
        """`use` may be the head of an absent unit and has been passed by the cursor: look again from there."""
        if use < self.cursor:
            self.cursor = use
            self._found = self._found[: np.searchsorted(self._found, use)]

    def samples_of(self, unit: int, start: int, end: int) -> int:
        """How many samples at positions in [start, end) need `unit`, as far as they have not too many uses."""
        first = self.over_at(max(start, 0))
        last = min(self.over_at(max(end, 0)), first + _MAX_WINDOW)
        mine = np.flatnonzero(self.order[first:last] == unit)
        if self.at is None or not len(mine):
            return len(mine)
        # A use lasts until the next begins: neighbours that need the same unit are one.
        begins = np.append(self.at[first : last + 1], end)
        return int(np.maximum(begins[mine + 1] - begins[mine], 1).sum())

    # --- What comes next

    def ready(self, start: int, limit: int, state: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The units, each once, of uses in [start, start + limit) that are here, not over, and were not told before."""
        window = slice(start, start + limit)
        units = self.order[window]
        tell = ~self._given[window] & (state[units] == HERE)
        uses = np.flatnonzero(tell)
        if not len(uses):
            return units[:0]
        uses = uses[self._head[units[uses]] <= uses + start]
        self._given[start + uses] = True
        units = units[uses]
        if self._again is not None:
            units = units[np.sort(np.unique(units, return_index=True)[1])]
        return units


def made(
    units: int, order: NDArray[np.int32], at: NDArray[np.int64] | None, samples: int, expected: Uses | None
) -> Uses:
    """The uses of an order; `expected` itself if they are the same. Raises ValueError for an order that cannot be."""
    order = np.ascontiguousarray(order, np.int32)
    if len(order) and not (order.min() >= 0 and order.max() < units):
        raise ValueError(f"an order has units outside 0..{units - 1}")
    if at is None and len(order) > samples:
        raise ValueError(f"an order of {len(order)} uses for {samples} samples")
    if at is not None:
        at = np.ascontiguousarray(at, np.int64)
        if len(at) != len(order):
            raise ValueError(f"{len(order)} units at {len(at)} positions")
        if len(at) and not (at[0] >= 0 and at[-1] < samples and bool(np.all(at[1:] >= at[:-1]))):
            raise ValueError(f"positions of an order that do not ascend within 0..{samples - 1}")
    order, at = _merged(order, at)
    if expected is not None and expected.equals(order, at, samples):
        return expected
    return Uses(units, order, at, samples)


def _merged(
    units: NDArray[np.int32], at: NDArray[np.int64] | None
) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
    """Uses of one unit that follow each other directly become one, at the position of the first."""
    first = np.empty(len(units), bool)
    first[:1] = True
    np.not_equal(units[1:], units[:-1], out=first[1:])
    if first.all():
        return units, at
    return units[first], np.flatnonzero(first) if at is None else at[first]
