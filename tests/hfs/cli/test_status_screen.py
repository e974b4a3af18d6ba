"""The screen of a mount: short whatever happens, and right about what it says. The list of
mounts asks our own first, and has an end however many others have that say nothing. A command that mounts says nothing
of cache and metrics where all is as it was asked for."""

import json
import time
from typing import Any

import pytest

from hfs.cli import status
from hfs.cli.mount_notes import notes
from hfs.cli.run import since
from hfs.cli.situation import situation_of
from hfs.cli.status_screen import MOST_LINES, run_lines, screen
from hfs.client.control_socket import DaemonSilent
from hfs.doctor import mounts as doctor_mounts
from hfs.doctor.surroundings import here
from hfs.mountd.core.config import Config
from hfs.mounting import keeper, mountinfo, probe
from hfs.mounting.mountinfo import Mount
from hfs.policies.diagnosis.causes import waits_for
from tests.hfs.cli.running import hfs
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
    one["epochs"][1] |= {"exposed_s": 30.0, "workers": 1, "cores": 2}
    lines = screen({**STATUS, "hints": {"learners": [one]}, "readers": []})
    said = ["wrong         nothing", "advice        the job waits for its own decoding: the data is here"]
    assert [line for line in lines if line.startswith(("wrong", "advice"))] == said
    lines = screen({**STATUS, "hints": {"learners": [one]}, "readers": [], "io_mode": {"faster_if_reopened": 3}})
    assert [line.split()[0] for line in lines if "files were opened before" in line] == ["wrong"]
    assert said[1] in lines
    assert said[0] not in lines


def test_a_process_that_is_several_learners_loads_once() -> None:
    """As where each epoch has a hinted sampler of its own."""
    told = [{**learner(rank, 30.0), "pid": 7} for rank in range(4)]
    for one in told:
        one["epochs"][0] |= {"workers": 0, "cores": 2}
    text = "\n".join(screen({**STATUS, "hints": {"learners": told}}))
    assert "change: more workers: num_workers=2 (on 2 cores 1 load at most)" in text
    told[3] |= {"pid": 8}
    assert "more workers" not in "\n".join(screen({**STATUS, "hints": {"learners": told}}))
    told[3] |= {"pid": 7, "epochs": [{**told[3]["epochs"][0], "workers": None}]}
    assert "more workers" not in "\n".join(screen({**STATUS, "hints": {"learners": told}}))


def test_what_is_not_known_is_said() -> None:
    lines = screen({**STATUS, "traffic": traffic(848 * GB, 36 * GB, at_least=True)})
    assert any("jobs read at least 848 GB" in line for line in lines)
    lines = screen({**STATUS, "traffic": traffic(GB, 2 * GB, at_least=True)})
    assert any(line.endswith("gave 2.00 GB; what the kernel has read by itself is not counted") for line in lines)
    assert screen({"mountpoint": "/m"})[0].startswith("/m  (process ?, up 0 s")


def test_what_the_kernel_reads_by_itself_is_told_apart_and_counted_nowhere() -> None:
    sample = {"sampled_files": 64, "sampled_bytes": 1000, "resident_bytes": 980}
    by_kernel = {"overlays": True, "look_ups": 3000, "bytes": 330_000_000}
    status = {**STATUS, "traffic": traffic(2 * GB, GB, at_least=True), "by_kernel": by_kernel}
    lines = screen({**status, "page_cache": {"staged": sample}})
    files = "3,000 files of 330 MB looked up for it, how often they were read nobody counts"
    besides = f"besides, by the kernel itself: {files}"
    assert f"              {besides}; of a sample of what is staged 98% is in memory" in lines
    assert "since start   jobs read at least 2.00 GB; the source gave 1.00 GB: spared at least 1.00 GB (50%)" in lines
    assert any(line.startswith("last minute   jobs read at least ") for line in lines)
    assert f"              {besides}" in screen(status), "nobody has looked what is in memory"
    assert run_lines(status)[0] == (
        f"the source gave 1.00 GB of at least 2.00 GB read: spared at least 1.00 GB (50%); {besides}"
    )
    assert not any("besides" in line for line in screen(STATUS))
    text = "\n".join(screen({**status, "by_kernel": {**by_kernel, "look_ups": 0}}))
    assert "besides, what is staged is read by the kernel itself" in text


def test_readers_that_nobody_sees_are_as_many_as_their_learners_have_started() -> None:
    """A wait of one of eight is not one of all."""
    one = learner(0, 50.0)
    one["epochs"][0] |= {"workers": 8, "cores": 16, "source_wait_s": 60.0}
    status = {**STATUS, "hints": {"learners": [one]}, "readers": STATUS["readers"][:1]}
    assert waits_for(situation_of(status)) == "the source"
    status["by_kernel"] = {"overlays": True, "look_ups": 1, "bytes": 1}
    assert situation_of(status).readers == 8
    assert waits_for(situation_of(status)) == "its own decoding or the cache disk"


def test_what_is_wrong_comes_with_its_remedy() -> None:
    lines = screen({**STATUS, "staged": {**STATUS["staged"], "state": "resting", "last_error": "EIO"}})
    at = next(number for number, line in enumerate(lines) if line.startswith("wrong"))
    assert "the cache disk is not written to" in lines[at]
    assert "seen: EIO" in lines[at + 1]
    assert "change: look at the disk" in lines[at + 2]


def test_a_full_cache_is_told_by_what_it_uses() -> None:
    staged = {"files": 1144, "bytes": 61_900_000, "room_bytes": 73_400_000, "capacity_bytes": 73_400_000}
    text = "\n".join(screen({**STATUS, "hints": {}, "staged": {**staged, "state": "full"}}))
    assert "local         61.9 MB in 1,144 files; 73.4 MB of 73.4 MB used: full\n" in text
    text = "\n".join(screen({**STATUS, "hints": {}, "staged": {**staged, "capacity_bytes": 1 << 62}}))
    assert "local         61.9 MB in 1,144 files\n" in text
    read = traffic(10**9, 10**9)
    minute = {**read["minute"], "source_wait_s": 30.0, "source_bytes": 10**9}
    (reader,) = [{"pid": 1, "command": "python", "reads": 1, "bytes": GB}]
    waiting = {**STATUS, "hints": {}, "traffic": {**read, "minute": minute}, "readers": [reader]}
    full = {**staged, "state": "full", "full_because": "cache-size reached (70M)"}
    lines = screen({**waiting, "staged": full, "faults": {"staging_dropped": 1856}})
    assert "wrong         the cache is full: what has no room in it is read from the source each time" in lines
    assert "              seen: 73.4 MB of 73.4 MB are used; cache-size reached (70M)" in lines
    assert not any("staging dropped" in line for line in lines)
    minute["staged_bytes"] = 10**9
    assert any(line.startswith("wrong         nothing: what jobs wait for is read for the") for line in screen(waiting))


def test_a_source_that_answers_with_errors_is_told() -> None:
    source = {"path": "/lustre/images", "errors": 2, "failure": "Transport endpoint is not connected"}
    text = "\n".join(screen({**STATUS, "source": source}))
    assert "faults        source errors (2)" in text
    assert "seen: failed operations: 2, the last one with: Transport endpoint is not connected" in text


def test_readers_that_the_daemon_has_given_nothing_are_not_named() -> None:
    readers = [{"pid": 5, "command": "", "reads": 0, "bytes": 0}, {"pid": 6, "command": "cp", "reads": 1, "bytes": 9}]
    lines = screen({**STATUS, "readers": readers})
    assert [line for line in lines if line.startswith("readers")] == ["readers       cp (6) 9 B by the daemon"]
    assert not any(line.startswith("readers") for line in screen({**STATUS, "readers": readers[:1]}))


def test_faults_and_crashes_are_told() -> None:
    status = {**STATUS, "faults": {"push_errors": 3, "short_replies": 0}, "keeper": {"restarts": 2, "last_end": "fell"}}
    text = "\n".join(screen(status))
    assert "faults        push errors (3); the log says more" in text
    assert "restarted     2 times, last because it fell" in text


def test_one_is_told_as_one() -> None:
    one = {**learner(0, 1.0), "world": 1}
    staged = {"files": 1, "bytes": 9, "state": "ok"}
    told = {"staged": staged, "hints": {"learners": [one]}, "faults": {"push_errors": 1}, "keeper": {"restarts": 1}}
    text = "\n".join([*screen({**STATUS, **told}), *run_lines({**STATUS, **told})])
    assert "9 B in 1 file\n" in text.replace(";", "\n")
    assert "staged: 1 file, 9 B" in text
    assert "1 follows an order" in text
    assert "push errors (1)" in text
    assert "restarted     1 time, last because it ended" in text


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


def test_a_run_that_has_joined_a_mount_tells_what_has_changed() -> None:
    """Nothing of what was read before it, of the learners of others, nor of what is wrong for these."""
    before = {**STATUS, "faults": {"push_errors": 2}, "source": {"errors": 1, "failure": ""}}
    assert since(before, before) is not None
    read = {**traffic(850 * GB, 37 * GB), "minute": {**traffic(0, 0)["minute"], "source_wait_s": 60.0}}
    staged = {**STATUS["staged"], "files": 812_341, "bytes": 121 * GB, "state": "full", "room_bytes": 400 * GB}
    now = {**before, "traffic": read, "staged": staged, "faults": {"push_errors": 2}}
    lines = run_lines(since(before, now) or {}, is_joined=True)
    assert lines == [
        "meanwhile, to all who read the mount: the source gave 1.00 GB of about 2.00 GB read: spared 1.00 GB (50%)",
        "staged: 10 files more, 1.00 GB more",
    ]
    came = {**learner(0, 50.0), "pid": 99}
    came["epochs"][0]["source_wait_s"] = 5000.0
    now["hints"] = {"learners": STATUS["hints"]["learners"], "past": [came]}
    told = since(before, now) or {}
    assert told["hints"] == {"learners": [], "past": [came]}
    lines = run_lines(told, is_joined=True)
    assert lines[2] == "learners waited 50.0% of the time, mostly for the source"
    assert lines[3].startswith("why: the cache is full")
    assert since(None, now) is None
    assert since(before, None) is None
    assert since(before, {**now, "pid": 78}) is None


PATHS = "and the paths of SOURCE and MOUNTPOINT"


def told(
    *,
    metrics: str | None = None,
    file: str | None = None,
    made: tuple[str | None, str | None] | None = None,
    **more: Any,
) -> list[str]:
    config = Config(source="/s", mountpoint="/m", cache="/c", metrics=metrics, metrics_file=file)
    has = (metrics, file) if made is None else made
    status = {
        "config": {"metrics": {"value": has[0]}, "metrics-file": {"value": has[1]}},
        "monitoring": {"address": "127.0.0.1:1234", "error": None, "file_error": None, **more},
    }
    return list(notes(config, status))


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, []),
        ({"metrics": "127.0.0.1:1234", "file": "/f"}, []),
        ({"metrics": "127.0.0.1:0"}, ["metrics are at http://127.0.0.1:1234/metrics"]),
        ({"metrics": "127.0.0.1:9", "error": "in use"}, ["metrics: in use"]),
        ({"file": "/f", "file_error": "gone"}, ["metrics: gone"]),
        (
            {"metrics": "127.0.0.1:9", "made": ("127.0.0.1:8", None), "error": "of another"},
            ["metrics: the mount that is there has 127.0.0.1:8, and keeps that; 127.0.0.1:9 is not used"],
        ),
        (
            {"file": "/f", "made": (None, None)},
            ["metrics-file: the mount that is there has none, and keeps that; /f is not used"],
        ),
        (
            {"metrics": "0.0.0.0:9", "address": "0.0.0.0:9"},
            [f"metrics: whoever reaches 0.0.0.0:9 over the network can read them, {PATHS}"],
        ),
    ],
)
def test_notes(given: dict[str, Any], lines: list[str]) -> None:
    assert told(**given) == lines


def test_a_daemon_of_an_older_release() -> None:
    config = Config(source="/s", mountpoint="/m", cache="/c", metrics="127.0.0.1:9")
    assert list(notes(config, {"config": {}})) == [
        "metrics: the mount that is there has none, and keeps that; 127.0.0.1:9 is not used"
    ]


def test_a_mount_without_a_cache() -> None:
    config = Config(source="/s", mountpoint="/m", cache="/c")
    assert list(notes(config, {"staged": {"state": "full", "last_error": "No space left on device"}})) == []
    assert list(notes(config, {"staged": {"state": "off", "last_error": "there is no cache: why"}})) == [
        "there is no cache: why; all is read from the source until it is well"
    ]


CROWD, OTHER, OWN = 70001, 70002, 0
ROWS = [*(f"/m/{CROWD}-{number}" for number in range(300)), f"/m/{OTHER}-300", f"/m/{OWN}-301"]


def mount(path: str) -> Mount:
    owner, _, number = path.removeprefix("/m/").partition("-")
    options = f"rw,user_id={owner},group_id={owner},allow_other"
    return Mount(int(number), f"0:{number}", path, "ro", mountinfo.HFS_TYPE, "hfs#/s", options)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """(mount, seconds) of each that was asked, one after another; none answers."""
    found: list[tuple[str, float]] = []
    now_s = [1000.0]

    def silent(path: str, *_: str, limit_s: float) -> str:
        found.append((path, limit_s))
        now_s[0] += limit_s
        raise DaemonSilent("nobody answers")

    def timed_out(path: str, *_: str, limit_s: float) -> bytes:
        found.append((path, limit_s))
        now_s[0] += limit_s
        raise TimeoutError(110, "timed out", path)

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(mountinfo, "hfs_mounts", lambda _table=None: [mount(path) for path in ROWS])
    monkeypatch.setattr(keeper, "ours", lambda: iter(()))
    monkeypatch.setattr(status, "find_socket", silent)
    monkeypatch.setattr(probe, "xattr", timed_out)
    for module in (status, doctor_mounts):
        monkeypatch.setattr(module, "_AT_ONCE", 1)
    return found


def test_it_has_an_end(asked: list[tuple[str, float]]) -> None:
    rows = json.loads(hfs("status", "--json").stdout)["mounts"]
    assert [row["mountpoint"] for row in rows] == ROWS
    assert {path for path, _ in asked} >= {ROWS[-1], ROWS[-2]}, "root's, and that of who has one"
    theirs_s = [limit_s for path, limit_s in asked if path != ROWS[-1]]
    assert sum(theirs_s) <= status._OTHERS_S
    assert sum("not asked" in row["error"] for row in rows) == len(ROWS) - len(asked)


def test_that_of_the_doctor_too(asked: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountinfo, "parse", lambda _text: [mount(path) for path in ROWS])
    found = [finding.text for finding in doctor_mounts.check(here())]
    assert {path for path, _ in asked} >= {ROWS[-1], ROWS[-2]}
    assert len(asked) < 10
    assert sum("not asked" in text for text in found) == doctor_mounts._MOST - len(asked)
