"""Successors: which chunk of a file follows which, learned from its readers, to fetch ahead when nothing else is known.

Readers that say nothing, are not sequential and not strided may still repeat themselves: an order of pieces that is the
same in every epoch, several walks through one mapping. LMDBIO guesses from history which part of the database comes
next (Pumma et al., "data movement", part 2); the table of what followed what, with a threshold, is the probability
graph of Griffioen and Appleton (Reducing file system latency using a predictive approach, USENIX Summer 1994).

    history.hit(index, extent)                     # a READ that was answered from a chunk fetched ahead
    if history.enters(trail, index):               # each READ; `trail` is the handle's
        for ahead in history.worth_fetching(index, is_here):
            fetch(ahead)                           # into memory, not into the page cache: its hits must be seen
    history.paid(size)                             # what READs that missed have had read from the source

A reader *enters* a chunk when it is none of the last 8 it was in, so that walks which take turns enter each chunk once.
Two guesses for what is entered after it: the chunk that followed it before, if that one was three times as frequent
lately as all others (counts fade by a quarter each time), and the next one of the file. Each kind is used only while it
would have been right in three of five of the last entries, and better than chance: all guesses are checked, whether
they were fetched or not, so that a random reader is found out before anything is fetched for him.

And whatever they say, the ledger: what was fetched ahead, less what its hits would have cost alone, is never more than
5 % of what would have been read from the source without any guess (for READs that missed, and for those hits). So the
cost in a truly random order is bounded by construction, and a guess that is used pays for the next.

Pure. Bounded memory: about 300 bytes for each of at most 2048 chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from hfs.policies.geometry import Extent, chunk_count, chunk_extent
from hfs.policies.prefetch.miss_policy import bypass_extent

_RECENT = 8
"""Chunks that a reader is in at the same time: walks of one mapping, workers that share a descriptor."""

_MAX_CHUNKS = 2048
"""Chunks whose followers are known: 16 GiB of a file; of a larger one those that were entered last."""

_MAX_AHEAD = 64
"""Chunks fetched ahead whose hits are counted. Later hits of older ones count for nothing."""

_FOLLOWERS = 2
_FADE = 0.75
_CONFIDENCE = 0.75
_ACCURACY = 0.6
_TRIALS = 16
"""Guesses that were checked before any is believed, and the memory of the mean."""

_COST_PERCENT = 5
_DEPTH = 2
"""Chunks ahead of the one that is entered: one arrives while the other is on its way."""

_PAGE_BYTES = 4096


class Trail:
    """Where one handle has been lately."""

    __slots__ = ("last", "recent")

    def __init__(self) -> None:
        self.last = -1
        """The chunk that was entered last; -1 for none."""
        self.recent: OrderedDict[int, None] = OrderedDict()


class _Guesses:
    """How often guesses of one kind were right lately."""

    __slots__ = ("right", "trials")

    def __init__(self) -> None:
        self.trials = 0
        self.right = 0.0

    def check(self, right: bool) -> None:
        self.trials += 1
        self.right += (right - self.right) / min(self.trials, _TRIALS)

    def good(self, chance: float) -> bool:
        return self.trials >= _TRIALS and self.right >= chance + _ACCURACY * (1 - chance)


class Successors:
    """The history of one version of one file."""

    def __init__(self, file_size: int, chunk_bytes: int) -> None:
        self._file_size = file_size
        self._chunk_bytes = chunk_bytes
        self._chunks = chunk_count(file_size, chunk_bytes)
        self._followers: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._by_history = _Guesses()
        self._by_place = _Guesses()
        self._ahead: OrderedDict[int, int] = OrderedDict()
        """Chunk -> its pages that hits have touched, as bits."""
        self.paid_bytes = 0
        self.ahead_bytes = 0
        self.saved_bytes = 0

    def paid(self, size: int) -> None:
        """A READ that missed had so many bytes read from the source."""
        self.paid_bytes += size

    def is_ahead(self, index: int) -> bool:
        """Chunk `index` was fetched, or is being fetched, because of a guess."""
        return index in self._ahead

    def hit(self, index: int, read: Extent) -> None:
        """A READ within chunk `index` was answered without the source."""
        touched = self._ahead.get(index)
        if touched is None:
            return
        begin = index * self._chunk_bytes
        alone = bypass_extent(read, self._file_size)
        first = max(0, alone.start - begin) // _PAGE_BYTES
        end = -(-(min(alone.end, begin + self._chunk_bytes) - begin) // _PAGE_BYTES)
        now = touched | ((1 << end) - (1 << first))
        if now != touched:
            self._ahead[index] = now
            self.saved_bytes += (now.bit_count() - touched.bit_count()) * _PAGE_BYTES

    def enters(self, trail: Trail, index: int) -> bool:
        """Note a READ in chunk `index`. True if its reader was not there lately."""
        if index in trail.recent:
            trail.recent.move_to_end(index)
            return False
        if trail.last >= 0:
            self._by_place.check(index - 1 in trail.recent)
            self._learn(trail.last, index)
        trail.last = index
        trail.recent[index] = None
        if len(trail.recent) > _RECENT:
            trail.recent.popitem(last=False)
        return True

    def worth_fetching(self, index: int, is_here: Callable[[int], bool]) -> list[int]:
        """Chunks to fetch now that a reader has entered chunk `index`; they are taken as fetched.

        `is_here`: whether a chunk is staged, in memory or on the way.
        """
        found: list[int] = []
        by_place = self._by_place.good(min(1.0, _RECENT / self._chunks))
        at = index
        for _ in range(_DEPTH):
            follower = self._follower(at) if self._by_history.good(0.0) else None
            if follower is None and by_place and at + 1 < self._chunks:
                follower = at + 1
            if follower is None or follower == index:
                break
            at = follower
            if is_here(follower):
                continue
            size = chunk_extent(follower, self._file_size, self._chunk_bytes).size
            without_bytes = self.paid_bytes + self.saved_bytes
            if (self.ahead_bytes + size - self.saved_bytes) * 100 > without_bytes * _COST_PERCENT:
                break
            self.ahead_bytes += size
            self._ahead[follower] = 0
            self._ahead.move_to_end(follower)
            if len(self._ahead) > _MAX_AHEAD:
                self._ahead.popitem(last=False)
            found.append(follower)
        return found

    def _follower(self, index: int) -> int | None:
        """What most likely comes after chunk `index`, if anything stands out."""
        followers = self._followers.get(index)
        if not followers:
            return None
        best = max(followers, key=followers.__getitem__)
        return best if followers[best] >= _CONFIDENCE * sum(followers.values()) else None

    def _learn(self, before: int, after: int) -> None:
        guess = self._follower(before)
        if guess is not None:
            self._by_history.check(guess == after)
        followers = self._followers.setdefault(before, {})
        self._followers.move_to_end(before)
        for known in followers:
            followers[known] *= _FADE
        followers[after] = followers.get(after, 0.0) + 1
        if len(followers) > _FOLLOWERS:
            del followers[min((known for known in followers if known != after), key=followers.__getitem__)]
        if len(self._followers) > _MAX_CHUNKS:
            self._followers.popitem(last=False)
