"""The journal's log: a table of small values that is read again after the process was killed at any byte.

A change is appended to the newer of two segments. When that has several times as many records as the table has entries,
the other one is begun: changes go there from then on, and with each of them a few entries that have not changed are
copied, so that no change ever waits for a compaction. Once nothing is left to copy the newer segment is said to be
complete, with one byte, and the older is emptied. Whoever opens the log reads the newer one if it is complete, else
both in order.

Values are bytes under (kind, number). Knows nothing of what they mean; see `namespace.journal.facts`. Event loop only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hfs.mountd.namespace.journal.segment import JournalMemory, Segment

_KEY = struct.Struct("<BQ")
_DROPPED = 0x80
"""Set in the kind of a record that ends an entry."""

_LEAST_RECORDS = 8192
"""With fewer than these a segment is not worth compacting: it is a megabyte, and read in 20 ms."""

_RECORDS_AN_ENTRY = 3
"""A segment with so many records more than entries is compacted; each change then costs a third of a copy."""

_COPIED_AT_ONCE = 4
"""Entries copied with each change, 5 us: a compaction is over when a quarter as many changes have come."""

Key = tuple[int, int]


class JournalLog:
    """`memories`: the two halves, of any contents."""

    def __init__(self, memories: tuple[JournalMemory, JournalMemory], least_records: int = _LEAST_RECORDS) -> None:
        self._least_records = least_records
        self._places: dict[Key, int] = {}
        """Where each entry stands in the newer segment."""
        self._older: dict[Key, int] = {}
        """Of those not copied yet, where they stand in the older one."""
        self._to_copy: Iterator[Key] = iter(())
        self._records = 0
        """In the newer segment."""
        one, other = map(Segment, memories)
        self._segment, self._before = (one, other) if one.number >= other.number else (other, one)
        self._read()

    def __len__(self) -> int:
        return len(self._places) + len(self._older)

    @property
    def memory_bytes(self) -> int:
        """What both halves hold."""
        return self._segment.end + self._before.end

    def items(self) -> Iterator[tuple[int, int, bytes]]:
        """(kind, number, value) of all entries, roughly in the order of their last change."""
        for segment, places in ((self._before, self._older), (self._segment, self._places)):
            for (kind, number), at in places.items():
                yield kind, number, segment.payload(at)[_KEY.size :]

    def get(self, kind: int, number: int) -> bytes | None:
        """The value of one entry."""
        key = kind, number
        if key in self._places:
            return self._segment.payload(self._places[key])[_KEY.size :]
        if key in self._older:
            return self._before.payload(self._older[key])[_KEY.size :]
        return None

    def put(self, kind: int, number: int, value: bytes) -> None:
        """Enter or replace a value. Raises OSError if there is no memory for it."""
        key = kind, number
        self._older.pop(key, None)
        self._places[key] = self._segment.append(_KEY.pack(kind, number) + value)
        self._records += 1
        if self._records > self._least_records or not self._segment.complete:
            self._go_on()

    def drop(self, kind: int, number: int) -> None:
        """End an entry; one that is not there is no error. Raises OSError if there is no memory for the record."""
        key = kind, number
        if self._places.pop(key, None) is None and self._older.pop(key, None) is None:
            return
        self._segment.append(_KEY.pack(kind | _DROPPED, number))
        self._records += 1
        if self._records > self._least_records or not self._segment.complete:
            self._go_on()

    def clear(self) -> None:
        """Nothing can be read from it any more. For a log whose last change could not be entered."""
        self._before.clear()  # first: an older one alone would be believed
        self._segment.clear()
        self._places, self._older = {}, {}

    # -- compaction ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self._segment.complete:
            self._copy_some()
        elif self._records > self._least_records + _RECORDS_AN_ENTRY * len(self._places):
            self._segment, self._before = self._before, self._segment
            self._segment.begin(self._before.number + 1, complete=False)
            self._older, self._places, self._records = self._places, {}, 0
            self._to_copy = iter(list(self._older))
            self._copy_some()

    def _copy_some(self) -> None:
        left = _COPIED_AT_ONCE
        while self._older and left:
            key = next(self._to_copy)
            at = self._older.pop(key, None)
            if at is not None:  # it has not changed meanwhile
                self._places[key] = self._segment.append(self._before.payload(at))
                self._records += 1
                left -= 1
        if not self._older:
            self._segment.finish()
            self._before.clear()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Fill the tables from what is there."""
        last, before = self._segment, self._before
        if last.number and last.complete:
            before.clear()
            self._replay(last, self._places)
        elif before.number and before.number + 1 == last.number and before.complete:
            self._replay(before, self._older)
            self._records = 0
            self._replay(last, self._places)
            self._to_copy = iter(list(self._older))
        else:
            before.clear()
            last.begin(1, complete=True)

    def _replay(self, segment: Segment, places: dict[Key, int]) -> None:
        """Older before newer: what the newer one says of a key ends what the older one said."""
        for at, payload in segment.records():
            kind, number = _KEY.unpack_from(payload)
            key = kind & ~_DROPPED, number
            self._older.pop(key, None)
            places.pop(key, None)
            self._records += 1
            if not kind & _DROPPED:
                places[key] = at
