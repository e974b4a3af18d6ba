"""Hanging calls: half of every directory's threads is left to the neighbours of whatever hangs in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.source.places import Hanging

NAMES = st.sampled_from([b"a", b"b", b"c"])
DIRECTORIES = st.lists(NAMES, max_size=5).map(b"/".join)


def taken(hanging: Hanging, directory: bytes) -> int:
    """How many calls hang once nobody is admitted any more."""
    count = 0
    while hanging.admits(directory):
        hanging.began(directory)
        count += 1
    return count


@pytest.mark.parametrize(
    ("directory", "most"), [(b"", 512), (b"a", 256), (b"a/b", 128), (b"a/b/c", 64), (b"a/b/c/d/e/f/g/h/i/j", 8)]
)
def test_a_directory_may_have_half_of_what_its_parent_may(directory: bytes, most: int) -> None:
    assert taken(Hanging(512), directory) == most


def test_what_hangs_leaves_its_neighbours_as_much() -> None:
    hanging = Hanging(512)
    assert taken(hanging, b"train/s3") == 128
    assert hanging.admits(b"train/s1")
    assert hanging.admits(b"train")
    assert taken(hanging, b"train/s1") == 128
    assert not hanging.admits(b"train/s2")
    assert hanging.admits(b"val")


def test_a_thousand_directories_that_hang_below_one_leave_half_to_the_others() -> None:
    hanging = Hanging(512)
    for number in range(1000):
        if hanging.admits(b"train/%d" % number):
            hanging.began(b"train/%d" % number)
    assert len(hanging) == 256
    assert hanging.admits(b"val/1")


@given(st.lists(DIRECTORIES, max_size=300), st.integers(1, 64))
def test_it_never_admits_more_than_it_may_and_forgets_what_has_ended(calls: list[bytes], most: int) -> None:
    hanging, under_way = Hanging(most), []
    for directory in calls:
        if hanging.admits(directory):
            hanging.began(directory)
            under_way.append(directory)
    assert len(hanging) == len(under_way) <= most
    for directory in under_way:
        hanging.ended(directory)
    assert (len(hanging), dict(hanging._below)) == (0, {})
    assert all(hanging.admits(directory) for directory in calls)
