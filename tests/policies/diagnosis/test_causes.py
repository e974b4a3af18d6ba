"""Each cause in a situation that shows it alone, beside what does not show it."""

from dataclasses import replace

import pytest

from hfs.policies.diagnosis.causes import found, nothing, waits_for
from hfs.policies.diagnosis.situation import Situation

BLOCKED = Situation(readers=8, learners=8, cores=16, minute_source_wait_s=8 * 30.0, minute_source_bytes=10**9)
"""Eight readers wait half of their time for the source."""
DECODING = Situation(readers=4, learners=1, cores=16, workers=4, exposed_s=30.0, epoch_s=100.0)
FULL = replace(BLOCKED, learners=0, disk_state="full", room_bytes=73_400_000, capacity_bytes=73_400_000)
FIRST = replace(BLOCKED, learners=0, readers=3, minute_staged_bytes=10**9)
"""Nobody could fetch ahead for them, and each byte comes from the source once."""

SITUATIONS = {
    "no-hint": replace(BLOCKED, learners=0),
    "random-order": replace(BLOCKED, large_read_bytes=10**9, bypass_bytes=8 * 10**8),
    "cache-size": FULL,
    "links": replace(Situation(readers=1), absolute_links=3),
    "source": BLOCKED,
    "workers": DECODING,
    "inode-numbers": replace(BLOCKED, learners=0, renumbered=10, version_changes=19),
    "handles": Situation(readers=2, slow_handles=4),
    "cache-disk": replace(BLOCKED, staging_behind=500, staged_chunks=100),
    "daemon-cpu": replace(DECODING, minute_loop_s=25.0, minute_core_wait_s=20.0),
    "another-job": replace(BLOCKED, neighbour_demand_s=40.0),
    "source-hangs": replace(BLOCKED, source_calls_hanging=7),
    "nodes": replace(BLOCKED, learners=0, nodes_missing="b, c"),
    "source-errors": Situation(source_errors=2, source_failure="Transport endpoint is not connected"),
}


UNSEEN = replace(DECODING, kernel_opens=True)


def test_what_the_kernel_reads_by_itself_takes_no_time_only_where_it_lies_in_memory() -> None:
    for situation in (UNSEEN, replace(UNSEEN, in_memory=0.5)):
        assert found(situation) == []
        assert waits_for(situation) == "its own decoding or the cache disk"
        assert "nobody sees how long" in nothing(situation)
    assert [finding.name for finding in found(replace(UNSEEN, in_memory=0.95))] == ["workers"]


@pytest.mark.parametrize("cause", SITUATIONS)
def test_a_situation_shows_its_cause_first(cause: str) -> None:
    findings = found(SITUATIONS[cause])
    assert findings[0].name == cause
    assert all(finding.what and finding.evidence and finding.remedy for finding in findings)
    assert 0 < findings[0].cost <= 1


@pytest.mark.parametrize(
    "situation",
    [
        Situation(),
        Situation(readers=16, cores=16, read_bytes=10**12),
        Situation(seconds=0.4, readers=1, minute_source_wait_s=0.35),
        Situation(readers=8, learners=8, cores=16, exposed_s=1.0, epoch_s=100.0, large_reads=10**4),
        Situation(readers=1, evicted_bytes=10**12, room_bytes=10**9, capacity_bytes=10**9),
        Situation(readers=1, disk_state="full", room_bytes=10**9, capacity_bytes=10**9),
        Situation(disk_state="cleaning", seconds=1.2, minute_loop_s=0.7, minute_core_wait_s=0.5),
        Situation(source_errors=2),
        FIRST,
        replace(DECODING, cores=4),
        replace(DECODING, workers=None),
        replace(DECODING, workers=6, loaders=3, cores=8),
        replace(FIRST, evicted_bytes=10**9, room_bytes=10**9, capacity_bytes=10**10),
        Situation(readers=1, renumbered=9, version_changes=9),
        Situation(readers=1, renumbered=5_000, version_changes=10_000),
    ],
    ids=[
        "nobody reads",
        "all is local",
        "the first reads",
        "hinted, and nobody waits",
        "evicted, and nobody waits",
        "full, and nobody waits",
        "the second after a crash",
        "errors, and answers since",
        "a cold first epoch",
        "as many workers as cores",
        "nobody knows how many workers",
        "as many workers of all learners as each may have",
        "people have evicted it all, and it is read again",
        "few numbers",
        "as many changed files",
    ],
)
def test_where_nobody_waits_nothing_is_wrong(situation: Situation) -> None:
    assert found(situation) == []


def test_a_disk_that_rests_is_told_even_before_somebody_waits() -> None:
    (finding,) = found(Situation(disk_state="resting", disk_error="Input/output error"))
    assert (finding.name, finding.evidence) == ("cache-disk", "Input/output error")


def test_directories_alone_may_have_other_numbers_and_the_remedy_is_immutable() -> None:
    """Files in a directory with another number are new names: they are not seen to change."""
    (finding,) = found(Situation(readers=1, renumbered=10))
    assert finding.name == "inode-numbers"
    assert "--immutable" in finding.remedy


def test_what_they_wait_for() -> None:
    assert waits_for(BLOCKED) == "the source"
    assert waits_for(DECODING) == "its own decoding"
    assert waits_for(replace(DECODING, minute_loop_s=60.0)) == "the daemon"
    assert waits_for(replace(DECODING, epoch_source_wait_s=200.0)) == "the source"
    assert waits_for(replace(BLOCKED, minute_peer_bytes=2 * 10**9)) == "other nodes"
    assert waits_for(Situation()) == ""


def test_other_nodes_that_are_slow() -> None:
    finding = found(replace(BLOCKED, minute_peer_bytes=2 * 10**9))[0]
    assert finding.what == "the other nodes are slower than the job"
    assert finding.evidence.startswith("they gave 33.3 MB/s")


def test_workers_are_those_that_learners_have_told() -> None:
    """Nobody else's: other processes read too, and those of a job that has ended read no more."""
    assert "num_workers=8 (on 16 cores 4 load at most)" in found(DECODING)[0].remedy
    assert "num_workers=8" in found(replace(DECODING, readers=0, learners=0))[0].remedy
    assert "num_workers=2 (on 2 cores 1 load" in found(replace(DECODING, workers=1, cores=2))[0].remedy
    several = replace(DECODING, workers=4, loaders=2)
    assert "num_workers=4 for each of 2 learners" in found(several)[0].remedy


def test_a_full_cache_is_the_cause_whatever_else_it_looks_like() -> None:
    """Chunks that found no room are not staged, and large files are then read in small pieces."""
    seems = replace(FULL, readers=2, large_read_bytes=10**9, bypass_bytes=8 * 10**8)
    (finding,) = found(seems)
    assert finding.name == "cache-size"
    assert finding.evidence.startswith("73.4 MB of 73.4 MB are used")
    assert "cache-size reached" in found(replace(FULL, full_because="cache-size reached (70M)"))[0].evidence
    by_use = replace(FULL, disk_state="ok", evicted_bytes=10**8, room_bytes=65_000_000)
    assert "100 MB were evicted" in found(by_use)[0].evidence
    (finding,) = found(replace(seems, room_bytes=0, capacity_bytes=0, full_because="the cache disk is full: 1 GB free"))
    assert (finding.name, finding.evidence.split("; ")[1]) == ("cache-size", "the cache disk is full: 1 GB free")


def test_what_is_said_where_there_is_no_cause() -> None:
    assert nothing(Situation()) == ""
    assert "for the first time" in nothing(FIRST)
    assert "why is not known" in nothing(replace(FIRST, minute_staged_bytes=0))
    assert "own decoding" in nothing(replace(DECODING, cores=4))
