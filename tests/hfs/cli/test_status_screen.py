"""The screen of a mount is short whatever happens (what it says: screens.txt). The list of mounts asks our own first,
and has an end however many others have that say nothing. A command that mounts says nothing of cache and metrics
where all is as it was asked for."""

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
    assert "learners waited 3.1% of the time" in run_lines(STATUS)
    assert screen({"mountpoint": "/m"})[0].startswith("/m  (process ?, up 0 s")


def test_readers_that_nobody_sees_are_as_many_as_their_learners_have_started() -> None:
    """A wait of one of eight is not one of all."""
    one = learner(0, 50.0)
    one["epochs"][0] |= {"workers": 8, "cores": 16, "source_wait_s": 60.0}
    status = {**STATUS, "hints": {"learners": [one]}, "readers": STATUS["readers"][:1]}
    assert waits_for(situation_of(status)) == "the source"
    status["by_kernel"] = {"overlays": True, "look_ups": 1, "bytes": 1}
    assert situation_of(status).readers == 8
    assert waits_for(situation_of(status)) == "its own decoding or the cache disk"


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
