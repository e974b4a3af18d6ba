"""One half of the journal: records one behind the other in memory that outlives the process.

    header   magic, format, number of the segment in the journal's life, checksum of these; complete: 0 or 1
    record   size, checksum, payload
    ...      up to the first that is not whole

The memory is a mapping of a memfd that the keeper holds: what was stored there is there after SIGKILL, at whatever
byte the process ended. A record that was being stored has a wrong checksum and ends the segment; the next daemon stores
over it. The checksum covers the place and the segment's number too, so nothing that an earlier use of the memory left
is taken for a record. Nothing here is for a power cut, which ends the mount as well.

Only bytes; the pure half of `namespace.journal.log`. Never waits for a disk.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import Protocol

import xxhash

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
    """The memory of one memfd. `resize` has the pages there, so that no store to them can fail."""

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
