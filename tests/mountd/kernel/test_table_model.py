"""The table of regular files against a plain dictionary (tests/support/table_model.py) and the source itself.

A kernel asks at random while directories are listed and delegated, files change, the engine fetches, and Python takes
and sweeps. For each request the model says whether it is answered or Python's, and with what: nobody is told bytes of
another version than the one that its node id stands for. The kernel asks as a real one does: it closes what it has
opened, forgets nothing that it has open, and reads no file without bytes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from hfs.mountd.core.attributes import attributes_of, seen_names
from hfs.mountd.kernel import FetchKind, SlotTable, SmallFetches, TakenSlot
from hfs.mountd.kernel.small_fetches import let_go_of_staged_bytes
from tests.support.examples import examples
from tests.support.pattern import write_pattern
from tests.support.plane_kernel import SettledEngine, reads_nowait, serving
from tests.support.table_model import LARGEST, Model, Outcome, Place, Slot, Storing, Until, data_of, mtime_of, told

DIRECTORIES = (3, 4)
NAMES = (b"a", b"b", b"a name of two hundred and fifty-five bytes".ljust(255, b"."))
MANY = 1 << 40

# No two examples have an id, a version or an object in common, though they share the one table of this process.
ids = itertools.count(1 << 62, 1 << 38)
seeds, loans, numbers = (itertools.count(1) for _ in range(3))

READS = {"read": (0, 20_000), "read some": (1, 100), "read more": (4095, 4096), "read none": (9000, 5)}
ACTS = st.lists(st.sampled_from([*["open"] * 3, "close", "close", "again", "stat", *READS]), min_size=2, max_size=9)
PLACES = st.tuples(st.sampled_from(DIRECTORIES), st.sampled_from(NAMES))
DECISIONS = st.sampled_from(
    ["put", "delegate", "call_back", "expire", "sweep", "take", "evict", "trim", "become_stateless"]
)
UNTIL = st.sampled_from([Until.GOOD, Until.GOOD, Until.GOOD, Until.PAST])
SIZE = st.sampled_from([5, 4096, 5000, 0, LARGEST + 1])
SIX_SIZES = st.tuples(*[SIZE] * 6)
SOME_ID = st.integers(0, 10)
"""Of those that were told: 0 is the last of them."""


class Table(RuleBasedStateMachine):
    folders: ClassVar[Iterator[Path]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = next(self.folders)
        self.stack = contextlib.ExitStack()
        self.told: dict[int, Slot] = {}
        self.handles: Counter[int] = Counter()
        """That the kernel has open."""
        self.pythons: dict[int, int] = {}
        """Where the open handles of one that was taken are counted."""

    @initialize(pushes=st.booleans(), storing=st.sampled_from(Storing), drains=st.booleans(), sizes=SIX_SIZES)
    def begin(self, pushes: bool, storing: Storing, drains: bool, sizes: tuple[int, ...]) -> None:
        self.drains = drains
        for directory in DIRECTORIES:
            (self.folder / "source" / str(directory)).mkdir(parents=True)
        self.objects = self.folder / "objects"
        self.objects.mkdir()
        self.stack.callback(shutil.rmtree, self.folder)
        objects_fd = os.open(self.objects, os.O_RDONLY)
        self.stack.callback(os.close, objects_fd)
        if storing is Storing.OBJECTS and not reads_nowait(write_pattern(self.objects / "tried", 1, 10)):
            storing = Storing.NOWHERE  # this file system cannot be read without waiting
        self.model = Model(self.folder / "source", pushes, storing, numbers)
        self.counts_fd = os.memfd_create("counts")
        self.stack.callback(os.close, self.counts_fd)
        self.plane, self.kernel = self.stack.enter_context(serving(self.counts_fd))
        self.kernel.pid = 0  # it is not guessed what this thread does next
        self.table = SlotTable(self.plane)
        self.table.begin(next(ids))
        self.before = SmallFetches().figures()
        self.engine = SettledEngine(self.kernel, self.folder, largest_bytes=LARGEST)
        self.stack.callback(self.engine.stop, 10.0)
        self.engine.set_terms(pushes=pushes, passes=False, stores=storing is not Storing.BY_PYTHON)
        self.stack.callback(self.engine.set_terms, pushes=True, passes=False, stores=True)
        if storing is Storing.OBJECTS:
            self.engine.store_in(objects_fd, 0)
            self.engine.grant(range(next(numbers) + 1, MANY))
            self.engine.grant_room(MANY)
        self.stack.callback(self.give_back)
        for place, size in zip(itertools.product(DIRECTORIES, NAMES), sizes, strict=True):
            self.write(place, size, anew=False)
        for place in itertools.product(DIRECTORIES, NAMES[:1]):
            self.delegate(place, 0, Until.GOOD)
            self.look_up(place, [])

    def some(self, which: int) -> int:
        """A node id."""
        return list(self.told)[-1 - which % len(self.told)]

    def tell(self, node_id: int, slot: Slot) -> None:
        assert self.told.setdefault(node_id, slot) is slot, "an id stands for one file"
        assert slot.node_id in (0, node_id)
        slot.node_id = node_id

    # ---- the source ----

    @rule(place=PLACES, size=SIZE, anew=st.booleans())
    def write(self, place: Place, size: int, anew: bool) -> None:
        path, seed = self.model.path(place), next(seeds)
        written = os.fsencode(self.folder / "written") if anew else path
        write_pattern(written, seed, size)
        os.utime(written, ns=(mtime_of(seed), mtime_of(seed)))
        os.rename(written, path)

    @rule(place=PLACES, other=PLACES, change=st.sampled_from([os.rename, os.link, None]))
    def move(self, place: Place, other: Place, change: Callable[[bytes, bytes], None] | None) -> None:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            if change is None:
                os.unlink(self.model.path(place))
            else:
                change(self.model.path(place), self.model.path(other))

    # ---- Python ----

    @rule(act=DECISIONS, place=PLACES, which=SOME_ID, until=UNTIL)
    def decide(self, act: str, place: Place, which: int, until: Until) -> None:
        getattr(self, act)(place, which, until)

    def put(self, place: Place, _which: int, until: Until) -> None:
        """All names of a directory."""
        directory = place[0]
        found = {name: one for name in NAMES if (one := self.model.seen((directory, name))) is not None}
        seen = seen_names(list(found), list(found.values()), 0)
        errors = [self.model.put((directory, name), one, until) for name, one in found.items()]
        expected = errors.count(0), [index for index, error in enumerate(errors) if error == errno.ESTALE]
        assert self.table.put(directory, seen, bytearray(len(found)), valid_s=until.valid_s) == expected

    def delegate(self, place: Place, which: int, until: Until) -> None:
        directory, settled, careful, valid_s = place[0], which != 1, which % 2 == 0, max(0.0, until.valid_s)
        generation, path = next(loans), self.model.source / str(directory)
        self.model.delegate(directory, generation, until, settled=settled)
        self.engine.delegate_folder(directory, path, generation, valid_s=valid_s, settled=settled, careful=careful)

    def call_back(self, place: Place, which: int, _until: Until) -> None:
        asked = self.table.recall_directory if which % 2 else self.table.delegated_slots
        assert asked(place[0]) == self.model.take_entered(place[0], is_over=which % 2 == 1)

    def expire(self, place: Place, which: int, _until: Until) -> None:
        directories = {place[0]} if which else set(DIRECTORIES)
        slots = [slot for slot in self.model.slots.values() if slot.place[0] in directories]
        held = {slot.place for slot in slots if slot.look_ups}
        assert {(where, name) for where, names in self.table.expire(list(directories)) for name in names} == held
        for slot in slots:
            slot.until = Until.ENDED

    def sweep(self, _place: Place, _which: int, until: Until) -> None:
        """Those that are past their time, or all that the kernel does not hold."""
        at_most = 0 if until is Until.GOOD else MANY
        slots = [slot for slot in self.model.slots.values() if not slot.look_ups]
        gone = [slot.place for slot in slots if not at_most or slot.until is not Until.GOOD]
        found = [one for _ in range(1024) for one in self.table.sweep(at_most)]
        assert sorted(found) == sorted(self.model.slots.pop(place).place[0] for place in gone)

    def take(self, place: Place, which: int, _until: Until) -> None:
        if which % 2:
            self.took(self.table.take(*place), self.model.slots.get(place))
        else:
            self.took(self.table.take_id(self.some(which)), self.model.by_id(self.some(which)))

    def took(self, taken: TakenSlot | None, slot: Slot | None) -> None:
        assert (taken is None) == (slot is None)
        if taken is None or slot is None:
            return
        self.tell(taken.node_id, slot)
        assert (taken.directory_id, taken.name, taken.look_ups) == (*slot.place, slot.look_ups)
        assert (taken.valid_s > 0) == (slot.until is Until.GOOD)
        assert told(attributes_of(taken.seen, 0)) == told(slot.attributes)
        assert taken.opens == (slot.content.opens if slot.content is not None else 0) == self.handles[taken.node_id]
        if taken.opens:
            self.pythons[taken.node_id] = self.table.count(taken.node_id, taken.opens)
            assert self.plane.count(self.pythons[taken.node_id]) == taken.opens
        self.table.written_down(taken)
        del self.model.slots[slot.place]

    def evict(self, _place: Place, which: int, _until: Until) -> None:
        """An object."""
        if versions := list(self.model.objects):
            self.plane.take_object(self.model.objects.pop(versions[which % len(versions)]))

    def trim(self, _place: Place, _which: int, _until: Until) -> None:
        """Bytes that are in an object too."""
        let_go_of_staged_bytes()
        self.model.trim()

    def become_stateless(self, _place: Place, _which: int, _until: Until) -> None:
        self.table.become_stateless()
        self.model.stateless = True

    @rule(places=st.lists(PLACES, min_size=1, max_size=3, unique=True))
    def ahead(self, places: list[Place]) -> None:
        errors = list(self.engine.ahead(places))
        self.engine.settle()
        for place, error in zip(places, errors, strict=True):
            slot = self.model.slots.get(place)
            is_here = slot is not None and slot.content is not None
            assert error == (errno.ENOENT if place[0] not in self.model.delegated else errno.EEXIST if is_here else 0)
            if not error:
                self.model.job(place, fetch=True, ahead=True)

    # ---- the kernel ----

    @rule(place=PLACES, acts=ACTS)
    def look_up(self, place: Place, acts: list[str]) -> None:
        found, slot = self.kernel.entry(*place), self.model.look_up(place)
        assert (found is None) == (slot is None)
        if found is not None and slot is not None:
            self.tell(found[0], slot)
            assert told(found[1]) == told(slot.attributes)
            self.use(found[0], acts)

    @rule(which=SOME_ID, acts=ACTS)
    def go_on(self, which: int, acts: list[str]) -> None:
        self.use(self.some(which), acts)

    def use(self, node_id: int, acts: list[str]) -> None:
        for act in acts:
            slot = self.model.by_id(node_id)
            if act == "open" and (slot is None or slot.look_ups):
                slot = self.model.open(node_id)
                found = self.kernel.open(node_id, surely=slot is not None)
                assert found == (None if slot is None else (node_id, 2, 0))
                self.handles[node_id] += found is not None
            elif act == "close":
                self.close(node_id)
            elif act == "again" and slot is not None:
                self.let_go(slot)
                self.look_up(slot.place, [])
            elif act == "stat":
                slot = self.model.stat(node_id)
                assert told(self.kernel.stat(node_id)) == (told(slot.attributes) if slot is not None else None)
            elif act in READS and (slot is None or slot.size):
                place = READS[act]
                assert self.kernel.read(node_id, *place, node_id) == self.model.read(node_id, *place)

    def let_go(self, slot: Slot) -> None:
        for _ in range(self.handles[slot.node_id]):
            self.close(slot.node_id)
        self.kernel.forget(slot.node_id, slot.look_ups)
        self.model.forget(slot.node_id, slot.look_ups)

    def close(self, node_id: int) -> None:
        slot = self.model.by_id(node_id)
        content = slot.content if slot is not None else None
        is_told = content is not None and content.opens > 0
        assert self.kernel.release(node_id, node_id) == is_told
        if content is not None and is_told:
            content.opens -= 1
        elif node_id in self.pythons:
            self.close_of_python(node_id)
        self.handles[node_id] -= self.handles[node_id] > 0

    def close_of_python(self, node_id: int) -> None:
        if not self.plane.closed(self.pythons[node_id]):
            self.plane.free_counter(self.pythons.pop(node_id))

    @rule(each=st.lists(st.tuples(SOME_ID, st.sampled_from([1, 1, 2, 1 << 40])), min_size=1, max_size=3))
    def forget(self, each: list[tuple[int, int]]) -> None:
        """One, or a batch; and more often than it was told."""
        asked = []
        for which, count in each:
            node_id = self.some(which)
            slot = self.model.by_id(node_id)
            if slot is not None and self.handles[node_id]:
                count = min(count, slot.look_ups - 1)
            asked.append((node_id, count))
            self.model.forget(node_id, count)
        if len(asked) == 1:
            self.kernel.forget(*asked[0])
        else:
            self.kernel.forget_all([(7, 1), *asked])

    @invariant()
    def it_is_the_model(self) -> None:
        slots = self.model.slots
        heard = [Outcome.of(one) for one in self.engine.heard]
        assert heard == self.model.outcomes
        assert self.kernel.pushed == self.model.pushed
        for outcome in heard:
            if outcome.kind is FetchKind.STORED and outcome.version is not None:
                object_path = self.objects / f"{outcome.number % 256:02x}" / str(outcome.number)
                assert object_path.read_bytes() == data_of(outcome.version)
        for each in (self.engine.heard, self.model.outcomes, self.kernel.pushed, self.model.pushed):
            each.clear()
        assert self.table.figures()[:2] == (len(slots), sum(slot.look_ups > 0 for slot in slots.values()))
        for directory in DIRECTORIES:
            good = {name for (where, name), slot in slots.items() if where == directory and slot.until is Until.GOOD}
            unknown = set(NAMES) - good
            assert set(self.table.unknown(directory, NAMES)) == unknown
        found, before = self.engine.figures(), self.before
        assert found.reads - before.reads == self.model.reads
        assert found.contents - before.contents == sum(slot.content is not None for slot in slots.values())
        assert found.versions - before.versions == len(self.model.objects)
        assert found.jobs == 0

    def teardown(self) -> None:
        with self.stack:
            if sys.exception() is None and hasattr(self, "model"):
                self.leave()

    def leave(self) -> None:
        if self.drains:
            for slot in self.model.slots.values():
                self.let_go(slot)
            for node_id in list(self.handles.elements()):
                self.close(node_id)
            self.sweep((0, b""), 0, Until.GOOD)
            self.it_is_the_model()
            assert not self.model.slots
        self.engine.stop(10)
        self.plane.stop()
        # The next daemon finds who has what open, and nothing else.
        left = self.plane.attach(self.counts_fd)
        assert left is not None
        assert {handle: one.open for handle, one in left.handles.items() if handle != 1} == {
            node_id: self.handles[node_id] for node_id in self.pythons
        }
        assert left.directories == Counter(directory for directory, _ in self.model.slots)
        for slot in list(self.model.slots.values()):
            self.took(self.table.take(*slot.place), slot)
        for node_id in list(self.handles.elements()):
            self.close_of_python(node_id)
        found = self.engine.figures()
        assert (found.contents, found.buffer_bytes) == (self.before.contents, self.before.buffer_bytes)

    def give_back(self) -> None:
        for directory in (2, *DIRECTORIES):
            self.table.recall_directory(directory)
        for number in self.model.objects.values():
            self.plane.take_object(number)


@pytest.mark.timeout(300)  # where it fails it looks for the shortest way there
def test_the_table_is_the_model(tmp_path: Path) -> None:
    Table.folders = (tmp_path / str(number) for number in itertools.count())
    how = settings(max_examples=examples(40), stateful_step_count=50, phases=[Phase.generate, Phase.shrink])
    run_machine(Table, settings=how)
