"""The data plane's table of regular files as a plain dictionary: what is answered of which file, and with what.

It has no requests, no threads and no bytes, and looks into the source itself when the engine would. See
tests/mountd/kernel/test_table_model.py.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from hfs.mountd.core.attributes import Attributes, Version, version_of
from hfs.mountd.kernel import FetchKind
from hfs.mountd.kernel.small_fetches import Fetched
from tests.support.pattern import pattern

LARGEST = 8192
"""Bytes of a file that is fetched."""
_MANY = 1_000_000

Place = tuple[int, bytes]


class Until(IntEnum):
    ENDED = 0  # by `expire`
    PAST = 1
    GOOD = 2

    @property
    def valid_s(self) -> float:
        return 1000.0 if self is Until.GOOD else -1.0


class Storing(IntEnum):
    NOWHERE = 0
    OBJECTS = 1
    BY_PYTHON = 2


@dataclass
class Content:
    """Where the bytes of a file are."""

    in_memory: bool
    number: int = 0
    """Of an object."""
    pushed: bool = False
    opens: int = 0


@dataclass(eq=False)
class Slot:
    place: Place
    attributes: Attributes
    until: Until
    node_id: int = 0
    """0: nobody was told."""
    look_ups: int = 0
    content: Content | None = None

    @property
    def version(self) -> Version:
        return self.attributes.version("")

    @property
    def size(self) -> int:
        return self.attributes.size

    def data(self, offset: int = 0, size: int = _MANY) -> bytes:
        return data_of(self.version, offset, size)


@dataclass
class Loan:
    generation: int
    until: Until
    """Of what is found in it."""
    settled: bool
    entered: int = 0


class Outcome(NamedTuple):
    kind: FetchKind
    ahead: bool
    place: Place
    generation: int
    version: Version | None = None
    number: int = 0
    data: bytes | None = None

    @classmethod
    def of(cls, one: Fetched) -> Outcome:
        outcome = cls(one.kind, one.ahead, (one.directory_id, one.name), one.generation)
        if one.kind is FetchKind.NOTHING:
            return outcome
        return outcome._replace(version=version_of(one.seen, ""), number=one.number, data=one.data)


def told(attributes: Attributes | None) -> Attributes | None:
    """What of them says which file it is, and which version."""
    return attributes and attributes._replace(blocks=0, block_bytes=0, rdev=0, device=0, atime_ns=0)


def mtime_of(seed: int) -> int:
    """In nanoseconds: each version says by it what its bytes are."""
    return (10**9 + seed) * 10**9


def data_of(version: Version, offset: int = 0, size: int = _MANY) -> bytes:
    return pattern(version.mtime_ns // 10**9 - 10**9, offset, min(size, version.size - offset))


@dataclass
class Model:
    source: Path
    pushes: bool
    storing: Storing
    numbers: Iterator[int]
    """Of objects."""
    slots: dict[Place, Slot] = field(default_factory=dict)
    delegated: dict[int, Loan] = field(default_factory=dict)
    objects: dict[Version, int] = field(default_factory=dict)
    stateless: bool = False
    reads: int = 0
    """Of the source."""
    outcomes: list[Outcome] = field(default_factory=list)
    pushed: list[tuple[int, int, bytes]] = field(default_factory=list)

    def path(self, place: Place) -> bytes:
        return os.path.join(os.fsencode(self.source), b"%d" % place[0], place[1])

    def seen(self, place: Place) -> Attributes | None:
        """What the source says now of one that may be in the table."""
        try:
            found = Attributes.of(os.lstat(self.path(place)))
        except FileNotFoundError:
            return None
        return found if stat.S_ISREG(found.mode) else None

    def by_id(self, node_id: int) -> Slot | None:
        return next((slot for slot in self.slots.values() if slot.node_id == node_id), None)

    def put(self, place: Place, attributes: Attributes, until: Until) -> int:
        """0, or an errno: EEXIST, it was there; ESTALE, another version is."""
        slot = self.slots.get(place)
        if slot is None:
            self.slots[place] = Slot(place, attributes, until)
            return 0
        if slot.version != attributes.version(""):
            return errno.ESTALE
        slot.attributes, slot.until = attributes, until
        return errno.EEXIST

    def delegate(self, directory: int, generation: int, until: Until, *, settled: bool) -> None:
        before = self.delegated.get(directory)
        self.delegated[directory] = Loan(generation, until, settled, before.entered if before is not None else 0)

    def take_entered(self, directory: int, *, is_over: bool) -> int:
        """How many the engine has put there since the last call. `is_over`: it is delegated no more."""
        loan = self.delegated.get(directory)
        if loan is None:
            return 0
        entered, loan.entered = loan.entered, 0
        if is_over:
            del self.delegated[directory]
        return entered

    def job(self, place: Place, *, fetch: bool, ahead: bool = False) -> bool:
        """The engine looks at a file, or fetches it. False: it is Python's."""
        loan = self.delegated.get(place[0])
        if loan is None:
            return False
        attributes = self.seen(place)
        entered: int = errno.ENOENT
        number, is_read, kind = 0, False, FetchKind.NOTHING
        if attributes is not None and loan.settled:
            number = self.objects.get(attributes.version(""), 0)
            is_read = fetch and not number and 0 < attributes.size <= LARGEST
            self.reads += is_read
            entered = self.put(place, attributes, loan.until)
            loan.entered += not entered
        if attributes is not None and entered in (0, errno.EEXIST):
            kind = FetchKind.HERE
            slot = self.slots[place]
            if number or is_read or (fetch and not attributes.size):
                self.fill(slot, number, in_memory=is_read)
            if is_read:
                kind = self.store(slot)
        if ahead or kind in (FetchKind.STORED, FetchKind.GIVEN):
            outcome = Outcome(kind, ahead, place, loan.generation)
            if attributes is not None and kind is not FetchKind.NOTHING:
                version = attributes.version("")
                data = data_of(version) if kind is FetchKind.GIVEN else None
                outcome = outcome._replace(version=version, number=self.objects.get(version, 0), data=data)
            self.outcomes.append(outcome)
        return kind is not FetchKind.NOTHING

    @staticmethod
    def fill(slot: Slot, number: int, *, in_memory: bool) -> None:
        if slot.content is None:
            slot.content = Content(in_memory, number)
        elif not slot.content.in_memory and not slot.content.number:
            slot.content.in_memory, slot.content.number, slot.content.pushed = in_memory, number, False

    def store(self, slot: Slot) -> FetchKind:
        assert slot.content is not None
        if self.storing is Storing.OBJECTS:
            slot.content.number = self.objects[slot.version] = next(self.numbers)
            return FetchKind.STORED
        return FetchKind.GIVEN if self.storing is Storing.BY_PYTHON else FetchKind.UNSTORED

    def trim(self) -> None:
        """What is in an object need not be in memory."""
        for slot in self.slots.values():
            if slot.content is not None and slot.content.number:
                slot.content.in_memory = False

    # ---- what the kernel asks ----

    def look_up(self, place: Place) -> Slot | None:
        slot = self.slots.get(place)
        if self.stateless and (slot is None or not slot.size):
            return None
        if (slot is None or slot.until is not Until.GOOD) and not self.stateless:
            slot = self.slots[place] if self.job(place, fetch=False) else None
        if slot is None or slot.until is not Until.GOOD:
            return None
        slot.look_ups += 1
        return slot

    def stat(self, node_id: int) -> Slot | None:
        slot = self.by_id(node_id)
        is_told = slot is not None and slot.until is Until.GOOD and (slot.size or not self.stateless)
        return slot if is_told else None

    def fetch(self, slot: Slot) -> bool:
        """For one that is told, and whose bytes are nowhere."""
        return slot.size <= LARGEST and self.job(slot.place, fetch=True)

    def is_nowhere(self, content: Content) -> bool:
        return not content.in_memory and content.number not in self.objects.values()

    def open(self, node_id: int) -> Slot | None:
        slot = self.by_id(node_id)
        if slot is None or self.stateless or slot.until is not Until.GOOD:
            return None
        if slot.content is None and (number := self.objects.get(slot.version, 0)):
            slot.content = Content(in_memory=False, number=number)
        if slot.content is not None and self.pushes and slot.size and not slot.content.pushed:
            if self.is_nowhere(slot.content):
                slot.content.number = 0
                self.end_if_empty(slot)
                if not self.fetch(slot):
                    return None
        elif slot.content is None and not self.fetch(slot):
            return None
        content = slot.content
        assert content is not None
        if self.pushes and slot.size and not content.pushed and not content.opens:
            self.pushed.append((node_id, 0, slot.data()))
            content.pushed, content.in_memory = True, False
        content.opens += 1
        return slot

    @staticmethod
    def end_if_empty(slot: Slot) -> None:
        """Its bytes are to be fetched anew, if they are nowhere, the kernel's page cache included."""
        content = slot.content
        if content and slot.size and not (content.in_memory or content.number or content.pushed or content.opens):
            slot.content = None

    def read(self, node_id: int, offset: int, size: int) -> bytes | None:
        slot = self.by_id(node_id)
        content = slot.content if slot is not None else None
        if slot is None or content is None:
            return None
        if not content.in_memory and not content.number and (slot.until is Until.ENDED or not self.fetch(slot)):
            return None
        if self.is_nowhere(content) and offset < slot.size:
            return None
        return slot.data(offset, size)

    def forget(self, node_id: int, count: int) -> None:
        slot = self.by_id(node_id)
        if slot is None:
            return
        slot.look_ups = max(0, slot.look_ups - count)
        if not slot.look_ups and slot.content is not None:
            slot.content.pushed = False
            self.end_if_empty(slot)
