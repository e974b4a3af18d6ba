"""Each family of checks, in surroundings that are made up: what cannot be broken on a test machine is broken here.

What they say is in checks.txt. The others are broken for real in tests/fuse/test_doctor.py.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hfs.doctor import examine, fuse, limits, mounts, source
from hfs.doctor.surroundings import Level, fault, good
from hfs.mounting import probe
from tests.hfs.doctor.surroundings import found, made_up


def test_a_call_that_no_kernel_has_is_refused_and_one_that_this_has_is_not() -> None:
    calls = {"none": (100_000, "9.9", ""), "pidfd_open": (434, "5.3", "")}
    assert fuse.refused_calls(calls) == {"none"}


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        ("0::/job/step", "30 1 0:26 / {top} rw - cgroup2 cgroup2 rw"),
        ("8:pids:/job/step\n0::/", "30 1 0:26 / {top} rw - cgroup cgroup rw,pids"),
    ],
)
def test_the_least_of_all_control_groups_above_holds(tmp_path: Path, line: str, mount: str) -> None:
    top = tmp_path / "cgroup"
    for folder, most, now in (("job/step", "max", 3), ("job", "400", 300), ("", "", 0)):
        (top / folder).mkdir(parents=True, exist_ok=True)
        if most:
            (top / folder / "pids.max").write_text(f"{most}\n")
            (top / folder / "pids.current").write_text(f"{now}\n")
    around = made_up(
        tmp_path, {"meminfo": "MemAvailable: 50000000 kB\n", "self/cgroup": line}, mounts=mount.format(top=top)
    )
    assert limits.room_for_processes(around) == 100
    assert "100 more" in found(limits.check(around, lambda _: (1 << 20, 1 << 20)))["processes"][1]


@pytest.mark.parametrize(("shared", "told"), [("", True), ("shared:1 ", False)])
def test_a_container_whose_mounts_are_its_own_is_a_note(tmp_path: Path, shared: str, told: bool) -> None:
    around = made_up(tmp_path, mounts=f"1 0 0:1 / / rw {shared}- ext4 dev rw")
    findings = found(limits.check_namespaces(around, lambda: 0, (str(tmp_path),)))
    assert findings["user-namespaces"][0] == "good"
    assert ("container" in findings) == told
    assert "container" not in found(limits.check_namespaces(around, lambda: 0, (str(tmp_path / "none"),)))


# -- SOURCE -----------------------------------------------------------------------------------------------------------


def test_a_source_is_looked_at_as_the_user_whom_a_mount_would_read_it_as(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    if os.geteuid() == 0:
        tmp_path.chmod(0o700)
        assert source.look(str(tmp_path), 5.0)["done"]
        assert source.look(str(tmp_path), 5.0, "1:1:")["errno"] == errno.EACCES
    else:
        assert source.look(str(tmp_path), 5.0, "1:1:") == {"kept": errno.EPERM}


def test_the_user_need_not_reach_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may lie below root's home."""
    out_of_reach = "sys.path.clear()\nsys.path_importer_cache.clear()\n"
    monkeypatch.setattr(probe, "_BECOME", probe._BECOME + out_of_reach)
    assert source.look(str(tmp_path), 5.0)["done"]


_OTHER_NUMBERS = """
class Renumbered:
    def __init__(self, found): self.found = found
    def __getattr__(self, name): return getattr(self.found, name) + (name in RENUMBERED)
stat_before = os.stat
os.stat = lambda *arguments, **named: Renumbered(stat_before(*arguments, **named))
"""


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("fuse.odd", ["st_ino"], True),
        ("fuse.odd", [], False),
        ("fuse.odd", ["st_ino", "st_ctime_ns"], False),
        ("nfs4", ["st_ino"], False),
    ],
    ids=["made anew", "lasting", "replaced meanwhile", "not looked at twice"],
)
def test_a_source_whose_inode_numbers_change_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fields: list[str], told: bool
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(source, "_AGAIN_S", 0.0)
    monkeypatch.setattr(source, "_CODE", f"RENUMBERED = {fields}" + _OTHER_NUMBERS + source._CODE)
    around = made_up(
        tmp_path, source=str(tmp_path), mounts=f"7 1 0:47 / {tmp_path} ro - {kind} odd ro", uid=os.getuid()
    )
    findings = found(source.check(around))
    assert findings["source"][0] == "good"
    assert ("inode-numbers" in findings) == told
    if told:
        assert findings["inode-numbers"][0] == "limit"
        assert "--immutable" in findings["inode-numbers"][1]


# -- mounts, and all of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "check", "level"),
    [
        (OSError(errno.ENOTCONN, "not connected"), "dead-mount", "fault"),
        (TimeoutError(), "silent-mount", "fault"),
        (PermissionError(errno.EACCES, "denied"), "mount", "note"),
        (OSError(errno.EIO, "Input/output error"), "refusing-mount", "fault"),
    ],
)
def test_how_a_mount_does_not_answer(
    tmp_path: Path, raised: OSError, check: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def xattr(*_: object, **__: object) -> bytes:
        raise raised

    monkeypatch.setattr(mounts.probe, "xattr", xattr)
    monkeypatch.setattr(mounts.keeper, "find", lambda _: None)
    monkeypatch.setattr(mounts.keeper, "ours", lambda: iter([]))
    line = "7 1 0:47 / /m ro - fuse.hfs hfs#/s ro,user_id=5"
    told = found(mounts.check(made_up(tmp_path, mounts=line, uid=1000)))
    assert told[check][0] == "note", "what another user's mount does keeps none of ours from working"
    assert "/m" in told[check][1]
    assert "hfs umount" not in told[check][1]
    told = found(mounts.check(made_up(tmp_path, mounts=line, uid=5)))
    assert list(told) == [check]
    assert told[check][0] == level
    assert "/m" in told[check][1]
    if check == "silent-mount":
        assert "/sys/fs/fuse/connections/47/abort" in told[check][1]
    if check == "dead-mount":
        assert "hfs umount /m, or hfs mount there again" in told[check][1]


@pytest.mark.parametrize(("renumbered", "told"), [(10, True), (3, False)])
def test_a_mount_whose_source_makes_inode_numbers_anew(renumbered: int, told: bool) -> None:
    status = {"counters": {"inodes_renumbered": {"value": renumbered}, "version_changes": {"value": renumbered}}}
    finding = mounts._answers("/m", 7, status)
    assert (finding.check == "inode-numbers") == told
    assert finding.level is (Level.LIMIT if told else Level.GOOD)
    assert ("--immutable" in finding.line()) == told


def test_a_check_that_fails_stops_no_other(tmp_path: Path) -> None:
    def fails(_around: object) -> Any:
        raise RuntimeError("strange machine")
        yield

    def works(_around: object) -> Any:
        yield good("b", "well")

    told = list(examine(made_up(tmp_path), {"a": fails, "b": works}))
    assert [finding.level for finding in told] == [Level.LIMIT, Level.GOOD]
    assert "the check a failed: RuntimeError: strange machine" in told[0].text


def test_a_source_that_is_at_fault_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    def first(_around: object) -> Any:
        yield fault("source", "silent", "wait")

    def second(around: Any) -> Any:
        asked.append(around.source)
        yield from ()

    assert len(list(examine(made_up(tmp_path, source="/s"), {"a": first, "b": second}))) == 1
    assert asked == [None]
