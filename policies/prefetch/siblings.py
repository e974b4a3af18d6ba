"""Siblings: which small files of a directory to fetch before they are opened.

Data sets of many small files are read to the end, in some order. So after 8 distinct small files of a directory were
opened within 10 s, the others are fetched ahead, with what capacity of the source demand leaves over. Two things bound
what a wrong guess costs: how much may be ahead, fetched and not yet used, and a trial of each directory, by which
fetching ahead ends where it is not used.

How much. One budget for all directories together, and besides it, of each directory, four times what was opened there.
A random order hits what is ahead as often as that is a part of what is left to read; with the budget alone, of a data
set six times as large, more than half of all files were opened before they were fetched. So much more is known to be
wanted the more is read, and of a data set of which only a part is read no more comes than five times that part.

`prefetch` owns one `Siblings`, tells it every open, and asks it for work when a worker is idle:

    if siblings.opened(directory, name, size, now_s, staged=False):     # True: have the directory listed, then
        siblings.listed(directory, names, now_s)                        # [] if it could not be
    for directory, name in siblings.next(limit, now_s):                 # to fetch; each is given once
        siblings.fetched(directory, name, size)                         # it is here, and its size is known
        siblings.drop(directory, name)                                  # or it was staged already, or has gone
        siblings.admit(directory, name, size)                           # or it is large: is there budget to fetch it?

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

Directories are whatever the caller tells them apart by. State is small: 8 names for a directory that is watched, about
30 bytes a name for one that is read and 200 more while it is ahead, nothing for one that is complete, staged in an
earlier epoch or idle for 600 s. Pure; never lists, never fetches, never decides whether the cache has room.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf

from hfs.policies.prefetch.siblings_directory import CHARGE_BYTES, SiblingDirectory
from hfs.policies.prefetch.statahead import NameList, sort_steps

FIRST_S = 0.5
"""Nothing is fetched ahead for so long after a job's first open. Its first batch is waited for by a whole job: 8
workers had theirs of a Lustre after 1.0 to 1.9 s where siblings came from the beginning, and after 0.5 s without any.
In all they save more than that."""

PAUSE_S = 30.0
"""After so long without an open of a small file, the next ones are a job's first again."""

_TRIGGER_OPENS = 8
_TRIGGER_S = 10.0
_EXPIRE_S = 600.0
_IDLE_S = 60.0
_SWEEP_S = 10.0
"""How often old files are looked for: a walk over all active directories, so not at every call."""
_MAX_SWEPT = 4096
"""Old files that one call takes back: some milliseconds."""

_IN_ORDER_AT_ONCE = 8
"""Files handed out together in order: more would leave workers without any, and the first one is wanted soonest."""

_RANDOM_SHARE = (7, 8)

_WAIT_SHARE = 16
"""At most a 16th of the budget is left free until there is room for several files."""

_CACHE_SHARE = 4
"""And never more than a quarter of the cache, unless the budget is more. Where the least recently used is evicted,
never more at all: what is ahead would drive itself out. Simulated, a first epoch with a cache of 75 % of a data set
that is smaller than the budget reads 1.13 times the data with this, 1.38 times without, and takes 6 % less time."""

_MAX_WATCHED = 4096
_MAX_OFF = 65_536
_MAX_NAMES = 300_000
"""Names held in all directories together: 10 MB. A larger directory is held if it is the only one, up to"""
_MAX_NAMES_ALONE = 2_000_000
"""names."""
_MAX_LOOKED_AT = 64
"""Directories that one call of `next` looks at, most recently opened first."""


class Siblings:
    """The directories being read, and the budget they share. Times are seconds of one clock that never goes back."""

    def __init__(
        self, small_file_bytes: int, *, budget_bytes: int, cache_bytes: float = inf, evicts_by_use: bool = False
    ) -> None:
        """`small_file_bytes`: the largest small file. `budget_bytes` 0: nothing is fetched ahead. `cache_bytes`: what
        the cache holds in all. `evicts_by_use`: what is ahead may be evicted before it is used."""
        self._small_file_bytes = small_file_bytes
        self._budget_bytes = budget_bytes
        self._most_bytes = max(cache_bytes / _CACHE_SHARE, 0 if evicts_by_use else budget_bytes)
        self._charged_bytes = 0
        """What is charged to the budget, by all directories."""
        self._watched: OrderedDict[Hashable, dict[bytes, tuple[float, int]]] = OrderedDict()
        self._asked: dict[Hashable, float] = {}
        self._active: OrderedDict[Hashable, SiblingDirectory] = OrderedDict()  # least recently opened first
        self._off: dict[Hashable, None] = {}
        self._names_held = 0
        self._sweep_at_s = 0.0
        self.ahead_bytes = 0
        """Bytes handed out and not used, as far as sizes are known."""

    @property
    def directories(self) -> int:
        """Directories that are fetched ahead."""
        return len(self._active)

    def follows(self, directory: Hashable) -> bool:
        """Whether a directory is one of them."""
        return directory in self._active

    def opened(self, directory: Hashable, name: bytes, size: int, now_s: float, *, staged: bool) -> bool:
        """A regular file was opened. `staged`: all its bytes were here. True: `listed` is wanted for the directory."""
        if size > self._small_file_bytes:
            return False
        found = self._active.get(directory)
        if found is None:
            return not staged and self._watch(directory, name, size, now_s)
        self._active.move_to_end(directory)
        found.last_s = now_s
        held = found.ahead.pop(name, None)
        if not found.off:
            index = found.find(name) if held is None else held[2]
            if index is not None and not found.note(index, size, hit=held is not None, staged=staged):
                self._turn_off(directory)
        self._charge(found, -held[0] if held is not None else 0)
        return False

    def listed(self, directory: Hashable, names: Sequence[bytes], now_s: float) -> None:
        """The names of the directory, best only of its regular files, in the order of the listing. Takes them at once:
        half a second for a million."""
        for _ in self.listed_steps(directory, [names], len(names), now_s):
            pass

    def listed_steps(
        self, directory: Hashable, parts: Iterable[Sequence[bytes]], at_most: int, now_s: float
    ) -> Iterator[None]:
        """The same in steps. The names come in `parts`, none of which is asked for if there is no room for `at_most`
        names."""
        names, order = NameList(), array("I")
        if directory in self._watched and directory not in self._active and _has_room(self._names_held, at_most):
            self._names_held += at_most
            try:
                for part in parts:
                    names.extend(part)
                    yield
                yield from sort_steps(names, order)
            finally:
                self._names_held -= at_most
        self._asked.pop(directory, None)
        recent = self._watched.pop(directory, None)
        if recent is None or not len(names) or directory in self._active or not _has_room(self._names_held, len(names)):
            return
        self._active[directory] = SiblingDirectory(names, order, recent, now_s)
        self._names_held += len(names)

    def next(self, limit: int, now_s: float) -> list[tuple[Hashable, bytes]]:
        """At most `limit` files to fetch ahead now, as (directory, name). Each needs `admit` or `drop` afterwards."""
        if now_s >= self._sweep_at_s:
            self._sweep(now_s)
        work: list[tuple[Hashable, bytes]] = []
        for directory in islice(reversed(self._active), _MAX_LOOKED_AT):
            found = self._active[directory]
            if len(work) >= limit or found.last_s + _IDLE_S < now_s:
                break
            charge = found.charge_bytes
            for _ in range(self._together(found, limit - len(work))):
                index = found.take()
                if index < 0:
                    break
                name = found.name(index)
                found.ahead[name] = (charge, now_s, index)
                self._charge(found, charge)
                work.append((directory, name))
        return work

    def _together(self, found: SiblingDirectory, limit: int) -> int:
        """How many files of a directory to hand out at once, at most `limit`; 0: none now.

        Where all that may be is ahead, each open makes room for one file, and several together cost a third.
        """
        if found.exhausted:
            return 0
        share, of = (1, 1) if found.in_order else _RANDOM_SHARE
        room = self._budget_bytes * share // of
        count = min(limit, _IN_ORDER_AT_ONCE) if found.in_order else limit
        count = max(1, min(count, room // (found.charge_bytes * _WAIT_SHARE)))
        return count if self._may(found, found.charge_bytes * count, room) else 0

    def has_work(self, directory: Hashable, limit: int, now_s: float) -> bool:
        """Whether `next` may hand out something after an open in this directory; quick, to be asked after each."""
        if now_s >= self._sweep_at_s:
            return True  # what is old makes room
        found = self._active.get(directory)
        return found is not None and self._together(found, limit) > 0

    def admit(self, directory: Hashable, name: bytes, size: int) -> bool:
        """Whether a file that was handed out, now known to have `size` bytes, is still to be fetched ahead.

        False if it was opened or expired meanwhile, is empty or not small, or the budget has no room for its real size.
        """
        found = self._active.get(directory)
        held = found.ahead.get(name) if found is not None else None
        if found is None or held is None:
            return False
        charge = max(CHARGE_BYTES, size)
        more = charge - held[0]
        if not 0 < size <= self._small_file_bytes or not self._may(found, more, self._budget_bytes):
            self.drop(directory, name)
            return False
        found.ahead[name] = (charge, held[1], held[2])
        self._charge(found, more)
        return True

    def is_wanted(self, directory: Hashable, name: bytes) -> bool:
        """Whether a file that was handed out is still to be fetched: it was not opened and did not expire meanwhile."""
        found = self._active.get(directory)
        return found is not None and name in found.ahead

    def fetched(self, directory: Hashable, name: bytes, size: int) -> None:
        """A file that was handed out is here, with `size` bytes. It was charged as one of mean size, so a few of them
        may be ahead of the budget."""
        found = self._active.get(directory)
        held = found.ahead.get(name) if found is not None else None
        if found is not None and held is not None:
            charge = max(CHARGE_BYTES, size)
            found.ahead[name] = (charge, held[1], held[2])
            self._charge(found, charge - held[0])

    def drop(self, directory: Hashable, name: bytes) -> None:
        """A file that was handed out will not be fetched, or could not be: it leaves the budget, and is no miss."""
        found = self._active.get(directory)
        held = found.ahead.pop(name, None) if found is not None else None
        if found is not None and held is not None:
            self._charge(found, -held[0])

    def forget(self, directory: Hashable) -> None:
        """The directory has changed or is gone: start anew."""
        self._watched.pop(directory, None)
        self._asked.pop(directory, None)
        self._off.pop(directory, None)
        if directory in self._active:
            self._remove(directory)

    def _watch(self, directory: Hashable, name: bytes, size: int, now_s: float) -> bool:
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
        if self._asked.get(directory, now_s) > now_s or not _has_room(self._names_held, 1):
            return False
        self._asked[directory] = now_s + _IDLE_S  # ask again if no listing has come by then
        return True

    def _may(self, found: SiblingDirectory, more: int, budget_bytes: int) -> bool:
        """Whether so many bytes more may be ahead in a directory."""
        others = self._charged_bytes - found.charged_bytes
        mine = max(0, found.ahead_bytes + more - found.allowance_bytes)
        return self._budget_bytes > 0 and mine + others <= budget_bytes and self.ahead_bytes + more <= self._most_bytes

    def _charge(self, found: SiblingDirectory, more: int) -> None:
        """So many bytes more are ahead in a directory, or its allowance has changed."""
        found.ahead_bytes += more
        self.ahead_bytes += more
        charged_bytes = max(0, found.ahead_bytes - found.allowance_bytes)
        self._charged_bytes += charged_bytes - found.charged_bytes
        found.charged_bytes = charged_bytes

    def _turn_off(self, directory: Hashable) -> None:
        found = self._active[directory]
        self._names_held -= len(found)
        found.end()
        self._off[directory] = None
        if len(self._off) > _MAX_OFF:
            del self._off[next(iter(self._off))]

    def _sweep(self, now_s: float) -> None:
        self._sweep_at_s, left = now_s + _SWEEP_S, _MAX_SWEPT
        for directory, found in list(self._active.items()):
            idle_s = now_s - found.last_s
            for name, (charge, since_s, _) in list(islice(found.ahead.items(), left)):
                if since_s + _EXPIRE_S > now_s and idle_s < _IDLE_S:
                    break
                del found.ahead[name]
                self._charge(found, -charge)
                left -= 1
            if not left:
                self._sweep_at_s = now_s  # the next call goes on
                return
            if not found.ahead and (found.off or idle_s >= _EXPIRE_S or found.is_touched):
                self._remove(directory)

    def _remove(self, directory: Hashable) -> None:
        found = self._active.pop(directory)
        self.ahead_bytes -= found.ahead_bytes
        self._charged_bytes -= found.charged_bytes
        self._names_held -= len(found)


def _has_room(held: int, more: int) -> bool:
    """For so many names more than are held."""
    return held + more <= (_MAX_NAMES if held else _MAX_NAMES_ALONE)
