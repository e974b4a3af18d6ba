"""The journal's log: a table of small values that is read again after the process was killed at any byte.

A change is appended to the newer of two segments. When that has several times as many records as the table has entries,
the other one is begun: changes go there from then on, and with each of them a few entries that have not changed are
copied, so that no change ever waits for a compaction. Once nothing is left to copy the newer segment is said to be
complete, with one byte, and the older is emptied. Whoever opens the log reads the newer one if it is complete, else
both in order.

Values are bytes under (kind, number). Knows nothing of what they mean; see `namespace.journal.facts`. Event loop only.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

import xxhash

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


log = logging.getLogger(__name__)


_MAGIC = b"hfs jrnl"
_FORMAT = 2
"""A daemon of another release that cannot read it begins anew: what was open answers ESTALE then."""

_HEADER = struct.Struct("<8sIQQ")
_COMPLETE_AT = _HEADER.size
HEADER_BYTES = 32

_digest = xxhash.xxh3_64_intdigest

_FRAME = struct.Struct("<IQ")

_GROW_BYTES = 256 << 10
"""The memory grows by as much: 1 500 records, and 30 us for pages that are there when they are stored to."""


class JournalMemory(Protocol):
    """Bytes at places; what a bytearray can do, and growing."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> bytes | bytearray: ...

    def __setitem__(self, at: slice, data: bytes, /) -> None: ...

    def resize(self, size: int, /) -> None:
        """Raises OSError if there is no memory for more."""


class Mapped(mmap.mmap):
    """One half of the journal: records one behind the other in memory that outlives the process.

        header   magic, format, number of the segment in the journal's life, checksum of these; complete: 0 or 1
        record   size, checksum, payload
        ...      up to the first that is not whole

    The memory is a mapping of a memfd that the keeper holds: what was stored there is there after SIGKILL, at whatever
    byte the process ended. A record that was being stored has a wrong checksum and ends the segment; the next daemon
    stores over it. The checksum covers the place and the segment's number too, so nothing that an earlier use of the
    memory left is taken for a record. Nothing here is for a power cut, which ends the mount as well.

    Only bytes; the pure half of `namespace.journal.log`. Never waits for a disk.

    The memory of one memfd. `resize` has the pages there, so that no store to them can fail.
    """

    def resize(self, size: int) -> None:
        """To `size` bytes, not 0. Raises OSError."""
        if size > len(self):
            os.posix_fallocate(self.fd, 0, size)
        super().resize(size)

    fd: int


def open_memory(fd: int) -> Mapped:
    """The memory behind memfd `fd`, which stays the caller's. Raises OSError."""
    size = max(os.fstat(fd).st_size, HEADER_BYTES)
    os.posix_fallocate(fd, 0, size)
    memory = Mapped(fd, size)
    memory.fd = fd
    return memory


class Segment:
    """Appends records and finds them again. Made over memory of any contents."""

    def __init__(self, memory: JournalMemory) -> None:
        self._memory = memory
        self._room = len(memory)
        self._seed = 0
        self.number = 0
        """Of two valid segments the one with the higher number is the newer; 0: it is not valid."""
        self.end = HEADER_BYTES
        """Where the next record goes."""
        self.complete = bool(memory[_COMPLETE_AT : _COMPLETE_AT + 1][0])
        """It has all there is to know, without the older one."""
        magic, layout, number, check = _HEADER.unpack(memory[0 : _HEADER.size])
        if magic == _MAGIC and layout == _FORMAT and check == _check_header(number):
            self._renumber(number)

    def begin(self, number: int, *, complete: bool) -> None:
        """Empty it and make it valid, under a new number. Until the last byte of this is stored it is not valid."""
        self.clear()
        self._memory[_COMPLETE_AT : _COMPLETE_AT + 1] = bytes([complete])
        self.complete = complete
        self._memory[0 : _HEADER.size] = _HEADER.pack(_MAGIC, _FORMAT, number, _check_header(number))
        self._renumber(number)

    def finish(self) -> None:
        """From now on it is complete; one byte is stored."""
        self._memory[_COMPLETE_AT : _COMPLETE_AT + 1] = b"\1"
        self.complete = True

    def clear(self) -> None:
        """Not valid from now on; its memory goes back."""
        self._memory[0:1] = b"\0"  # not the magic any more, whatever comes next
        self.number = 0
        self.end = self._room = HEADER_BYTES
        self._memory.resize(HEADER_BYTES)

    def append(self, payload: bytes) -> int:
        """Store a record; where it is. Raises OSError, and nothing is stored, if there is no memory for it."""
        at = self.end
        end = at + _FRAME.size + len(payload)
        if end > self._room:
            self._memory.resize(end + _GROW_BYTES)
            self._room = end + _GROW_BYTES
        self._memory[at:end] = _FRAME.pack(len(payload), _digest(payload, self._seed ^ at)) + payload
        self.end = end
        return at

    def payload(self, at: int) -> bytes:
        """Of the record at `at`, as `append` or `records` gave it."""
        size, _ = _FRAME.unpack(self._memory[at : at + _FRAME.size])
        return bytes(self._memory[at + _FRAME.size : at + _FRAME.size + size])

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(place, payload) of each whole record, and `end` behind the last. Before the first `append`."""
        at = HEADER_BYTES
        last = self._room - _FRAME.size
        while self.number and at <= last:
            size, check = _FRAME.unpack(self._memory[at : at + _FRAME.size])
            payload = bytes(self._memory[at + _FRAME.size : at + _FRAME.size + size])
            if not size or len(payload) != size or check != _digest(payload, self._seed ^ at):
                break
            yield at, payload
            at += _FRAME.size + size
            self.end = at

    def _renumber(self, number: int) -> None:
        self.number = number
        self._seed = number << 40


def _check_header(number: int) -> int:
    return _digest(struct.pack("<IQ", _FORMAT, number))


class JournalWriter:
    """Writing to the journal's log, as long as there is memory for it.

    Where a change cannot be entered the journal is given up whole: one without its last change could lie. Without a
    keeper there is no log from the beginning. Event loop only, never waits.

    The log, or nothing.
    """

    def __init__(self, entries: JournalLog | None, given_up: Callable[[], object]) -> None:
        """`given_up` is called when the journal is, in the middle of that `put` or `drop`."""
        self._log = entries
        self._given_up = given_up

    @property
    def on(self) -> bool:
        """What is put is noted."""
        return self._log is not None

    @property
    def memory_bytes(self) -> int:
        """What the log holds."""
        return self._log.memory_bytes if self._log is not None else 0

    def put(self, kind: int, number: int, value: bytes) -> bool:
        """Enter or replace a value (`facts`). False if it is not noted: the journal is given up, then or before."""
        if self._log is None:
            return False
        try:
            self._log.put(kind, number, value)
        except (OSError, ValueError) as error:
            self._give_up(self._log, error)
            return False
        return True

    def drop(self, kind: int, number: int) -> None:
        """End an entry; one that is not there is no error."""
        if self._log is None:
            return
        try:
            self._log.drop(kind, number)
        except (OSError, ValueError) as error:
            self._give_up(self._log, error)

    def _give_up(self, entries: JournalLog, error: Exception) -> None:
        log.error("the journal is given up: %s; after a crash of this daemon what is open answers ESTALE", error)
        entries.clear()
        self._log = None
        self._given_up()


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
