"""What jobs have read, from opens and from reads that reached the daemon."""

from hfs.policies.traffic import Estimate, ReadCounts, estimated

NOTHING = ReadCounts(0, 0, 0, 0, 0, 0)


def test_small_files_count_once_for_each_open() -> None:
    """Ten opens of 100 bytes: the first read came from the daemon, the others from the page cache."""
    assert estimated(NOTHING._replace(cached_bytes=1000, read_bytes=100)) == Estimate(1000, False, 0, 900)
    passed = NOTHING._replace(cached_bytes=1000, passed_bytes=500, read_bytes=100)
    assert estimated(passed) == Estimate(1500, False, 500, 900)


def test_what_was_fetched_just_then_is_not_from_memory() -> None:
    """A cold epoch: fetched, and put into the page cache before it was asked for. Then another one."""
    cold = NOTHING._replace(cached_bytes=1000, fetched_bytes=1000)
    assert estimated(cold) == Estimate(1000, False, 0, 0)
    assert estimated(cold._replace(cached_bytes=2000)) == Estimate(2000, False, 0, 1000)
    assert estimated(cold._replace(read_bytes=400)) == Estimate(1000, False, 0, 0)


def test_more_reads_than_opens_are_believed() -> None:
    """Who keeps a file open and reads it again and again, past the page cache."""
    assert estimated(NOTHING._replace(cached_bytes=100, read_bytes=700)) == Estimate(700, False)


def test_of_large_files_only_the_least_is_known() -> None:
    assert estimated(NOTHING._replace(read_bytes=900, large_read_bytes=900)) == Estimate(900, True)
    assert estimated(NOTHING._replace(large_passed=1)) == Estimate(0, True)
    assert estimated(NOTHING._replace(cached_bytes=50, read_bytes=950, large_read_bytes=900)) == Estimate(950, True)


def test_opens_that_nobody_sees_make_it_the_least() -> None:
    assert estimated(NOTHING._replace(read_bytes=10, unseen_opens=1)) == Estimate(10, True)
