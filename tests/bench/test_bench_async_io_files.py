"""The parts of the groups of whole files of `scripts/bench async-io`: the job, the bound, the figures of the source."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benchmarks import common
from scripts.benchmarks.async_io_belady_bound import least_source_bytes
from scripts.benchmarks.async_io_files import FileSet, check_followed, job
from scripts.benchmarks.readers.shuffle import order


@pytest.fixture
def work(tmp_path: Path) -> common.Work:
    return common.Work(tmp_path / "work")


@pytest.fixture
def files(work: common.Work, tmp_path: Path) -> FileSet:
    for number in range(70):
        path = tmp_path / "tree" / f"class_{number % 3}" / f"a file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (1000 + number))
    return FileSet(work, tmp_path / "tree")


# --- The job


@pytest.mark.slow
def test_a_job_that_finds_other_bytes_or_fails_is_an_error(files: FileSet) -> None:
    (files.folder / files.names[5]).write_bytes(b"too few")
    with job(files, files.folder, 0) as program:
        with pytest.raises(common.BenchError, match="were read of"):
            program.epoch(1, seed=1)
        (files.folder / files.names[5]).unlink()
        with pytest.raises(common.BenchError, match="exit code 1"):
            program.epoch(2, seed=1)


def mount_that_says(**more: object) -> common.Mount:
    said = {"epochs": [3], "hinted_bytes": 5, "missing": 0, "refused": 0, **more}
    status = {
        "hints": {"learners": [{"epoch": epoch} for epoch in said["epochs"]]},
        "ahead": {"hinted_bytes": said["hinted_bytes"]},
        "counters": {f"hints_{name}": {"value": said[name], "meaning": ""} for name in ("missing", "refused")},
    }
    mount = common.Mount.__new__(common.Mount)
    mount.status = lambda: status  # type: ignore[method-assign]  # a mount that is none
    return mount


def test_a_hint_that_was_not_followed_is_an_error() -> None:
    check_followed(mount_that_says(), 3)
    for wrong in ({"epochs": []}, {"epochs": [2]}, {"hinted_bytes": 0}, {"missing": 1}, {"refused": 1}):
        with pytest.raises(common.BenchError, match="not followed"):
            check_followed(mount_that_says(**wrong), 3)


# --- The least that any cache reads


def least_by_trying(requests: Sequence[int], capacity: int) -> int:
    """Of pages of one byte: every way to keep pages is tried."""

    @lru_cache(None)
    def least(position: int, kept: frozenset[int]) -> int:
        if position == len(requests):
            return 0
        page = requests[position]
        here = kept | {page}
        ways = [frozenset(chosen) for chosen in combinations(here, min(capacity, len(here)))]
        return (page not in kept) + min(least(position + 1, way) for way in ways)

    return least(0, frozenset())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 4))
def test_no_cache_of_pages_reads_less(requests: list[int], capacity: int) -> None:
    assert sum(bound([requests], [1] * 5, capacity)) == least_by_trying(requests, capacity)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), min_size=5, max_size=5),
    st.integers(0, 12),
)
def test_a_file_is_as_many_pages_as_it_has_bytes(orders: list[list[int]], sizes: list[int], capacity: int) -> None:
    pages = [range(sum(sizes[:file]), sum(sizes[: file + 1])) for file in range(5)]
    paged = [[page for file in requests for page in pages[file]] for requests in orders]
    assert bound(orders, sizes, capacity) == bound(paged, [1] * sum(sizes), capacity)


def bound(orders: Sequence[Sequence[int]], sizes: Sequence[int], capacity: int) -> list[int]:
    return least_source_bytes([np.array(each, np.int64) for each in orders], np.array(sizes, np.int64), capacity)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_of_whole_epochs_in_any_order_no_more_than_the_cache_holds_is_saved(share: float) -> None:
    """All that is in the cache when an epoch begins is what is saved in it: Belady can do no better than fill-once."""
    sizes = np.arange(1, 101)
    total, capacity = int(sizes.sum()), int(share * sizes.sum())
    first, *later = least_source_bytes([order(100, 7, epoch) for epoch in range(5)], sizes, capacity)
    assert first == total
    assert later == [total - capacity] * 4
