"""A thread that becomes another user, and nobody else with it."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from hfs.mountd.core.caller import Credentials, credentials_of
from hfs.mountd.source.identity import look_at
from hfs.mountd.source.threads import become, why_impossible

Value = TypeVar("Value")

WHO = Credentials(61001, 61000, (7, 61005))

needs_root = pytest.mark.skipif(why_impossible() is not None, reason=f"no other user: {why_impossible()}")


def in_a_thread(function: Callable[[], Value]) -> Value:
    found: list[Value] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def status() -> dict[str, list[str]]:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


@needs_root
def test_a_thread_is_somebody_else_for_file_systems(tmp_path: Path) -> None:
    secret, groups = tmp_path / "secret", tmp_path / "groups"
    for path, mode, gid in ((secret, 0o600, 0), (groups, 0o640, 61005)):
        path.write_text("bytes")
        os.chown(path, 0, gid)
        path.chmod(mode)
    folder = os.open(tmp_path, os.O_PATH)
    tmp_path.chmod(0o711)

    def can(name: str) -> bool:
        try:
            os.close(os.open(name, os.O_RDONLY, dir_fd=folder))
            return True
        except PermissionError:
            return False

    def as_who() -> tuple[bool, bool, Credentials | None, str]:
        become(WHO)
        seen = credentials_of(threading.get_native_id(), WHO.uid, WHO.gid)
        return can("secret"), can("groups"), seen, status()["CapEff"][0]

    def as_several() -> list[bool]:
        """A thread may become one after the other; with each it loses what it had as the one before."""
        found = []
        for groups in ((61005,), (), (61005,)):
            become(Credentials(61002, 61002, groups))
            found.append(can("groups"))
        return found

    before = status()
    secret_open, groups_open, seen, capabilities = in_a_thread(as_who)
    assert (secret_open, groups_open, seen) == (False, True, WHO)
    assert int(capabilities, 16) == 0b11 << 6  # to become somebody else, and nothing besides
    assert in_a_thread(as_several) == [True, False, True]
    after = status()
    assert all(before[name] == after[name] for name in ("Uid", "Gid", "Groups", "CapEff"))
    assert in_a_thread(lambda: can("secret"))  # a new thread is the daemon again
    os.close(folder)


@pytest.mark.slow
@needs_root
def test_what_changes_for_the_process_is_taken_back() -> None:
    """Another fsuid makes a process undumpable: no core, and its /proc is root's."""
    code = """
import ctypes
from hfs.mountd.source import why_impossible
assert why_impossible() is None
print(ctypes.CDLL(None).prctl(3))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "1\n"


@pytest.mark.slow
@needs_root
def test_without_the_capabilities_it_says_so() -> None:
    code = "from hfs.mountd.source.threads import why_impossible; print(why_impossible())"
    for missing in ("setuid", "setgid"):
        command = ["setpriv", f"--bounding-set=-{missing}", sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        assert f"set{'groups' if missing == 'setgid' else 'fsuid'}(2)" in done.stdout


def test_nobody_becomes_root() -> None:
    with pytest.raises(OSError, match="root is not another user"):
        become(Credentials(0, 0, ()))


def test_whose_credentials_are_seen() -> None:
    me = threading.get_native_id()
    found = credentials_of(me, os.geteuid(), os.getegid())
    assert found is not None
    assert sorted(found.groups) == sorted(os.getgroups())
    assert credentials_of(me, os.geteuid() + 1, os.getegid()) is None
    assert credentials_of(me, os.geteuid(), os.getegid() + 1) is None
    with subprocess.Popen(["true"]) as gone:
        pass
    assert credentials_of(gone.pid, os.geteuid(), os.getegid()) is None
    assert credentials_of(0, 0, 0) is None


def test_the_kind_of_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("bytes")
    (tmp_path / "l").symlink_to("f")
    told = subprocess.run(["df", "--output=fstype", tmp_path], capture_output=True, check=True, text=True).stdout
    for folder, names, kind in ((tmp_path, (b"", b"f", b"l"), told.split()[-1]), ("/proc", (b"", b"self"), "proc")):
        fd = os.open(folder, os.O_PATH)
        try:
            found = [look_at(fd, name) for name in names]
        finally:
            os.close(fd)
        assert [seen.kind for seen in found] == [kind] * len(names)
        assert all({"rw", "ro"} & set(seen.options) for seen in found)


@needs_root
def test_a_thread_is_wholly_somebody_else_where_nobody_can_trace_the_process() -> None:
    """In a process of its own, which stays closed."""
    code = """
import threading
from pathlib import Path
from hfs.mountd.core.caller import Credentials
from hfs.mountd.source.threads import be_closed, become, become_wholly

def run(function):
    found = []
    def work():
        try:
            function(Credentials(61001, 61000, (7, 61005)))
            lines = Path("/proc/thread-self/status").read_text().splitlines()
            status = dict(line.partition(":")[::2] for line in lines)
            found.append(" ".join(status[name] for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm")).split())
        except OSError as error:
            found.append(error.strerror)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]

assert "traced" in run(become_wholly), "before it is closed"
be_closed()
assert run(become_wholly) == ["61001"] * 4 + ["61000"] * 4 + ["7", "61005"] + ["0" * 16] * 2
run(become)
assert run(become_wholly)[0] == "61001", "and nobody opens it again"
assert Path("/proc/self/status").read_text().split("Uid:")[1].split()[0] == "0"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
