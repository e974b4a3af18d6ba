"""`hfs sweep` as people and scripts see it: lines, JSON, exit codes; and the options that prologs and epilogs use."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.sweeping import Swept, TimeForOthers, caches, daemons, mounts, sockets
from tests.hfs.cli.running import hfs

GONE = Swept("socket", "/run/hfs/a.sock", "socket that nobody listens at")
KEPT = Swept("dead-mount", "/data", "dead mount of /src", "process 7 (bash): its working directory is /data")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Swept]:
    """What there is to sweep on this machine."""
    there: list[Swept] = []

    def sweep(*, dry_run: bool, others: TimeForOthers) -> Iterator[Swept]:
        yield from there

    monkeypatch.setattr(mounts, "sweep", sweep)
    for other in (daemons, sockets):
        monkeypatch.setattr(other, "sweep", lambda *, dry_run, others: iter(()))
    return there


@pytest.mark.parametrize(
    ("there", "code"),
    [([], 0), ([GONE], 0), ([GONE, KEPT], 3), ([KEPT], 1), ([KEPT._replace(is_theirs=True)], 0)],
)
def test_the_exit_code_says_whether_all_is_gone(found: list[Swept], there: list[Swept], code: int) -> None:
    found.extend(there)
    done = hfs("sweep")
    assert (done.exit_code, len(done.stdout.splitlines())) == (code, len(there))


def test_users_for_whom_there_was_no_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of our own is left, so it is no failure."""

    def sweep(*, dry_run: bool, others: TimeForOthers) -> Iterator[Swept]:
        others.stopped.add(61001)
        return iter(())

    for kind in (mounts, daemons, sockets):
        monkeypatch.setattr(kind, "sweep", sweep)
    done = hfs("sweep")
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("kept user 61001: what was not looked at; there are no more than 10 s for one user, 30 s")


def test_a_line_for_each(found: list[Swept]) -> None:
    found.extend([GONE, KEPT])
    assert hfs("sweep").stdout.splitlines() == [
        "removed /run/hfs/a.sock: socket that nobody listens at",
        "kept /data: dead mount of /src; process 7 (bash): its working directory is /data",
    ]
    assert hfs("sweep", "--dry-run").stdout.startswith("would remove /run/hfs/a.sock: ")
    told = json.loads(hfs("sweep", "--json").stdout)
    assert (told["dry_run"], [each["kept"] for each in told["found"]]) == (False, ["", KEPT.kept])


def test_the_configuration_says_what_is_too_old(
    found: list[Swept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(caches, "sweep", lambda root, expire_s, **_: iter(asked.append((root, expire_s)) or ()))
    config = tmp_path / "hfs.toml"
    config.write_text('cache = "/nvme/hfs"\nexpire = "2h"\n')
    assert hfs("sweep", "--config", config).exit_code == 0
    assert asked == [("/nvme/hfs", 7200.0)]
    config.write_text('cache = "/nvme/hfs"\n')
    done = hfs("sweep", "--config", config)
    assert (done.exit_code, "no cache and expire" in done.stderr) == (2, True)
