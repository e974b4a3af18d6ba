"""Each family of checks, in surroundings that are made up: what cannot be broken on a test machine is broken here.

The others are broken for real in tests/fuse/test_doctor.py; the cache has test_cache_checks.py.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hfs.doctor import examine, fuse, libfuse, limits, mounts, source
from hfs.doctor.surroundings import Level, fault, good
from hfs.mounting import probe
from tests.hfs.doctor.surroundings import ALL_CAPABILITIES, found, made_up

LOADED: dict[str, Any] = {
    "passthrough": True,
    "version": "3.17.2",
    "pyfuse3": "3.5.0",
    "libfuse": "/lib/libfuse3.so.3.17.2",
}


# -- /dev/fuse, fusermount3 -------------------------------------------------------------------------------------------


def test_root_without_the_right_to_mount_is_told_so(tmp_path: Path) -> None:
    around = made_up(tmp_path, uid=0, device=os.devnull)
    assert found(fuse.check_device(around))["fuse-rights"][0] == "fault"
    assert "fuse-rights" not in found(fuse.check_device(made_up(tmp_path, uid=0, capabilities=ALL_CAPABILITIES)))


# -- the kernel and libfuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("6.9.0", "good"),
        ("6.18.44-x", "good"),
        ("7.0", "good"),
        ("6.8.0-31-generic", "limit"),
        ("5.14.0-427.el9", "limit"),
    ],
)
def test_the_kernel_is_known_by_its_version(tmp_path: Path, release: str, wanted: str) -> None:
    told = found(fuse.check_kernel(made_up(tmp_path, release=release), lambda: set()))
    assert told["kernel"][0] == wanted
    assert list(told) == ["kernel"]


def test_calls_that_are_refused_are_named_with_what_is_lost(tmp_path: Path) -> None:
    told = found(fuse.check_kernel(made_up(tmp_path), lambda: {"openat2", "pidfd_open"}))
    assert told["kernel-openat2"] == ("limit", told["kernel-openat2"][1])
    assert "Linux 5.6 or newer" in told["kernel-openat2"][1]
    assert "kernel-pidfd-open" in told


def test_a_call_that_no_kernel_has_is_refused_and_one_that_this_has_is_not() -> None:
    calls = {"none": (100_000, "9.9", ""), "pidfd_open": (434, "5.3", "")}
    assert fuse.refused_calls(calls) == {"none"}


@pytest.mark.parametrize(
    ("said", "around", "level", "text"),
    [
        ({}, {"capabilities": ALL_CAPABILITIES}, "good", "passthrough, daemon"),
        ({}, {}, "note", "no passthrough: user 1000 has no CAP_SYS_ADMIN"),
        (
            {},
            {"capabilities": ALL_CAPABILITIES, "files": {"self/uid_map": "0 1000 1"}},
            *("note", "no passthrough: CAP_SYS_ADMIN is one of this user namespace only"),
        ),
        ({}, {"release": "6.8.0", "capabilities": ALL_CAPABILITIES}, "note", "Linux 6.8.0 is older than 6.9"),
        (
            {"passthrough": False, "version": "3.14.0"},
            {"capabilities": ALL_CAPABILITIES},
            "limit",
            "libfuse 3.14.0 is too old",
        ),
    ],
)
def test_io_modes_that_will_be_had(
    tmp_path: Path, said: dict[str, Any], around: dict[str, Any], level: str, text: str
) -> None:
    told = found(libfuse.check(made_up(tmp_path, **around), lambda: {**LOADED, **said}))
    assert told["io-modes"][0] == level
    assert text in told["io-modes"][1]
    assert told["extension"][0] == "good"


def test_a_pyfuse3_that_cannot_be_loaded_is_a_fault_and_all_that_is_said(tmp_path: Path) -> None:
    told = found(libfuse.check(made_up(tmp_path), lambda: {"failed": "ModuleNotFoundError: No module named 'pyfuse3'"}))
    assert list(told) == ["pyfuse3"]
    assert "No module named 'pyfuse3'" in told["pyfuse3"][1]


# -- limits -----------------------------------------------------------------------------------------------------------

FREE = "MemTotal: 99999999 kB\nMemAvailable: 50000000 kB\n"


def of_limits(files: int, processes: int) -> limits.Limits:
    return lambda which: (processes, processes) if which == limits.resource.RLIMIT_NPROC else (files, files)


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
    around = made_up(tmp_path, {"meminfo": FREE, "self/cgroup": line}, mounts=mount.format(top=top))
    assert limits.room_for_processes(around) == 100
    assert "100 more" in found(limits.check(around, of_limits(1 << 20, 1 << 20)))["processes"][1]


@pytest.mark.parametrize(
    ("options", "uid", "told"), [("rw,hidepid=2", 1000, 1), ("rw,hidepid=2", 0, 0), ("rw", 1000, 0)]
)
def test_a_proc_that_hides_others_is_a_note(tmp_path: Path, options: str, uid: int, told: int) -> None:
    around = made_up(tmp_path, {"meminfo": FREE}, mounts=f"2 1 0:2 / /proc rw - proc proc {options}", uid=uid)
    assert ("proc" in found(limits.check(around, of_limits(1 << 20, 1 << 20)))) == told


# -- namespaces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "text", "remedy"),
    [
        ({"sys/user/max_user_namespaces": "0"}, "user.max_user_namespaces is 0", "max_user_namespaces=15000"),
        (
            {"sys/kernel/unprivileged_userns_clone": "0"},
            "unprivileged_userns_clone is 0",
            "unprivileged_userns_clone=1",
        ),
        (
            {"sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
            "unprivileged_userns is 1",
            "unprivileged_userns=0",
        ),
        ({}, "Operation not permitted", "seccomp profile"),
    ],
)
def test_why_there_are_no_user_namespaces(tmp_path: Path, files: dict[str, str], text: str, remedy: str) -> None:
    around = made_up(tmp_path, {"sys/user/max_user_namespaces": "9999", **files})
    level, line = found(limits.check_namespaces(around, lambda: errno.EPERM, ()))["user-namespaces"]
    assert level == "limit"
    assert text in line
    assert remedy in line


@pytest.mark.parametrize(("shared", "told"), [("", True), ("shared:1 ", False)])
def test_a_container_whose_mounts_are_its_own_is_a_note(tmp_path: Path, shared: str, told: bool) -> None:
    around = made_up(tmp_path, mounts=f"1 0 0:1 / / rw {shared}- ext4 dev rw")
    findings = found(limits.check_namespaces(around, lambda: 0, (str(tmp_path),)))
    assert findings["user-namespaces"][0] == "good"
    assert ("container" in findings) == told
    assert "container" not in found(limits.check_namespaces(around, lambda: 0, (str(tmp_path / "none"),)))


@pytest.mark.parametrize(
    ("uid", "text"), [(0, "hfs run, and hfs mount with --io-mode overlay can"), (9, "hfs run can")]
)
def test_overlays_are_for_whom_the_kernel_lets_have_them(tmp_path: Path, uid: int, text: str) -> None:
    around = made_up(tmp_path, uid=uid)
    level, line = found(limits.check_overlays(around, lambda: ""))["overlays"]
    assert (level, text in line) == ("good", True)
    level, line = found(limits.check_overlays(around, lambda: "no such kernel"))["overlays"]
    assert (level, "no overlays: no such kernel" in line) == ("note", True)


# -- SOURCE -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "uid", "check", "level", "text"),
    [
        ({"errno": errno.EACCES, "owner": 1}, 0, "source-rights", "fault", "hfs mount --as-user daemon"),
        ({"errno": errno.EACCES, "owner": 4_000_000}, 0, "source-rights", "fault", "hfs mount --as-user 4000000"),
        ({"errno": errno.EACCES, "owner": None}, 0, "source-rights", "fault", "hfs mount --as-user USER"),
        ({"errno": errno.EACCES, "owner": 1}, 9, "source-rights", "fault", "may not be read by user 9"),
        ({"errno": errno.ESTALE}, 0, "source", "fault", "cannot be read (Stale file handle); is its file system up?"),
        ({}, 0, "source", "fault", "does not answer within 5 s"),
        (
            {"done": True, "names": 9, "refused": 2, "denied": [["/s/x", 1]], "opened": 0},
            *(0, "source-rights", "fault", "root may not read /s/x"),
        ),
        (
            {"done": True, "names": 9, "refused": 2, "denied": [["/s/x", 1]], "opened": 3},
            *(9, "source-rights", "limit", "2 of the first 9 names are refused to user 9"),
        ),
        ({"done": True, "names": 9, "refused": 0}, 0, "source", "good", "can be listed"),
    ],
)
def test_what_is_said_of_the_source(
    tmp_path: Path, said: dict[str, Any], uid: int, check: str, level: str, text: str
) -> None:
    told = found(source.check(made_up(tmp_path, uid=uid, source="/s"), lambda *_: {"at": "/s", **said}))
    assert list(told) == [check]
    assert told[check][0] == level
    assert text in told[check][1]


def test_a_source_is_looked_at_as_the_user_whom_a_mount_would_read_it_as(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    around = made_up(tmp_path, uid=0, source=str(tmp_path), as_user="1:1:")
    level, line = found(source.check(around, lambda *_: {"at": "", "errno": errno.EACCES}))["source-rights"]
    assert (level, "may not be read by user 1; give --as-user USER" in line) == ("fault", True)
    assert "user 1 here" in found(source.check(around, lambda *_: {"kept": errno.EPERM}))["source-rights"][1]
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
