"""What overlays are told of slots, without Python, asked as the kernel asks: of each object whether it is there, and
then where; what was told is heard of, and what is to go is told to nobody."""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.core.attributes import Attributes, seen_names
from hfs.mountd.kernel import DataPlane, KnownObject, SlotTable, SmallFetches, XattrAnswers
from hfs.policies.iomode import SMALL_BYTES
from tests.support.plane_kernel import Kernel, serving

FIRST = 1 << 62
METACOPY, REDIRECT = b"trusted.overlay.metacopy", b"user.overlay.redirect"
NONE = errno.ENODATA


class Plane:
    """With one staged slot, of object 5."""

    def __init__(self, kernel: Kernel, data_plane: DataPlane, objects: Path) -> None:
        self.kernel, self.data_plane, self.objects = kernel, data_plane, objects
        slots = SlotTable(data_plane)
        self.answers = XattrAnswers()
        self.answers.tell_overlays(True)
        (objects / "05").mkdir(parents=True)
        self.object = objects / "05" / "5"
        self.object.write_bytes(b"staged")
        self.directory = os.open(objects, os.O_RDONLY)
        self.slots, self.fetches = slots, SmallFetches()
        self.fetches.store_in(self.directory, 0)
        slots.begin(FIRST)
        self.know(5, 70, self.object)
        (self.node,) = self.nodes(3, [b"a"], 70, 6)

    def know(self, number: int, inode: int, place: Path) -> None:
        """The object of the file with this inode."""
        found = os.stat(place)
        self.fetches.know([KnownObject(number, found.st_ino, 0, inode, found.st_size, found.st_ctime_ns, 2, 3)])

    def nodes(self, directory: int, names: list[bytes], inode: int, size: int) -> list[int]:
        """Of slots whose inodes begin with this one."""
        plain = Attributes(stat.S_IFREG | 0o640, inode, 1, 1000, 100, 0, size, 8, 4096, 1, 2, 3)
        attributes = [plain._replace(inode=inode + number) for number in range(len(names))]
        seen = seen_names(names, attributes, 0)
        assert self.slots.put(directory, seen, bytearray(len(names)), valid_s=1000) == (len(names), [])
        found = [self.kernel.look_up(directory, name) for name in names]
        return [each[0] for each in found if each is not None]

    def told(self, *names: bytes) -> list[int | bytes | None]:
        return [self.kernel.xattr(self.node, name) for name in names]

    def heard(self) -> list[int]:
        numbers, some_are_lost = self.answers.stop_telling([])
        assert not some_are_lost
        return list(numbers)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with serving() as (data_plane, kernel):
        made = Plane(kernel, data_plane, tmp_path / "objects")
        made.heard()
        yield made
        made.answers.tell_overlays(False)
        made.answers.tell_again([5])
        made.slots.begin(0)
        made.slots.take(3, b"a")
        data_plane.take_object(5)
        SmallFetches().store_in(-1, 0)
        os.close(made.directory)


def test_what_was_told_is_heard_of_once(plane: Plane) -> None:
    assert plane.told(METACOPY, REDIRECT) == [b"", b"/05/5"]
    assert plane.kernel.xattr(plane.node, METACOPY, room=0) == struct.pack("=II", 0, 0)
    assert plane.kernel.xattr(plane.node, REDIRECT, room=0) == struct.pack("=II", 5, 0)
    assert plane.kernel.xattr(plane.node, REDIRECT, room=4) == errno.ERANGE
    assert plane.heard() == [5]
    assert plane.heard() == []


def test_other_names_are_answered_for_all_nodes(plane: Plane) -> None:
    assert plane.told(b"user.overlay.opaque", b"trusted.overlay.origin") == [NONE, NONE]
    assert plane.kernel.xattr(99, b"trusted.overlay.opaque") == NONE
    assert plane.kernel.xattr(99, METACOPY) is None, "that is Python's"
    plane.answers.tell_overlays(False)
    assert plane.told(METACOPY, b"user.overlay.opaque") == [None, None]


def test_what_is_to_go_is_told_no_more_but_who_heard_of_it_finds_it(plane: Plane) -> None:
    assert plane.told(METACOPY) == [b""]
    told, _ = plane.answers.stop_telling([5, 6])
    assert list(told) == [5]
    assert plane.told(METACOPY, REDIRECT) == [NONE, b"/05/5"], "its look-up would fail"
    assert plane.heard() == []
    plane.answers.tell_again([5, 6])
    assert plane.told(METACOPY) == [b""]
    assert plane.heard() == [5]


def test_what_python_is_asked_for_next_python_says_all_of(plane: Plane) -> None:
    """The other object, perhaps, that it has by now."""
    assert plane.told(METACOPY) == [b""]
    plane.slots.take(3, b"a")
    assert plane.told(REDIRECT) == [b"/05/5"], "its look-up would fail"
    assert plane.told(METACOPY, REDIRECT) == [None, None]


def test_one_that_was_changed_is_told_to_nobody(plane: Plane) -> None:
    assert plane.told(METACOPY, REDIRECT) == [b"", b"/05/5"]
    os.utime(plane.object)  # which moves its ctime
    assert plane.told(METACOPY, REDIRECT) == [NONE, NONE]
    plane.object.unlink()
    assert plane.told(METACOPY, REDIRECT) == [NONE, NONE]


def test_who_has_heard_of_one_is_told_where_it_lies_whatever_has_become_of_it(plane: Plane) -> None:
    assert plane.told(METACOPY) == [b""]
    os.utime(plane.object)
    assert plane.told(REDIRECT) == [b"/05/5"], "its look-up would fail"


def test_nodes_that_share_a_place_have_nothing_to_do_with_each_other(plane: Plane) -> None:
    names = [b"%d" % number for number in range(5000)]
    nodes = plane.nodes(4, names, 1000, 6)
    other = next(node for node in nodes if node != plane.node and node % 4096 == plane.node % 4096)
    assert plane.told(METACOPY) == [b""]
    assert [plane.kernel.xattr(other, name) for name in (REDIRECT, METACOPY)] == [NONE, NONE]
    os.utime(plane.object)
    assert plane.told(REDIRECT) == [b"/05/5"]
    for name in names:
        plane.slots.take(4, name)


def test_what_may_have_several_chunks_is_pythons(plane: Plane) -> None:
    large = plane.objects / "05" / "large"
    with large.open("wb") as file:
        file.truncate(SMALL_BYTES + 1)
    plane.know(261, 90, large.rename(plane.objects / "05" / "261"))
    (node,) = plane.nodes(4, [b"large"], 90, SMALL_BYTES + 1)
    assert plane.kernel.xattr(node, METACOPY) is None
    plane.slots.take(4, b"large")
    plane.data_plane.take_object(261)


def test_others_are_told_nothing(plane: Plane) -> None:
    assert plane.told(METACOPY) == [b""]
    plane.heard()
    plane.kernel.uid = os.geteuid() + 1
    assert plane.told(METACOPY, REDIRECT) == [NONE, NONE]
    assert plane.heard() == []


def test_what_the_kernel_has_not_in_memory_is_looked_at_by_another_thread(plane: Plane) -> None:
    (plane.objects / "05").rename(plane.objects / "elsewhere")
    (plane.objects / "05").symlink_to("elsewhere")  # which is not followed where nothing may wait
    assert plane.kernel.late_xattr(plane.node, METACOPY) == b""
    assert plane.heard() == [5]
    os.utime(plane.object)
    assert plane.kernel.late_xattr(plane.node, METACOPY) == NONE
