"""The table of slots in C against the fake by which namespaces are tested; see test_table_model.py too."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfs.mountd.core.attributes import SEEN_BYTES, Attributes, attributes_of, seen_as, seen_names
from hfs.mountd.kernel import DataPlane, KnownObject, SlotTable, SmallFetches, XattrAnswers
from hfs.mountd.kernel.plane import Attached
from hfs.mountd.native.extension import EXTENSION
from tests.support.examples import examples
from tests.support.fake_slots import FakeSlotTable
from tests.support.plane_kernel import Kernel, reads_nowait, serving

FIRST = 1 << 62
DIRECTORIES = (3, 4)
NAMES = (b"a", b"b", b"a name of two hundred and fifty-five bytes".ljust(255, b"."))


@pytest.fixture
def served() -> Iterator[tuple[DataPlane, Kernel]]:
    with serving() as both:
        yield both


def of(inode: int, size: int, **others: int) -> Attributes:
    mode = stat.S_IFREG | 0o640
    return Attributes(mode, inode, 1, 1000, 100, 0, size, 8, 4096, -1, 2 * 10**9 + 5, 3 * 10**9 + 7)._replace(**others)


def put(
    table: FakeSlotTable | SlotTable, directory: int, name: bytes, attributes: Attributes, valid_s: float
) -> tuple[int, list[int]]:
    return table.put(directory, seen_names([name], [attributes], 0), bytearray(1), valid_s=valid_s)


def test_attributes_are_as_they_were_seen() -> None:
    for attributes in (of(5, 6), of(1 << 63, (1 << 63) - 1, atime_ns=-(10**10) - 3, device=9)):
        assert attributes_of(seen_as(attributes), 0) == attributes
        assert len(seen_as(attributes)) == SEEN_BYTES
    assert attributes_of(b"\2\0\0\0" + bytes(SEEN_BYTES - 4), 0) is None
    with pytest.raises(PermissionError):
        attributes_of(b"\15\0\0\0" + bytes(SEEN_BYTES - 4), 0)


def test_many_stats_are_those_of_python(tmp_path: Path) -> None:
    folder = os.fspath(tmp_path)
    os.mkdir(f"{folder}/directory")
    for name in ("file", "linked", "old"):
        with open(f"{folder}/{name}", "w") as file:
            file.write(name)
    os.link(f"{folder}/linked", f"{folder}/again")
    os.symlink("file", f"{folder}/link")
    os.utime(f"{folder}/old", ns=(-5, -(10**9) * 7 - 1))
    names = [b"file", b"linked", b"old", b"directory", b"link", b"none", b"x" * 256]
    fd = os.open(folder, os.O_PATH)
    device = os.fstat(fd).st_dev
    seen, plain, seconds, part = EXTENSION.look(fd, names, device)
    assert plain == bytearray([1, 1, 1, 0, 0, 0, 0])
    for index, name in enumerate(names[:5]):
        assert attributes_of(seen, index) == Attributes.of(os.lstat(os.path.join(os.fsencode(folder), name)))
    assert attributes_of(seen, 5) is None
    with pytest.raises(OSError, match="stat"):
        attributes_of(seen, 6)
    newest = max(os.stat(f"{folder}/{name}").st_ctime_ns for name in ("file", "linked", "old"))
    assert seconds * 10**9 + part == newest
    assert EXTENSION.look(fd, names, device + 1)[1] == bytearray(7)
    os.close(fd)


def attach(plane: DataPlane, kernel: Kernel, memory: int, terms: int = 0) -> Attached | None:
    """While no thread answers: it counts after its reply."""
    plane.stop()
    found = plane.attach(memory, terms)
    plane.start(kernel.device, 1)
    return found


def next_daemon(plane: DataPlane, kernel: Kernel, slots: SlotTable, memory: int, terms: int = 0) -> Attached | None:
    """What it finds. That of before has gone, and has freed nothing."""
    attach(plane, kernel, -1)
    slots.begin(FIRST + (1 << 40))
    return attach(plane, kernel, memory, terms)


def test_under_other_terms_nothing_is_good_any_more(served: tuple[DataPlane, Kernel]) -> None:
    """As where it was told that the source never changes, and now it is asked each second."""
    plane, kernel = served
    slots = SlotTable(plane)
    memory = os.memfd_create("table")
    slots.begin(FIRST)
    attach(plane, kernel, memory, 1)
    put(slots, 3, b"a", of(70, 6), 1000)
    told = kernel.look_up(3, b"a")
    assert told is not None
    assert next_daemon(plane, kernel, slots, memory, 2) == ({}, {3: 1})
    assert kernel.look_up(3, b"a") is kernel.attributes(told[0]) is kernel.open(told[0]) is None
    slot = slots.take_id(told[0])
    assert slot is not None
    assert (slot.name, slot.look_ups, slot.valid_s <= 0) == (b"a", 1, True)
    assert attach(plane, kernel, -1) == ({}, {})
    os.close(memory)


def test_where_users_are_to_be_asked_for_opens_are_pythons(served: tuple[DataPlane, Kernel]) -> None:
    """Of a staged file too, in a directory that was never delegated."""
    plane, kernel = served
    slots = SlotTable(plane)
    slots.begin(FIRST)
    put(slots, 3, b"empty", of(70, 0), 1000)
    told = kernel.look_up(3, b"empty")
    assert told is not None
    SmallFetches().know([KnownObject(300, 1, 0, 70, 0, 0, 2 * 10**9 + 5, 3 * 10**9 + 7)])
    assert kernel.open(told[0]) is not None
    XattrAnswers.ask_for_opens(True)
    assert kernel.open(told[0]) is None
    XattrAnswers.ask_for_opens(False)
    plane.take_object(300)


def test_the_next_daemon_answers_as_the_one_before(served: tuple[DataPlane, Kernel]) -> None:
    """What was told of each file, how often it was looked up, and until when it is good."""
    plane, kernel = served
    slots = SlotTable(plane)
    memory = os.memfd_create("table")
    slots.begin(FIRST)
    assert attach(plane, kernel, memory) == ({}, {})
    for number, name in enumerate(NAMES):
        put(slots, 3, name, of(70 + number, number), 1000)
    put(slots, 4, b"past", of(80, 0), 0)
    found = [kernel.look_up(3, name) for name in NAMES]
    assert next_daemon(plane, kernel, slots, memory) == ({}, {3: len(NAMES), 4: 1})
    assert [kernel.look_up(3, name) for name in NAMES] == found
    assert kernel.look_up(4, b"past") is None
    put(slots, 4, b"new", of(90, 0), 1000)
    new = kernel.look_up(4, b"new")
    assert new is not None
    assert new[0] >= FIRST + (1 << 40)
    for name, told in zip(NAMES, found, strict=True):
        assert told is not None
        slot = slots.take(3, name)
        assert slot is not None
        assert (slot.node_id, slot.look_ups, slot.opens) == (told[0], 2, 0)
    assert attach(plane, kernel, -1) == ({}, {})
    os.close(memory)


def test_a_file_whose_memory_is_damaged_is_none(served: tuple[DataPlane, Kernel]) -> None:
    """Any byte of what says where it is and which version."""
    plane, kernel = served
    slots = SlotTable(plane)
    memory = os.memfd_create("table")
    slots.begin(FIRST)
    attach(plane, kernel, memory)
    put(slots, 3, b"abc", of(70, 6), 1000)
    found = kernel.look_up(3, b"abc")
    assert found is not None
    attach(plane, kernel, -1)
    there = os.pread(memory, os.fstat(memory).st_size, 0)
    name = there.index(b"\3abc")
    node_id = there.rindex(found[0].to_bytes(8, "little"), 0, name)
    inode = there.index((70).to_bytes(8, "little"), node_id)
    for damaged in (name, name + 3, node_id + 1, node_id + 8, inode, inode + 8):
        os.pwrite(memory, bytes([there[damaged] ^ 1]), damaged)
        assert next_daemon(plane, kernel, slots, memory) == ({}, {}), damaged
        attach(plane, kernel, -1)
        os.pwrite(memory, there, 0)
    assert next_daemon(plane, kernel, slots, memory) == ({}, {3: 1})
    assert attach(plane, kernel, -1) == ({}, {})
    os.close(memory)


def test_those_of_some_directories_are_past_their_time_at_once(served: tuple[DataPlane, Kernel]) -> None:
    """And it is told which of them the kernel knows. The others are answered as before."""
    plane, kernel = served
    slots = SlotTable(plane)
    slots.begin(FIRST)
    for directory in (3, 4, 5):
        for number in range(200):
            put(slots, directory, b"%d" % number, of(1000 * directory + number, 6), 1000)
    for number in range(0, 200, 2):
        assert kernel.look_up(3, b"%d" % number)
        assert kernel.look_up(4, b"%d" % number)
    seen = slots.seen(3, [b"7", b"none"])
    assert seen is not None
    assert attributes_of(seen, 0) == of(3007, 6)
    assert attributes_of(seen, 1) is None
    held = dict(slots.expire([5, 3]))
    assert set(held) == {3}
    assert set(held[3]) == {b"%d" % number for number in range(0, 200, 2)}
    names = [b"%d" % number for number in range(200)]
    assert (slots.unknown(3, names), slots.unknown(4, names), slots.unknown(5, names)) == (names, [], names)
    assert kernel.look_up(3, b"2") is None
    assert kernel.look_up(4, b"2")
    slot = slots.take(3, b"2")
    assert slot is not None
    assert (slot.look_ups, slot.valid_s < 0) == (1, True)
    seen = slots.seen(3, [b"7"])
    assert seen is not None
    assert attributes_of(seen, 0) is None
    assert put(slots, 3, b"7", of(3007, 6), 1000) == (0, []), "the same version: as good as new"
    assert kernel.look_up(3, b"7")
    assert slots.expire([]) == []


def test_another_mount_begins_with_none(served: tuple[DataPlane, Kernel]) -> None:
    plane, kernel = served
    slots = SlotTable(plane)
    slots.begin(FIRST)
    put(slots, 3, b"a", of(70, 6), 1000)
    found = kernel.look_up(3, b"a")
    assert found is not None
    slots.begin(FIRST + (1 << 40))
    assert kernel.look_up(3, b"a") is kernel.attributes(found[0]) is None
    assert slots.figures()[:2] == (0, 0)


def test_reads_of_a_leaf_come_from_its_object(served: tuple[DataPlane, Kernel], tmp_path: Path) -> None:
    plane, kernel = served
    data = bytes(range(250)) * 4
    (tmp_path / "2c").mkdir()
    path = tmp_path / "2c" / "300"
    path.write_bytes(data)
    directory_fd = os.open(tmp_path, os.O_PATH)
    if not reads_nowait(path):
        pytest.skip("this file system cannot be read without waiting")
    slots = SlotTable(plane)
    slots.begin(FIRST)
    found = seen_names([b"a", b"b"], [of(70, len(data)), of(71, 5)], 0)
    assert slots.put(3, found, bytearray(2), valid_s=1000, objects=[300, 301]) == (2, [])
    put(slots, 3, b"c", of(72, 5), 1000)
    told = kernel.look_up(3, b"a")
    assert told is not None
    assert kernel.read(told[0], 0, 100, 0) is None, "nobody has said that it is right"
    stamp = os.stat(path)
    assert plane.put_object(300, stamp.st_ino, stamp.st_ctime_ns - 1, len(data))
    assert plane.put_object(300, stamp.st_ino, stamp.st_ctime_ns, len(data))
    assert kernel.read(told[0], 0, 100, 0) is None, "nor where it lies"
    plane.read_staged(directory_fd)
    assert kernel.read(told[0], 0, 4096, 0) == data
    assert kernel.read(told[0], 990, 100, 0) == data[990:]
    assert kernel.read(told[0], 1000, 100, 0) == kernel.read(told[0], 1 << 60, 1, 0) == b""
    others = [kernel.look_up(3, name) for name in (b"b", b"c")]
    assert [kernel.read(other[0], 0, 5, 0) for other in others if other is not None] == [None, None]
    put(slots, 3, b"empty", of(73, 0), 1000)
    empty = kernel.look_up(3, b"empty")
    assert empty is not None
    slots.become_stateless()
    assert kernel.look_up(3, b"empty") is kernel.attributes(empty[0]) is None, "whether it is, is tried before"
    assert kernel.look_up(3, b"a") == told
    assert kernel.read(told[0], 0, 100, 1) is None, "somebody has it open"
    plane.take_object(300)
    assert kernel.read(told[0], 0, 4096, 0) is None, "it is about to change"
    plane.take_object(300)
    assert plane.put_object(300, stamp.st_ino, stamp.st_ctime_ns, len(data))
    assert kernel.read(told[0], 0, 4096, 0) == data
    path.write_bytes(data)
    assert kernel.read(told[0], 0, 4096, 0) is None, "somebody has changed it"
    path.unlink()
    assert kernel.read(told[0], 0, 4096, 0) is None
    plane.read_staged(-1)
    os.close(directory_fd)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put past", "take", "take id", "look up", "attributes", "forget", "sweep"]),
        st.sampled_from(list(product(DIRECTORIES, NAMES))),
        st.integers(1, 3),
    ),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_it_is_the_plain_dictionary(
    served: tuple[DataPlane, Kernel], steps: list[tuple[str, tuple[int, bytes], int]]
) -> None:
    plane, kernel = served
    table, model = SlotTable(plane), FakeSlotTable(lambda: 0.0)
    ids: dict[int, int] = {}
    """The model's id of each of the table's."""
    for each in (table, model):
        each.begin(FIRST)
    for step, (directory, name), number in steps:
        mine = next((one for one, its in ids.items() if its % 3 == number % 3), FIRST)
        if step.startswith("put"):
            valid_s = 1000.0 if step == "put" else -1.0
            answers = [put(each, directory, name, of(number, number), valid_s) for each in (table, model)]
            assert answers[0] == answers[1]
        elif step in ("take", "take id"):
            slot, expected = (
                (table.take(directory, name), model.take(directory, name))
                if step == "take"
                else (table.take_id(mine), model.take_id(ids.get(mine, 0)))
            )
            assert (slot is None) == (expected is None)
            if slot is not None and expected is not None:
                assert slot[1:4] == expected[1:4]
                assert slot.seen == expected.seen
        elif step == "look up":
            found, known = kernel.look_up(directory, name), model.look_up(directory, name)
            assert (found is None) == (known is None)
            if found is not None and known is not None:
                assert ids.setdefault(found[0], known.node_id) == known.node_id, "an id is one file's"
                assert found[1] == known.version.inode
        elif step == "attributes":
            attributes, known = kernel.attributes(mine), model.attributes(ids.get(mine, 0))
            assert (attributes or (None,))[0] == (known.version.inode if known is not None else None)
        elif step == "forget":
            kernel.forget(mine, number)
            model.forget(ids.get(mine, 0), number)
        else:
            # All, or those past their time: which others go first is for each to say.
            at_most = 0 if number == 1 else 2 * len(NAMES)
            swept = [each.sweep(at_most) for _ in range(1024) for each in (table, model)]
            assert sum(map(len, swept[::2])) == sum(map(len, swept[1::2]))
        for where, names in ((one, list(NAMES)) for one in DIRECTORIES):
            assert table.unknown(where, names) == model.unknown(where, names)
        assert table.figures()[:2] == (len(model.slots), sum(bool(kept.look_ups) for kept in model.slots.values()))
