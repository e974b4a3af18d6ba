"""What a power loss may leave of recorded writes (tests/power/record.c): the states of the directory, made anew.

The model, for a loss before record `at`: a sync of a file makes durable what was written to it before, its name, and
every change of names before that one; changes of names reach the disk in their order (one journal), as far as anybody
likes beyond what is durable; what was written and not synced is there or not, page by page, in any order. That is what
ext4, XFS and btrfs promise, and less than they do.
"""

import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = struct.Struct("=cQQII")
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    """Create, Write, Truncate, Punch, Unlink, Make directory, Rename, Note; syncs: F of a file, D of a directory, A of
    all."""
    inode: int
    offset: int
    name: str
    data: bytes


def read_records(path: Path) -> list[Record]:
    records = []
    text, at = path.read_bytes(), 0
    while at < len(text):
        kind, inode, offset, one, two = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        records.append(
            Record(kind.decode(), inode, offset, text[at : at + one].decode(), text[at + one : at + one + two])
        )
        at += one + two
    return records


State = dict[str, bytes | None]
"""Bytes of files by name, below the directory; None: a directory, before what lies in it."""


@dataclass(slots=True)
class _File:
    writes: list[tuple[int, Record]] = field(default_factory=list)
    """(number of the record, record): what changes its bytes or its length."""
    synced: int = 0
    """What came before this record is durable."""
    named: int = 0
    """The record that gave it its name."""


class History:
    """The records, ready to be cut anywhere."""

    def __init__(self, records: Sequence[Record], below: str) -> None:
        self.records = records
        self._below = below

    def points(self) -> list[int]:
        """Where a loss differs from one just before: after each record that changes something."""
        return [at + 1 for at, record in enumerate(self.records) if record.kind != "N"]

    def reported(self, at: int) -> set[tuple[int, int, int]]:
        """The chunks that were reported committed before record `at` and not given up since."""
        held: set[tuple[int, int, int]] = set()
        for record in self.records[:at]:
            if record.kind == "N":
                what, chunks = json.loads(record.name)
                changed = {(chunk[0], chunk[1], chunk[2]) for chunk in chunks}
                held = held | changed if what == "committed" else held - changed
        return held

    def state(self, at: int, persists: Callable[[int], bool], names: Callable[[int, int], int]) -> State:
        """What a loss before record `at` may leave.

        `persists`: asked with the record's number for each page that was not synced. `names(least, most)`: how many
        records of names reach the disk, at least those that are durable.
        """
        files: dict[int, _File] = {}
        everything: list[_File] = []
        durable_names = 0
        for number, record in enumerate(self.records[:at]):
            if record.kind == "C":
                files[record.inode] = _File(named=number + 1)
                everything.append(files[record.inode])
            elif record.kind in "WTP":
                files[record.inode].writes.append((number, record))
            elif record.kind == "F":
                files[record.inode].synced = number
                durable_names = max(durable_names, files[record.inode].named)
            elif record.kind == "D":
                durable_names = number
            elif record.kind == "A":
                durable_names = number
                for file in everything:
                    file.synced = number
        reach = names(durable_names, at)
        there: dict[str, _File | None] = {}
        created = iter(everything)
        for record in self.records[:reach]:
            if record.kind == "C":
                there[record.name] = next(created)
            elif record.kind == "M":
                there[record.name] = None
            elif record.kind == "U":
                del there[record.name]
            elif record.kind == "R":
                there[record.data.decode()] = there.pop(record.name)
        return {
            os.path.relpath(name, self._below): None if held is None else _contents(held, persists)
            for name, held in there.items()
            if name != self._below and not name.endswith("-shm")
        }


def make(state: State, into: Path) -> None:
    """The directory on the disk; pages of zeros are holes."""
    into.mkdir(mode=0o700)
    for name, data in state.items():
        if data is None:
            (into / name).mkdir(mode=0o700)
            continue
        with (into / name).open("wb") as file:
            for start in range(0, len(data), PAGE_BYTES):
                page = data[start : start + PAGE_BYTES]
                if any(page):
                    file.seek(start)
                    file.write(page)
            file.truncate(len(data))


def _contents(file: _File, persists: Callable[[int], bool]) -> bytes:
    data = bytearray()
    for number, record in file.writes:
        durable = number < file.synced
        if record.kind == "T":
            if durable or persists(number):
                del data[record.offset :]
                data.extend(bytes(record.offset - len(data)))
        elif record.kind == "P":
            if durable or persists(number):
                end = min(len(data), record.offset + struct.unpack("=Q", record.data)[0])
                data[record.offset : end] = bytes(max(0, end - record.offset))
        else:
            start, end = record.offset, record.offset + len(record.data)
            while start < end:
                stop = min(end, (start // PAGE_BYTES + 1) * PAGE_BYTES)
                if durable or persists(number):
                    data.extend(bytes(max(0, stop - len(data))))
                    data[start:stop] = record.data[start - record.offset : stop - record.offset]
                start = stop
    return bytes(data)


Choice = tuple[Callable[[int], bool], Callable[[int, int], int]]


def choices(at: int) -> dict[str, Choice]:
    """What of all that may be there before record `at` is: nothing, all, names without bytes, one write, by chance."""
    chance = random.Random(at)
    return {
        "only what was synced": (lambda _: False, lambda least, _most: least),
        "only the last write": (lambda number: number == at - 1, lambda least, _most: least),
        "names without bytes": (lambda _: False, lambda _least, most: most),
        "bytes without names": (lambda _: True, lambda least, _most: least),
        "everything": (lambda _: True, lambda _least, most: most),
        "by chance": (lambda _: chance.random() < 0.5, lambda least, most: chance.randint(least, most)),
    }
