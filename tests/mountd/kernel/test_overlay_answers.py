"""What overlays are told of leaves, without Python, asked as the kernel asks: of each object whether it is there, and
then where; what was told is heard of, and what is to go is told to nobody."""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.base.object_maker import KnownObject
from hfs.mountd.base.seen import seen_names
from hfs.mountd.kernel import PlaneLeaves, SmallFetches, XattrAnswers, fastpath
from tests.support.plane_kernel import Kernel, serving

pytestmark = pytest.mark.skipif(not fastpath.is_loaded(), reason="without the extension all come to Python")

FIRST = 1 << 62
METACOPY, REDIRECT = b"trusted.overlay.metacopy", b"user.overlay.redirect"
NONE = errno.ENODATA


class Plane:
    """With one staged leaf, of object 5."""

    def __init__(self, kernel: Kernel, leaves: PlaneLeaves, objects: Path) -> None:
        self.kernel, self.leaves, self.objects = kernel, leaves, objects
        self.answers = XattrAnswers()
        self.answers.tell_overlays(True)
        (objects / "05").mkdir(parents=True)
        self.object = objects / "05" / "5"
        self.object.write_bytes(b"staged")
        self.directory = os.open(objects, os.O_RDONLY)
        fetches = SmallFetches()
        fetches.store_in(self.directory, 0)
        found = os.stat(self.object)
        fetches.know([KnownObject(5, found.st_ino, 0, 70, 6, found.st_ctime_ns, 2, 3)])
        leaves.begin(FIRST, 0)
        attributes = Attributes(stat.S_IFREG | 0o640, 70, 1, 1000, 100, 0, 6, 8, 4096, 1, 2, 3)
        assert leaves.put(3, seen_names([b"a"], [attributes], 0), bytearray(1), valid_s=1000) == (1, [])
        looked_up = kernel.look_up(3, b"a")
        assert looked_up is not None
        self.node = looked_up[0]

    def told(self, *names: bytes) -> list[int | bytes | None]:
        return [self.kernel.xattr(self.node, name) for name in names]

    def heard(self) -> list[int]:
        numbers, some_are_lost = self.answers.stop_telling([])
        assert not some_are_lost
        return list(numbers)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with serving() as (data_plane, kernel):
        leaves = PlaneLeaves(data_plane)
        made = Plane(kernel, leaves, tmp_path / "objects")
        made.heard()
        yield made
        made.answers.tell_overlays(False)
        made.answers.tell_again([5])
        leaves.end()
        leaves.take(3, b"a")
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
    plane.leaves.take(3, b"a")
    assert plane.told(REDIRECT) == [b"/05/5"], "its look-up would fail"
    assert plane.told(METACOPY, REDIRECT) == [None, None]


def test_one_that_was_changed_is_told_to_nobody(plane: Plane) -> None:
    assert plane.told(METACOPY, REDIRECT) == [b"", b"/05/5"]
    os.utime(plane.object)  # which moves its ctime
    assert plane.told(METACOPY, REDIRECT) == [NONE, NONE]
    plane.object.unlink()
    assert plane.told(METACOPY, REDIRECT) == [NONE, NONE]


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
