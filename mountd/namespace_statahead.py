"""Stat-ahead: joins `policies.statahead` to look-ups and listings.

Told of every look-up. Where a listing of the directory is held, it finds out whether names are looked up in its order,
and has the attributes of the next ones asked for in the background, many at once; a look-up of a name that is on its
way waits for that (`namespace_asking`). What it does not foresee costs little: in a directory without listing a look
into a dict, in a listed one a search in its bytes, and only a few of these. Event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from mountd.listing import Listing
from mountd.namespace_listings import Listings
from mountd.node import Node
from policies.statahead import NEAR, Reader

__all__ = ["StatAhead"]

_MAX_DIRECTORIES = 64
_MAX_READERS = 8
"""Places in one directory where somebody may be reading on: loader workers that share it in parts."""

_MAX_SEARCHES = 64
"""Searches for a name that nobody has foreseen: each may take a millisecond of a directory of 100 000. A look-up of a
reader in order earns another one, so a random order soon costs nothing."""


_MAX_EXPECTED = 8192
"""Names expected in one directory: eight readers 768 names ahead, and some that were passed without a look-up."""


class _Watch:
    """One listed directory: its readers, most recent last, and the names that they are expected to look up."""

    __slots__ = ("expected", "foreseen", "listing", "look_ups", "readers", "searches")

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
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
        end = min(max(reader.next, reader.asked) + NEAR, len(self.listing))
        for position in range(max(self.foreseen[reader], reader.next), end):
            self.expected[self.listing[position]] = (reader, position)
        self.foreseen[reader] = max(end, self.foreseen[reader])
        if len(self.expected) > _MAX_EXPECTED:
            self.expected = {name: held for name, held in self.expected.items() if held[1] >= held[0].next}

    def reader_of(self, name: bytes) -> tuple[Reader, int] | None:
        """Whose look-up this is, and its position in the listing."""
        self.look_ups += 1
        found = self.expected.pop(name, None)
        if found is not None:
            if found[0].steady:
                self.searches = min(self.searches + 1, _MAX_SEARCHES)
            return found
        if self.searches == 0:
            return None
        self.searches -= 1
        position = self.listing.find(name)
        return (self.add(position), position) if position is not None else None


class StatAhead:
    """What to ask for because names are looked up in order. `ask(directory, names)` begins to, and does not wait."""

    def __init__(self, listings: Listings, ask: Callable[[Node, Sequence[bytes]], None]) -> None:
        self._listings = listings
        self._ask = ask
        self._watches: OrderedDict[Node, _Watch] = OrderedDict()

    def looked_up(self, directory: Node, name: bytes) -> None:
        """`name` is being looked up in `directory`."""
        listing = self._listings.held(directory)
        if listing is None or not len(listing):
            return
        watch = self._watches.get(directory)
        if watch is None or watch.listing is not listing:
            for gone in [d for d, w in self._watches.items() if self._listings.held(d) is not w.listing]:
                del self._watches[gone]  # or they would keep listings that nobody counts
            watch = self._watches[directory] = _Watch(listing)
            if len(self._watches) > _MAX_DIRECTORIES:
                self._watches.popitem(last=False)
        found = watch.reader_of(name)
        if found is None:
            return
        reader, position = found
        ahead = reader.looked_up(position, len(listing), watch.look_ups)
        watch.expect(reader)
        if ahead:
            self._ask(directory, [listing[position] for position in ahead])

    def follows(self, directory: Node, listing: Listing, position: int) -> bool:
        """Whether somebody looks up the names of `listing`, one after the other, and has come to `position`."""
        watch = self._watches.get(directory)
        if watch is None or watch.listing is not listing:
            return False
        return any(reader.steady and abs(reader.next - position) <= NEAR for reader in watch.readers)
