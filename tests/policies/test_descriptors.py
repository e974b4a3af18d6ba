"""Shares of the descriptors: everything where there are many, something left for calls where there are few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.descriptors import shares


@pytest.mark.parametrize(
    ("limit", "directories", "staged", "idle_files", "scarce"),
    [
        (65_536, 1024, 1024, 128, False),
        (4096, 1024, 1024, 128, False),
        (1024, 352, 264, 88, True),
        (256, 64, 48, 16, True),
        (64, 4, 4, 4, True),
    ],
)
def test_what_each_cache_may_keep(limit: int, directories: int, staged: int, idle_files: int, scarce: bool) -> None:
    found = shares(limit)
    assert (found.directories, found.staged, found.idle_files) == (directories, staged, idle_files)
    assert found.scarce == scarce


@given(st.integers(192, 1 << 20))
def test_some_are_left_for_calls_under_way(limit: int) -> None:
    found = shares(limit)
    assert found.directories + found.staged + found.idle_files <= limit - 128
