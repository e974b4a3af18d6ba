"""Stat-ahead: joins `policies.prefetch.statahead` to look-ups and listings.

Told of every look-up. Where a listing of the directory is held, it finds out whether names are looked up in its order,
and has the attributes of the next ones asked for in the background, many at once; a look-up of a name that is on its
way waits for that (`namespace.asking`). Programs that sort the names first are foreseen too: a few look-ups out of the
listing's order have it sorted by name, in slices. What it does not foresee costs little: in a directory without
listing a look into a dict, in a listed one a search, and only a few of these. Event loop only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.tree import Listings
from hfs.mountd.source import Listing
from hfs.policies.prefetch.statahead import NEAR, TOLD_EVERY, NameList, Reader, sort_steps

_MAX_DIRECTORIES = 64
_SIBLINGS = 15
"""Where one directory was looked through, so many beside it are expected to be, before it is seen again."""
_SIBLINGS_S = 60.0
"""Not longer than that: another program may come."""

EXPECTED = 8192
"""Names of a directory that are expected to be looked up because others beside it were. A larger one must show it."""
_MAX_PARENTS = 256
_MAX_READERS = 8
"""Places in one directory where somebody may be reading on: loader workers that share it in parts."""

_MAX_SEARCHES = 64
"""Searches for a name that nobody has foreseen: each may take a millisecond of a directory of 100 000. A look-up of a
reader in order earns another one, so a random order soon costs nothing."""

_SORT_AFTER = 4
"""Searches in the listing after which it is sorted by name."""

_MAX_SORTED = 300_000
"""Names: half a second of slices, and 1.2 MB."""
_TAKEN = 2048
"""Names in one step."""

_MAX_EXPECTED = 8192
"""Names expected in one directory: eight readers 768 names ahead, and some that were passed without a look-up."""


class _ByName:
    """A complete listing in the order of its names."""

    def __init__(self, listing: Listing, positions: array[int]) -> None:
        self._listing = listing
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, position: int) -> bytes:
        return self._listing[self._positions[position]]

    def find(self, name: bytes) -> int | None:
        position = bisect_left(self._positions, name, key=self._listing.__getitem__)
        return position if position < len(self) and self[position] == name else None


class _Watch:
    """One order of a directory: its readers, most recent last, and the names that they are expected to look up."""

    __slots__ = ("expected", "foreseen", "look_ups", "order", "readers", "searches")

    def __init__(self, order: Listing | _ByName) -> None:
        self.order = order
        self.readers: list[Reader] = []
        self.expected: dict[bytes, tuple[Reader, int]] = {}
        self.foreseen: dict[Reader, int] = {}
        """Behind the last name expected of each reader."""
        self.searches = _MAX_SEARCHES
        self.look_ups = 0
        self.add(0)

    def add(self, position: int) -> Reader:
        """Somebody may begin here."""
        reader = Reader(position)
        self.readers.append(reader)
        self.foreseen[reader] = position
        if len(self.readers) > _MAX_READERS:
            gone = self.readers.pop(0)
            del self.foreseen[gone]
            self.expected = {name: held for name, held in self.expected.items() if held[0] is not gone}
        self.expect(reader)
        return reader

    def expect(self, reader: Reader) -> None:
        """Expect what was asked for ahead of `reader`, and a few names more."""
        end = min(max(reader.next, reader.asked) + NEAR, len(self.order))
        for position in range(max(self.foreseen[reader], reader.next), end):
            self.expected[self.order[position]] = (reader, position)
        self.foreseen[reader] = max(end, self.foreseen[reader])
        if len(self.expected) > _MAX_EXPECTED:
            self.expected = {name: held for name, held in self.expected.items() if held[1] >= held[0].next}

    def reader_of(self, name: bytes) -> tuple[Reader, int] | None:
        """Whose look-up this is, and its position."""
        self.look_ups += 1
        found = self.expected.pop(name, None)
        if found is not None:
            if found[0].steady:
                self.searches = min(self.searches + 1, _MAX_SEARCHES)
            return found
        if self.searches == 0:
            return None
        self.searches -= 1
        position = self.order.find(name)
        return (self.add(position), position) if position is not None else None

    def looked_up(self, name: bytes, *, sampled: bool) -> tuple[list[bytes], AbstractSet[bytes]]:
        """`name` is being looked up: what to ask for now, and of which of these it must be told. See `Reader`."""
        found = self.reader_of(name)
        if found is None:
            return [], frozenset()
        reader, position = found
        ahead = reader.looked_up(position, len(self.order), self.look_ups, sampled=sampled)
        self.expect(reader)
        told = {self.order[position] for position in ahead if position % TOLD_EVERY == 0}
        return [self.order[position] for position in ahead], told


class _Directory:
    """A directory with a listing. `by_name` is made when names are looked up in another order than that."""

    __slots__ = ("by_name", "in_order", "listing", "sorting")

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.in_order = _Watch(listing)
        self.by_name: _Watch | None = None
        self.sorting = False

    @property
    def wants_sorting(self) -> bool:
        return (
            not self.sorting
            and self.in_order.searches <= _MAX_SEARCHES - _SORT_AFTER
            and self.listing.complete
            and len(self.listing) <= _MAX_SORTED
        )


class StatAhead:
    """What to ask for because names are looked up in order."""

    def __init__(
        self,
        listings: Listings,
        nursery: trio.Nursery,
        ask: Callable[[Node, Sequence[bytes], AbstractSet[bytes]], None],
        *,
        sampled: Callable[[Node], bool],
        clock: Callable[[], float],
    ) -> None:
        """`ask(directory, names, told)` begins to ask for these names, and does not wait; look-ups of `told` are told.
        `sampled(directory)`: those of the others may not be."""
        self._listings = listings
        self._nursery = nursery
        self._ask = ask
        self._sampled = sampled
        self._clock = clock
        self._directories: OrderedDict[Node, _Directory] = OrderedDict()
        self._siblings: OrderedDict[Node, tuple[int, float]] = OrderedDict()
        """Of a directory: how many of those in it are expected to be looked through, and until when."""

    def looked_up(self, directory: Node, name: bytes) -> None:
        """`name` is being looked up in `directory`."""
        listing = self._listings.held(directory)
        if listing is None or not len(listing):
            return
        watched = self._directories.get(directory)
        if watched is None or watched.listing is not listing:
            for gone in [d for d, w in self._directories.items() if self._listings.held(d) is not w.listing]:
                del self._directories[gone]  # or they would keep listings that nobody counts
            watched = self._directories[directory] = _Directory(listing)
            if len(self._directories) > _MAX_DIRECTORIES:
                self._directories.popitem(last=False)
        for watch in (watched.in_order, watched.by_name):
            if watch is None:
                continue
            ahead, told = watch.looked_up(name, sampled=self._sampled(directory))
            if ahead:
                self._ask(directory, ahead, told)
                self._expect_siblings(directory)
        if watched.wants_sorting:
            watched.sorting = True
            start_guarded(self._nursery, "sorting of a listing", _sort, watched)

    def _expect_siblings(self, directory: Node) -> None:
        if directory.parent is not None:
            self._siblings[directory.parent] = _SIBLINGS, self._clock() + _SIBLINGS_S
            self._siblings.move_to_end(directory.parent)
            if len(self._siblings) > _MAX_PARENTS:
                self._siblings.popitem(last=False)

    def expects(self, directory: Node) -> bool:
        """Whether the names of `directory`, which is listed now, will be looked up: as others beside it were.

        Not said of every one, so that it is seen when that ends.
        """
        parent = directory.parent
        known = self._siblings.pop(parent, None) if parent is not None else None
        if parent is None or known is None:
            return False
        left, until_s = known
        if left > 1:
            self._siblings[parent] = left - 1, until_s
        return self._clock() < until_s

    def follows(self, directory: Node, listing: Listing, position: int) -> bool:
        """Whether somebody looks up the names of `listing`, one after the other, and has come to `position`."""
        watched = self._directories.get(directory)
        if watched is None or watched.listing is not listing:
            return False
        return any(reader.steady and abs(reader.next - position) <= NEAR for reader in watched.in_order.readers)


async def _sort(watched: _Directory) -> None:
    listing, names, positions = watched.listing, NameList(), array("I")

    def steps() -> Iterator[None]:
        for begin in range(0, len(listing), _TAKEN):
            names.extend(listing.names(begin, begin + _TAKEN))
            yield
        yield from sort_steps(names, positions)

    await listing.slices.carry_out(steps())
    watched.by_name = _Watch(_ByName(listing, positions))
