"""The list of `hfs status` asks our own mounts first, and has an end however many others have that say nothing."""

import json
import time

import pytest

from hfs.cli import status
from hfs.client.control_socket import DaemonSilent
from hfs.doctor import mounts as doctor_mounts
from hfs.doctor.surroundings import here
from hfs.mounting import keeper, mountinfo, probe
from hfs.mounting.mountinfo import Mount
from tests.hfs.cli.running import hfs

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
