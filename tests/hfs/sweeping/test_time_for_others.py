"""However much other users leave, a sweep of root's comes to its end, and to all of them in turn."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfs.mountd.core import socket_places
from hfs.mountd.ledger import Ledger, Listed, Quota
from hfs.mounting import jobs, keeper, mountinfo, taking_away
from hfs.mounting.mountinfo import Mount
from hfs.sweeping import TimeForOthers, caches, daemons, mounts, sockets
from tests.fuse.users import MEMBER, NOBODY, needs_root

OWN = os.geteuid()
CROWD, OTHER = OWN + 1, OWN + 2
LIMIT_S = 10.0


class Clock:
    """Of time.monotonic; `seconds` of each kind of work."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.worked: list[object] = []

    def takes(self, seconds: float, result: Callable[..., object]) -> Callable[..., object]:
        def work(*arguments: object, **more: object) -> object:
            self.worked.append(arguments[0])
            self.now_s += seconds
            return result(*arguments)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # who sweeps for all
    return made


def mount(owner: int, number: int) -> Mount:
    options = f"rw,user_id={owner},group_id={owner}"
    return Mount(number, f"0:{number}", f"/m/{owner}-{number}", "ro", mountinfo.HFS_TYPE, "hfs#/s", options)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[Mount]:
    """A hundred mounts of one user, one of another, one of root's, which come last in the table."""
    found = [*(mount(CROWD, number) for number in range(100)), mount(OTHER, 200), mount(0, 300)]
    monkeypatch.setattr(mountinfo, "hfs_mounts", lambda _table=None: found)
    return found


@pytest.mark.parametrize("what", ["silent", "dead and busy", "dead"])
def test_mounts(what: str, clock: Clock, there: list[Mount], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they say nothing, or to take one away takes its time."""
    is_dead = clock.takes(5.0 if what == "silent" else 0.1, lambda *_: what != "silent")
    monkeypatch.setattr(taking_away, "is_dead", is_dead)

    def detach(*_: object) -> None:
        if what == "dead and busy":
            raise taking_away.Busy("in use")

    monkeypatch.setattr(taking_away, "detach", clock.takes(2.0, detach))
    others = TimeForOthers(LIMIT_S, 3 * LIMIT_S)
    list(mounts.sweep(dry_run=False, others=others))
    assert clock.now_s - 1000.0 <= LIMIT_S + 15.0
    assert {there[-1], there[-2]} <= set(clock.worked)
    assert others.stopped == {CROWD}


@pytest.mark.parametrize("what", ["silent keepers", "jobs", "daemons"])
def test_daemons(what: str, clock: Clock, there: list[Mount], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it takes long: to find their keepers, to ask Slurm, to release their jobs, to end their daemons."""
    held_by = [{"job": str(number)} for number in range(60)] if what == "jobs" else []
    status = {"mountpoint": "/m", "device": "0:1", "held_by": held_by}

    def of_user(owner: int) -> Iterator[keeper.FoundKeeper]:
        clock.worked.append(owner)
        for _ in range(100 if owner == CROWD else 0):
            clock.now_s += 0.05 if what == "silent keepers" else 0.0
            yield keeper.FoundKeeper("/k", owner, 1, status)

    monkeypatch.setattr(sockets, "directories", list)
    monkeypatch.setattr(keeper, "of_user", of_user)
    monkeypatch.setattr(jobs, "job_of_process", clock.takes(0.05, lambda pid: "4711"))
    monkeypatch.setattr(jobs, "has_ended", clock.takes(0.1, lambda *_: True))
    monkeypatch.setattr(keeper.FoundKeeper, "release_job", clock.takes(1.0, lambda *_: None))
    monkeypatch.setattr(daemons, "_ended", clock.takes(2.0, lambda *_: iter(())))
    others = TimeForOthers(LIMIT_S, 3 * LIMIT_S)
    list(daemons.sweep(dry_run=False, others=others))
    assert clock.now_s - 1000.0 <= LIMIT_S + 7.0
    assert {0, CROWD, OTHER} <= set(clock.worked)
    assert others.stopped == {CROWD}


@needs_root
def test_caches(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may stop the process that empties them; one may have the numbers of many."""
    names = [f"{uid}-{'a' * 16}" for uid in range(100_000, 100_100)]
    entries = [Listed(name, Quota(2, 2, 1), None, running=False) for name in names]
    monkeypatch.setattr(Ledger, "listed", lambda _self: entries)

    def evicted(_root: str, _expire_s: float, uid: int, limit_s: float) -> str:
        clock.worked.append(uid)
        clock.now_s += limit_s
        return "it does not end"

    monkeypatch.setattr(caches, "_evicted", evicted)
    (tmp_path / "ledger").mkdir()
    others = TimeForOthers(LIMIT_S, 30.0)
    swept = list(caches.sweep(str(tmp_path), 1.0, dry_run=False, others=others))
    assert len(clock.worked) == len(swept) == 3
    assert len(others.stopped) == 97


def test_many_users_together(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may have the numbers of many (/etc/subuid)."""
    found = [mount(100_000 + number, number) for number in range(1000)]
    monkeypatch.setattr(mountinfo, "hfs_mounts", lambda _table=None: found)
    monkeypatch.setattr(taking_away, "is_dead", clock.takes(5.0, lambda *_: False))
    first, second = TimeForOthers(LIMIT_S, 30.0), TimeForOthers(LIMIT_S, 30.0)
    for others in (first, second):
        list(mounts.sweep(dry_run=False, others=others))
    assert clock.now_s - 1000.0 <= 2 * 35.0
    assert len(first.stopped) > 900
    assert first.in_fair_order(range(50)) != second.in_fair_order(range(50)), "each time somebody else comes last"
    assert first.in_fair_order(range(50))[0] == 0, "root"


@needs_root
def test_a_name_in_tmp_says_nothing_of_who_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user that a name stood for was worked for, and /tmp listed once more for each."""
    monkeypatch.setattr(socket_places, "_TMP", str(tmp_path))
    listed: list[object] = []
    scandir = os.scandir

    def seen(place: str | int) -> object:
        listed.append(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", seen)
    (tmp_path / "hfs-0").touch()
    for number in range(1, 100):
        (tmp_path / f"hfs-{number}").touch()
        (tmp_path / f"hfs-{number}-abcdefgh").mkdir()
        (tmp_path / f"hfs-{1000 + number}").symlink_to("/root")
    for user in (NOBODY, MEMBER):
        (tmp_path / f"hfs-{user.uid}").mkdir()
        os.chown(tmp_path / f"hfs-{user.uid}", user.uid, user.uid)
    own = [path for path, user in sockets.directories() if user == 0]
    assert own == socket_places.directories_of(0)
    found = [(path, user) for path, user in sockets.directories() if user and path.startswith(str(tmp_path))]
    assert found == sorted((f"{tmp_path}/hfs-{user.uid}", user.uid) for user in (NOBODY, MEMBER))
    assert listed.count(str(tmp_path)) <= 6
    assert all(stat.S_ISDIR(os.lstat(path).st_mode) for path, _ in found)
