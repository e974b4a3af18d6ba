"""One directory of small files that is being fetched ahead: its names, which of them to take next, and its trial.

Part of `policies.prefetch.siblings`, which decides for all directories together and whose story says what orders and
trials are. Pure; knows nothing of budgets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from hfs.policies.prefetch.statahead import NameList

_TRIAL_FILES = 64
_TRIALS = 2
"""Failed trials in a row that end it: a reader in order that once leaps ahead leaves everything fetched behind it."""

CHARGE_BYTES = 4096
"""What a file costs the budget at least, so that a budget of bytes bounds the number of files too."""

_IN_ORDER_PART = 16
"""In order: opens move by less than a 16th of the directory on average. Random order moves by a third, and its average
over 8 opens is below a 16th in 1 of 100 000 cases; 8 workers with batches of 32 are in order from 1400 files on."""

_STEP_MEMORY = 8
_OVERTAKEN_FILES = 1024
"""How far loader workers that share one order may be apart: 8 workers with batches of 128."""

_AHEAD_OF_USED = 4
"""Bytes that may be ahead in a directory for each that was opened there. Where the source gives what is fetched ahead
twice to four times as fast as readers take it, more would not come sooner."""

_UNTOUCHED, _TAKEN, _OPENED = 0, 1, 2


class SiblingDirectory:
    """One directory that is being fetched ahead.

    Files are numbered in the order in which they are read. `flags`: a byte a file. `ahead`: name -> (charged bytes,
    since, index) of what was handed out and is unused, oldest first; `ahead_bytes`: the sum. `charged_bytes`: what of
    that the budget of all directories has been charged.
    """

    __slots__ = (
        *("_by_name", "_listing", "_order", "ahead", "ahead_bytes", "all_taken", "charged_bytes", "cursor", "expected"),
        *("failed", "flags", "forward", "hits", "last", "last_s", "left", "mean_bytes", "off", "opens", "overtaken"),
        *("step", "used_bytes"),
    )

    def __init__(
        self, listing: NameList, order: Sequence[int], recent: dict[bytes, tuple[float, int]], now_s: float
    ) -> None:
        """`order`: the places in `listing` in the order of the names. Both belong to it from now on. One step."""
        self._listing = listing
        self._order = order
        self._by_name = True
        opened = [self._rank(name) for name in recent]
        in_listing = [
            order[rank] if rank < len(order) and listing[order[rank]] == name else 0
            for rank, name in zip(opened, recent, strict=True)
        ]
        # By name, unless the opens so far speak for the order of the listing: unsorted programs take that one.
        if 2 * _mean_step(in_listing) < _mean_step(opened):
            self._by_name, opened = False, in_listing
        self.flags = bytearray(len(listing))
        found = {index for name in recent if (index := self.find(name)) is not None}
        for index in found:
            self.flags[index] = _OPENED
        self.left = len(listing) - len(found)
        self.last = opened[-1] if opened else 0
        self.cursor = self.last + 1
        self.step = _mean_step(opened)
        self.mean_bytes = sum(size for _, size in recent.values()) / max(1, len(recent))
        self.last_s = now_s
        self.ahead: dict[bytes, tuple[int, float, int]] = {}
        self.ahead_bytes = 0
        self.charged_bytes = 0
        self.used_bytes = sum(size for _, size in recent.values())
        self.opens = 0
        self.hits = 0
        self.expected = 0.0
        self.overtaken = 0
        self.forward = self.in_order
        self.failed = 0
        self.off = False
        self.all_taken = False

    @property
    def allowance_bytes(self) -> int:
        """What may be ahead here without any charge to the budget."""
        return 0 if self.off else _AHEAD_OF_USED * self.used_bytes

    @property
    def in_order(self) -> bool:
        return self.step * _IN_ORDER_PART < len(self)

    def __len__(self) -> int:
        return len(self.flags)

    def name(self, index: int) -> bytes:
        return self._listing[self._order[index] if self._by_name else index]

    def find(self, name: bytes) -> int | None:
        rank = self._rank(name)
        if rank == len(self._order) or self._listing[self._order[rank]] != name:
            return None
        return rank if self._by_name else self._order[rank]

    def _rank(self, name: bytes) -> int:
        return bisect_left(self._order, name, key=self._listing.__getitem__)

    def end(self) -> None:
        """No more is fetched ahead: the names go at once; what is ahead stays charged until it is used or old."""
        self.off = True
        self._listing, self._order, self.flags = NameList(), [], bytearray()

    @property
    def charge_bytes(self) -> int:
        """What a file is charged whose size is not known."""
        return max(CHARGE_BYTES, int(self.mean_bytes))

    @property
    def is_touched(self) -> bool:
        """Every file was handed out or opened."""
        return _UNTOUCHED not in self.flags

    @property
    def exhausted(self) -> bool:
        """There is none to hand out, unless the order changes."""
        return self.off or (self.cursor >= len(self) and (self.in_order or self.all_taken))

    def take(self) -> int:
        """The next file to hand out; -1 if there is none."""
        index = self.flags.find(_UNTOUCHED, self.cursor)
        if index < 0 and not self.in_order:
            index = self.flags.find(_UNTOUCHED)
            self.all_taken = index < 0
        if index < 0:
            self.cursor = len(self)
        else:
            self.flags[index] = _TAKEN
            self.cursor = index + 1
        return index

    def note(self, index: int, size: int, *, hit: bool, staged: bool) -> bool:
        """File `index` was opened. `hit`: it had been handed out, and is no longer in `ahead`. False ends the trial."""
        if self.flags[index] == _OPENED:
            return True
        self.flags[index] = _OPENED
        self.used_bytes += size
        self.step += (abs(index - self.last) - self.step) / _STEP_MEMORY
        self.mean_bytes += (size - self.mean_bytes) / _STEP_MEMORY
        self.last = index
        self.expected += (len(self.ahead) + hit) / self.left
        self.left -= 1
        self.hits += hit
        if not hit and not staged and self.in_order:
            self.cursor = index + 1
        self.opens += 1
        return self.opens % _TRIAL_FILES != 0 or self._passes()

    def _passes(self) -> bool:
        overtaken = 0
        due = self.expected
        if self.in_order:
            overtaken = sum(index < self.last - _OVERTAKEN_FILES for _, _, index in self.ahead.values())
            due = self.hits + max(0, overtaken - self.overtaken)
        if self.forward != self.in_order:
            # What was handed out in the other order says nothing about this one.
            self.forward = self.in_order
        elif due < _TRIAL_FILES:
            return True
        else:
            self.failed = self.failed + 1 if 2 * self.hits < due else 0
        self.hits, self.expected, self.overtaken = 0, 0.0, overtaken
        return self.failed < _TRIALS


def _mean_step(positions: Sequence[int]) -> float:
    """The mean distance between successive positions; 0 for fewer than two."""
    steps = [abs(after - before) for before, after in pairwise(positions)]
    return sum(steps) / max(1, len(steps))
