"""Siblings: which small files of a directory to fetch before they are opened.

Data sets of many small files are read to the end, in some order. So after 8 distinct small files of a directory were
opened within 10 s, the others are fetched ahead, with what capacity of the source demand leaves over. Two things bound
what a wrong guess costs: one budget of bytes fetched ahead and not yet used, for all directories together, and a trial
of each directory, by which fetching ahead ends where it is not used.

`prefetch` owns one `Siblings`, tells it every open, and asks it for work when a worker is idle:

    if siblings.opened(directory, name, size, now_s, staged=False):     # True: have the directory listed, then
        siblings.listed(directory, names, now_s)                        # [] if it could not be
    for directory, name in siblings.next(limit, now_s):                 # to fetch; each is given once
        if siblings.admit(directory, name, size):                       # the size is known now: is there budget for it?
            ...fetch it; siblings.drop(directory, name) if that failed
    siblings.drop(directory, name)                                      # instead of admit: staged already, or gone

Order. Where opens go forward through the directory, in the order of the listing or by name, the next ones follow the
last open that was not foreseen; anywhere else all unopened files are equally likely, and any will do.

Trial. In order: of 64 files that were used or overtaken (the readers are 1024 files past them), half must have been
used. In random order a file that is not used yet proves nothing. But each open hits a staged-ahead file with
probability (unused ahead) / (not yet opened), if the guess that the directory is read to the end is right. These sum
to the hits to expect, and when they reach 64, half as many must have happened; by chance alone that fails four
standard deviations away. Two failed trials in a row end it. A job that reads a random 90 % of a directory passes: its
hits are as likely at first, and what it never opens becomes only a small part of what is ahead.

Aging. What was not used for 600 s, or lies in a directory without an open for 60 s, goes back to the budget: it stays
staged, it only no longer counts. In random order the last eighth of the budget is left to readers that go in order.

Directories are numbers of the caller's choosing. State is small: 8 names for a directory that is watched, about 60
bytes a name for one that is read, nothing for one that is complete, staged in an earlier epoch or idle for 600 s. Pure;
never lists, never fetches, never decides whether the cache has room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, pairwise

__all__ = ["Siblings"]

_TRIGGER_OPENS = 8
_TRIGGER_S = 10.0
_TRIAL_FILES = 64
_TRIALS = 2
"""Failed trials in a row that end it: a reader in order that once leaps ahead leaves everything fetched behind it."""

_EXPIRE_S = 600.0
_IDLE_S = 60.0
_SWEEP_S = 10.0
"""How often old files are looked for: a walk over all active directories, so not at every call."""

_CHARGE_BYTES = 4096
"""What a file costs the budget at least, so that a budget of bytes bounds the number of files too."""

_IN_ORDER_PART = 16
"""In order: opens move by less than a 16th of the directory on average. Random order moves by a third, and its average
over 8 opens is below a 16th in 1 of 100 000 cases; 8 workers with batches of 32 are in order from 1400 files on."""
_STEP_MEMORY = 8
_OVERTAKEN_FILES = 1024
"""How far loader workers that share one order may be apart: 8 workers with batches of 128."""

_RANDOM_SHARE = (7, 8)

_MAX_WATCHED = 4096
_MAX_OFF = 65_536
_MAX_NAMES = 300_000
"""Names held in all directories together: 20 MB. A larger directory is held if it is the only one."""
_MAX_LOOKED_AT = 64
"""Directories that one call of `next` looks at, most recently opened first."""

_UNTOUCHED, _TAKEN, _OPENED = 0, 1, 2


class _Directory:
    """One directory that is being fetched ahead.

    `names`: in the order in which it is read. `positions`: name -> index; None where `names` is sorted. `flags`: a byte
    a name. `ahead`: name -> (charged bytes, since, index) of what was handed out and is unused, oldest first.
    """

    __slots__ = (
        *("ahead", "cursor", "expected", "failed", "flags", "forward", "hits", "last", "last_s", "left", "mean_bytes"),
        *("names", "off", "opens", "overtaken", "positions", "step"),
    )

    def __init__(self, names: Sequence[bytes], recent: dict[bytes, tuple[float, int]], now_s: float) -> None:
        listing = list(names)
        self.names = sorted(listing)
        self.positions: dict[bytes, int] | None = None
        opened = [bisect_left(self.names, name) for name in recent]
        if listing != self.names:
            where = {name: i for i, name in enumerate(listing) if name in recent}
            in_listing = [where.get(name, 0) for name in recent]
            # Sorted, unless the opens so far speak for the order of the listing: unsorted programs take that one.
            if 2 * _mean_step(in_listing) < _mean_step(opened):
                self.names, opened = listing, in_listing
                self.positions = {name: i for i, name in enumerate(listing)}
        self.flags = bytearray(len(listing))
        for name in recent:
            index = self.find(name)
            if index is not None:
                self.flags[index] = _OPENED
        self.left = self.flags.count(_UNTOUCHED)
        self.last = opened[-1] if opened else 0
        self.cursor = self.last + 1
        self.step = _mean_step(opened)
        self.mean_bytes = sum(size for _, size in recent.values()) / max(1, len(recent))
        self.last_s = now_s
        self.ahead: dict[bytes, tuple[int, float, int]] = {}
        self.opens = 0
        self.hits = 0
        self.expected = 0.0
        self.overtaken = 0
        self.forward = self.in_order
        self.failed = 0
        self.off = False

    @property
    def in_order(self) -> bool:
        return self.step * _IN_ORDER_PART < len(self.names)

    def find(self, name: bytes) -> int | None:
        if self.positions is not None:
            return self.positions.get(name)
        index = bisect_left(self.names, name)
        return index if index < len(self.names) and self.names[index] == name else None

    def take(self) -> int:
        """The next file to hand out; -1 if there is none."""
        index = self.flags.find(_UNTOUCHED, self.cursor)
        if index < 0 and not self.in_order:
            index = self.flags.find(_UNTOUCHED)
        if index >= 0:
            self.flags[index] = _TAKEN
            self.cursor = index + 1
        return index

    def note(self, index: int, size: int, *, hit: bool, staged: bool) -> bool:
        """File `index` was opened. `hit`: it had been handed out, and is no longer in `ahead`. False ends the trial."""
        if self.flags[index] == _OPENED:
            return True
        self.flags[index] = _OPENED
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


class Siblings:
    """The directories being read, and the budget they share. Times are seconds of one clock that never goes back."""

    def __init__(self, *, small_file_bytes: int, budget_bytes: int) -> None:
        self._small_file_bytes = small_file_bytes
        self._budget_bytes = budget_bytes
        self._watched: OrderedDict[int, dict[bytes, tuple[float, int]]] = OrderedDict()
        self._asked: dict[int, float] = {}
        self._active: OrderedDict[int, _Directory] = OrderedDict()  # least recently opened first
        self._off: dict[int, None] = {}
        self._names_held = 0
        self._sweep_at_s = 0.0
        self.ahead_bytes = 0
        """Bytes handed out and not used, as far as sizes are known; never more than the budget."""

    @property
    def ahead_files(self) -> int:
        """Files handed out and not used."""
        return sum(len(found.ahead) for found in self._active.values())

    def opened(self, directory: int, name: bytes, size: int, now_s: float, *, staged: bool) -> bool:
        """A regular file was opened. `staged`: all its bytes were here. True: `listed` is wanted for the directory."""
        if size > self._small_file_bytes:
            return False
        found = self._active.get(directory)
        if found is None:
            return not staged and self._watch(directory, name, size, now_s)
        self._active.move_to_end(directory)
        found.last_s = now_s
        held = found.ahead.pop(name, None)
        if held is not None:
            self.ahead_bytes -= held[0]
        if not found.off:
            index = found.find(name)
            if index is not None and not found.note(index, size, hit=held is not None, staged=staged):
                self._turn_off(directory)
        return False

    def listed(self, directory: int, names: Sequence[bytes], now_s: float) -> None:
        """The names of the directory, best only of its regular files, in the order of the listing.

        Sorts them: 0.1 s for 200 000 names.
        """
        self._asked.pop(directory, None)
        recent = self._watched.pop(directory, None)
        if recent is None or not names or directory in self._active or not self._has_room_for(len(names)):
            return
        self._active[directory] = _Directory(names, recent, now_s)
        self._names_held += len(names)

    def next(self, limit: int, now_s: float) -> list[tuple[int, bytes]]:
        """At most `limit` files to fetch ahead now, as (directory, name). Each needs `admit` or `drop` afterwards."""
        if now_s >= self._sweep_at_s:
            self._sweep(now_s)
        work: list[tuple[int, bytes]] = []
        for directory in islice(reversed(self._active), _MAX_LOOKED_AT):
            found = self._active[directory]
            if len(work) >= limit or found.last_s + _IDLE_S < now_s:
                break
            share, of = (1, 1) if found.in_order else _RANDOM_SHARE
            charge = max(_CHARGE_BYTES, int(found.mean_bytes))
            while not found.off and len(work) < limit and self.ahead_bytes + charge <= self._budget_bytes * share // of:
                index = found.take()
                if index < 0:
                    break
                name = found.names[index]
                found.ahead[name] = (charge, now_s, index)
                self.ahead_bytes += charge
                work.append((directory, name))
        return work

    def admit(self, directory: int, name: bytes, size: int) -> bool:
        """Whether a file that was handed out, now known to have `size` bytes, is still to be fetched ahead.

        False if it was opened or expired meanwhile, is empty or not small, or the budget has no room for its real size.
        """
        found = self._active.get(directory)
        held = found.ahead.get(name) if found is not None else None
        if found is None or held is None:
            return False
        charge = max(_CHARGE_BYTES, size)
        ahead_bytes = self.ahead_bytes - held[0] + charge
        if not 0 < size <= self._small_file_bytes or ahead_bytes > self._budget_bytes:
            self.drop(directory, name)
            return False
        found.ahead[name] = (charge, held[1], held[2])
        self.ahead_bytes = ahead_bytes
        return True

    def drop(self, directory: int, name: bytes) -> None:
        """A file that was handed out will not be fetched, or could not be: it leaves the budget, and is no miss."""
        found = self._active.get(directory)
        held = found.ahead.pop(name, None) if found is not None else None
        if held is not None:
            self.ahead_bytes -= held[0]

    def forget(self, directory: int) -> None:
        """The directory has changed or is gone: start anew."""
        self._watched.pop(directory, None)
        self._asked.pop(directory, None)
        self._off.pop(directory, None)
        if directory in self._active:
            self._remove(directory)

    def _watch(self, directory: int, name: bytes, size: int, now_s: float) -> bool:
        if directory in self._off:
            return False
        recent = self._watched.get(directory)
        if recent is None:
            recent = self._watched[directory] = {}
            if len(self._watched) > _MAX_WATCHED:
                self._asked.pop(self._watched.popitem(last=False)[0], None)
        recent.pop(name, None)
        recent[name] = (now_s, size)
        if len(recent) > _TRIGGER_OPENS:
            del recent[next(iter(recent))]
        if len(recent) < _TRIGGER_OPENS or now_s - next(iter(recent.values()))[0] > _TRIGGER_S:
            return False
        if self._asked.get(directory, now_s) > now_s or not self._has_room_for(1):
            return False
        self._asked[directory] = now_s + _IDLE_S  # ask again if no listing has come by then
        return True

    def _has_room_for(self, names: int) -> bool:
        return not self._names_held or self._names_held + names <= _MAX_NAMES

    def _turn_off(self, directory: int) -> None:
        """The names go at once; what is ahead stays charged until it is used or old."""
        found = self._active[directory]
        self._names_held -= len(found.names)
        found.off = True
        found.names, found.positions, found.flags = [], None, bytearray()
        self._off[directory] = None
        if len(self._off) > _MAX_OFF:
            del self._off[next(iter(self._off))]

    def _sweep(self, now_s: float) -> None:
        self._sweep_at_s = now_s + _SWEEP_S
        for directory, found in list(self._active.items()):
            idle_s = now_s - found.last_s
            for name, (charge, since_s, _) in list(found.ahead.items()):
                if since_s + _EXPIRE_S > now_s and idle_s < _IDLE_S:
                    break
                del found.ahead[name]
                self.ahead_bytes -= charge
            if not found.ahead and (found.off or idle_s >= _EXPIRE_S or _UNTOUCHED not in found.flags):
                self._remove(directory)

    def _remove(self, directory: int) -> None:
        found = self._active.pop(directory)
        self.ahead_bytes -= sum(charge for charge, _, _ in found.ahead.values())
        self._names_held -= len(found.names)


def _mean_step(positions: Sequence[int]) -> float:
    """The mean distance between successive positions; 0 for fewer than two."""
    steps = [abs(after - before) for before, after in pairwise(positions)]
    return sum(steps) / max(1, len(steps))
