"""The screen of a mount: short whatever happens, and right about what it says."""

from hfs.cli.status_screen import MOST_LINES, run_lines, screen
from tests.support.statuses import GB, STATUS, learner, traffic


def test_it_fits_on_a_screen_with_64_learners_and_a_million_files() -> None:
    lines = screen({**STATUS, "staged": {**STATUS["staged"], "files": 10**6}})
    assert len(lines) <= 20 < MOST_LINES
    text = "\n".join(lines)
    assert "1,000,000 files" in text
    assert "the source gave 36.0 GB: spared 812 GB (96%)" in text
    assert "64 follow an order; learners waited 3.1% of the time" in text
    assert "50% of what orders name, all in 2 min 33 s" in text
    assert "rank 63 of 64  epoch 3  40%  50% local  waited 6.3%" in text
    assert "and 56 that waited less" in text
    assert "wrong         nothing" in text


def test_ways_that_bytes_took_past_the_daemon_are_told() -> None:
    told = traffic(848 * GB, 36 * GB) | {"passed_bytes": 700 * GB, "memory_bytes": 100 * GB}
    text = "\n".join(screen({**STATUS, "traffic": told}))
    assert text.count("of that 700 GB passed through, 100 GB from memory, 48.0 GB by the daemon") == 1
    assert "of that" not in "\n".join(screen(STATUS))


def test_each_learner_waits_for_something_of_its_own() -> None:
    slow, decoding = learner(0, 50.0), learner(1, 50.0)
    slow["epochs"][0]["source_wait_s"] = 40.0
    text = "\n".join(screen({**STATUS, "hints": {"learners": [slow, decoding]}, "readers": []}))
    assert "rank 0 of 64  epoch 3  40%  50% local  waited 50.0% for the source" in text
    assert "rank 1 of 64  epoch 3  40%  50% local  waited 50.0% for its own decoding" in text


def test_an_epoch_that_has_just_begun_says_nothing_of_the_job() -> None:
    """Its first batch is waited for, however fast everything is."""
    one = learner(0, 1.0)
    one["epochs"].append({"epoch": 4, "exposed_s": 0.2, "compute_s": 0.0, "other_s": 0.0, "batches": 1})
    assert "wrong         nothing" in screen({**STATUS, "hints": {"learners": [one]}, "readers": []})
    one["epochs"][1]["exposed_s"] = 30.0
    assert "wrong         nothing" not in screen({**STATUS, "hints": {"learners": [one]}, "readers": []})


def test_what_is_not_known_is_said() -> None:
    lines = screen({**STATUS, "traffic": traffic(848 * GB, 36 * GB, at_least=True)})
    assert any("jobs read at least 848 GB" in line for line in lines)
    assert screen({"mountpoint": "/m"})[0].startswith("/m  (daemon ?")


def test_what_is_wrong_comes_with_its_remedy() -> None:
    lines = screen({**STATUS, "staged": {**STATUS["staged"], "state": "resting", "last_error": "EIO"}})
    at = next(number for number, line in enumerate(lines) if line.startswith("wrong"))
    assert "the cache disk is not written to" in lines[at]
    assert "seen: EIO" in lines[at + 1]
    assert "change: look at the disk" in lines[at + 2]


def test_inode_numbers_that_change_are_told() -> None:
    counters = {"inodes_renumbered": {"value": 4_000}, "version_changes": {"value": 5_000}}
    text = "\n".join(screen({**STATUS, "counters": {**STATUS.get("counters", {}), **counters}}))
    assert "other inode numbers" in text
    assert "seen: 4,000 times" in text
    assert "--immutable" in text


def test_faults_and_crashes_are_told() -> None:
    status = {**STATUS, "faults": {"push_errors": 3, "short_replies": 0}, "keeper": {"restarts": 2, "last_end": "fell"}}
    text = "\n".join(screen(status))
    assert "faults        3 push errors; the log says more" in text
    assert "restarted     2 times, last because it fell" in text


def test_metrics_have_a_line_where_they_were_asked_for() -> None:
    off = {"address": None, "error": None, "answered": 0, "refused": 0, "file": None, "file_error": None}
    for change, line in (
        ({}, None),
        ({"address": "127.0.0.1:1"}, "http://127.0.0.1:1/metrics"),
        ({"error": "in use", "file": "/d/x.prom"}, "in use; /d/x.prom"),
        ({"file": "/d/x.prom", "file_error": "gone"}, "gone"),
    ):
        lines = screen({**STATUS, "monitoring": {**off, **change}})
        assert [found.split(maxsplit=1)[1] for found in lines if found.startswith("metrics ")] == [line][: bool(line)]


def test_a_run_ends_with_five_lines_at_most() -> None:
    lines = run_lines(STATUS)
    assert lines == [
        "the source gave 36.0 GB of about 848 GB read: spared 812 GB (96%)",
        "staged: 812,331 files, 120 GB",
        "learners waited 3.1% of the time",
        "nothing is wrong",
    ]
    assert len(run_lines({**STATUS, "faults": {"push_errors": 1}})) == 5
