"""`hfs doctor` on set-ups that are broken for real, in namespaces of their own: each is named, once, and nothing else.

What the machine itself has (an old kernel, a small memory) is there in the unbroken set-up too, and does not count.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hfs.cli.exit_codes import CANNOT_WORK, LIMITS
from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import Hfs, HfsMount, drop_pages, environment, hfs_command, kill, run, stopped
from tests.fuse.injection import hidden, injected
from tests.fuse.slowfs import PROGRAM, SlowSource

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may break /dev and become other users")


# Mounts and sockets of others on this machine are not what is looked at; $1 may stay.
APART = """
set -e
awk '/ - (fuse[.]hfs|overlay hfs)/{print $5}' /proc/self/mountinfo | while read -r place; do
    case "$place" in "$1"/*) ;; *) umount -l "$(printf '%b' "$place")";; esac
done
for place in /run/hfs:0 /tmp/hfs-0:0 /tmp/hfs-65534:65534; do
    [ ! -d "${place%:*}" ] || mount -t tmpfs -o "mode=700,uid=${place#*:}" none "${place%:*}"
done
mkdir -p -m 700 /run/hfs
cd "$1"
"""

# All of /dev but the device of FUSE.
NO_DEVICE = """
mkdir "$1/dev" && mount -t tmpfs none "$1/dev"
for name in null zero full random urandom tty; do
    touch "$1/dev/$name" && mount --bind "/dev/$name" "$1/dev/$name"
done
mount --rbind "$1/dev" /dev
"""

# A user namespace in which every user is who he is, and so many further ones are allowed below it ("-": any number).
IN_A_USER_NAMESPACE = """
import ctypes, os, sys
ready, begun = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    assert ctypes.CDLL(None).unshare(0x10000000 | 0x20000) == 0
    os.write(ready[1], b"x")
    os.read(begun[0], 1)
    if sys.argv[1] != "-":
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
os.read(ready[0], 1)
for name in ("uid_map", "gid_map"):
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write("0 0 4294967295")
os.write(begun[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Seen(NamedTuple):
    """What doctor finds wrong."""

    check: str
    level: str
    line: str


class Doctor:
    """Runs `hfs doctor` in a mount namespace of its own. `folder`: below /tmp, open to others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.cache = folder / "source", folder / "cache"

    def as_root(
        self, broken: str = "", *, before: tuple[str, ...] = (), source: Path | None = None, keep: Path | None = None
    ) -> set[Seen]:
        """`broken`: shell that breaks something, in a new folder $1; `before`: what stands before the command."""
        script = f'{APART}\ncd "$2"\nset -- "$2" "$@"\n{broken}\nshift 3\nexec "$@"'
        own = tempfile.mkdtemp(dir=self.folder)
        apart = ["unshare", "--mount", "sh", "-c", script, "sh", str(keep or own), own]
        return self._findings([*apart, *before], source or self.source)

    def as_user(self, broken: str = "", *, then: str = "", before: tuple[str, ...] = (), uid: int = UID) -> set[Seen]:
        """`broken` as root, where the user may open /dev/fuse already; `then`: what stands before setpriv."""
        own = Path(tempfile.mkdtemp(dir=self.folder))
        own.chmod(0o755)
        command = as_plain_user(own)
        (at,) = (number for number, part in enumerate(command) if "exec setpriv" in part)
        command[at] = (
            command[at].replace("shift 3", f"{broken}\nshift 3").replace("exec setpriv", f"exec {then} setpriv")
        )
        command[at] = command[at].replace(f"--reuid {UID}", f"--reuid {uid}")
        apart = ["unshare", "--mount", "sh", "-c", f'{APART}\nshift\nexec "$@"', "sh", str(own)]
        return self._findings([*apart, *command, *before], self.source, self.folder / "own" / "cache")

    def _findings(self, prefix: list[str], source: Path, cache: Path | None = None) -> set[Seen]:
        places = ("--source", str(source), "--cache", str(cache or self.cache))
        variables = ("env", f"HOME={self.folder}", "HFS_CACHE_SIZE=10M", f"PATH={environment()['PATH']}")
        done = run(*prefix, *variables, hfs_command(), "doctor", "--json", *places)
        assert done.stdout, done
        told = json.loads(done.stdout)
        assert done.returncode == told["exit_code"], done
        assert not done.stderr, done
        wrong = {
            Seen(found["check"], found["level"], f"{found['text']}; {found['remedy']}")
            for found in told["findings"]
            if found["level"] in {"limit", "fault"}
        }
        levels = {found.level for found in wrong}
        assert told["exit_code"] == (CANNOT_WORK if "fault" in levels else LIMITS if levels else 0)
        assert all(
            found["remedy"] or found["check"] == "cache" for found in told["findings"] if found["level"] == "fault"
        )
        return wrong


@pytest.fixture(scope="module")
def as_it_is() -> Iterator[dict[str, set[Seen]]]:
    """What is wrong with this machine, for root and for a plain user, where nothing was broken."""
    with contextlib.contextmanager(made)() as doctor:
        yield {"root": doctor.as_root(), "user": doctor.as_user()}


@pytest.fixture
def doctor() -> Iterator[Doctor]:
    yield from made()


def made() -> Iterator[Doctor]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        (folder / "source").mkdir()
        (folder / "source" / "file").write_text("x")
        (folder / "own").mkdir()
        shutil.chown(folder / "own", UID, UID)
        (folder / "cache").mkdir(mode=0o700)
        yield Doctor(folder)


def named(broken: set[Seen], unbroken: set[Seen]) -> Seen:
    """The one finding that the broken set-up has and the other has not."""
    assert unbroken <= broken
    (seen,) = broken - unbroken
    return seen


ROOT = {
    "no device": (NO_DEVICE, (), "fuse-device", "fault", "/dev/fuse: missing; give the container the device"),
    "another device": (
        'mknod "$1/fuse" c 1 3 && mount --bind "$1/fuse" /dev/fuse',
        (),
        *("fuse-device", "fault", "/dev/fuse: another device; make it"),
    ),
    "cache read-only": (
        'mount --bind "$PWD/../cache" "$PWD/../cache" && mount -o remount,bind,ro "$PWD/../cache"',
        (),
        *("cache", "fault", "Read-only file system); give --cache a directory that you can write to"),
    ),
    "cache full": (
        "mount -t tmpfs -o size=1m,mode=700 none ../cache && head -c 2m /dev/zero > ../cache/all 2> /dev/null || true",
        (),
        *("cache", "fault", "the disk is full; make room"),
    ),
    "cache in memory": (
        "mount -t tmpfs -o mode=700 none ../cache",
        (),
        *("cache", "limit", "on tmpfs: what is staged takes memory from the job"),
    ),
    "cache of others": ("chmod 777 ../cache", (), *("cache", "fault", "may be written to by others (mode 0777)")),
    "few open files": ("", ("prlimit", "--nofile=64"), *("open-files", "limit", "may have 64 files open")),
    "source not there": (
        "umount -l nothing 2> /dev/null || rm -r ../source",
        (),
        *("source", "fault", "no such directory"),
    ),
    "source empty": ("mount -t tmpfs none ../source", (), *("source", "limit", "empty; is its file system mounted")),
}


TOGETHER = (
    ("no device", "cache full", "source not there"),
    ("another device", "cache read-only", "source empty", "few open files"),
    ("cache in memory",),
    ("cache of others",),
)
"""What is broken at a time."""


@pytest.mark.parametrize("cases", TOGETHER, ids=", ".join)
def test_root_is_told_what_is_broken(doctor: Doctor, as_it_is: dict[str, set[Seen]], cases: tuple[str, ...]) -> None:
    rows = [ROOT[case] for case in cases]
    before = tuple(word for _, words, *_ in rows for word in words)
    seen = doctor.as_root("\n".join(broken for broken, *_ in rows), before=before)
    assert as_it_is["root"] <= seen
    found = {(each.check, each.level): each.line for each in seen - as_it_is["root"]}
    assert set(found) == {(check, level) for _, _, check, level, _ in rows}
    for _, _, check, level, text in rows:
        assert text in found[check, level]


USER = {
    "device shut": (
        'chmod 600 "$1/fuse"',
        "fuse-device",
        f"may not be opened by user {UID} (mode 0600); ask for mode 0666",
    ),
    "not set-user-ID": (
        'cp "$(command -v fusermount3)" "$1/plain" && mount --bind "$1/plain" "$(command -v fusermount3)"',
        *("fusermount-rights", "not set-user-ID root"),
    ),
    "nosuid": (
        'it="$(command -v fusermount3)" && mount --bind "$it" "$it" && mount -o remount,bind,nosuid "$it"',
        *("fusermount-rights", "mounted nosuid"),
    ),
    "cache not ours": ("chown root ../own", "cache", f"cannot be written to by user {UID} (Permission denied)"),
    "source shut": ("chmod 700 ../source", "source-rights", f"may not be read by user {UID}; mount as a user who can"),
}


@pytest.mark.parametrize(
    "cases", [("device shut", "cache not ours"), ("not set-user-ID", "source shut"), ("nosuid",)], ids=", ".join
)
def test_a_plain_user_is_told_what_is_broken(
    doctor: Doctor, as_it_is: dict[str, set[Seen]], cases: tuple[str, ...]
) -> None:
    rows = [USER[case] for case in cases]
    seen = doctor.as_user("\n".join(['cd "$1"', *(broken for broken, *_ in rows)]))
    assert as_it_is["user"] <= seen
    found = {each.check: (each.level, each.line) for each in seen - as_it_is["user"]}
    assert set(found) == {check for _, check, _ in rows}
    for _, check, text in rows:
        assert found[check][0] == "fault"
        assert text in found[check][1]


@pytest.mark.parametrize(
    ("before", "check", "text"),
    [
        (("env", "PATH=/nothing"), "fusermount", "fusermount3: not installed"),
        (("setpriv", "--no-new-privs"), "fusermount-rights", "get no further rights (no_new_privs)"),
        (("env", "HFS_ALLOW_OTHER=yes"), "allow-other", "does not let users have it"),
        (("prlimit", "--nproc=100"), "processes", "may have 100 processes and threads"),
    ],
)
def test_a_plain_user_is_told_what_his_own_settings_break(
    doctor: Doctor,
    as_it_is: dict[str, set[Seen]],
    before: tuple[str, ...],
    check: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "PATH=/nothing" in before:
        monkeypatch.setattr(sys.modules[__name__], "environment", lambda: {"PATH": "/nothing"})
        before = ()
    seen = named(doctor.as_user(before=before), as_it_is["user"])
    assert seen.check == check, seen
    assert text in seen.line


def test_a_user_without_a_name_is_told_so(doctor: Doctor, as_it_is: dict[str, set[Seen]]) -> None:
    seen = named(doctor.as_user('chown 54321 "$1/../own"', uid=54321), as_it_is["user"])
    assert (seen.check, seen.level) == ("user-name", "fault"), seen


def test_user_namespaces_that_are_forbidden_are_named_with_the_setting(doctor: Doctor) -> None:
    python = f"{sys.executable} -c '{IN_A_USER_NAMESPACE}'"
    unbroken = doctor.as_user(then=f"{python} -")
    seen = named(doctor.as_user(then=f"{python} 0"), unbroken)
    assert (seen.check, seen.level) == ("user-namespaces", "limit"), seen
    assert "user.max_user_namespaces is 0" in seen.line
    assert "ask for sysctl user.max_user_namespaces=15000, or use hfs run --at DIR" in seen.line


@pytest.mark.parametrize(
    "kind", ["open", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("opendir", "read"))]
)
def test_a_source_that_hangs_is_named_and_hangs_nobody(doctor: Doctor, slow_source: SlowSource, kind: str) -> None:
    slow = slow_source(doctor.source)
    unbroken = doctor.as_root(source=slow.path)
    drop_pages(slow.path / "file")
    slow.order(f"fault {kind} hang")
    seen = named(doctor.as_root(source=slow.path), unbroken)
    slow.order("clear")
    assert (seen.check, seen.level) == ("source", "fault"), seen
    where = f"SOURCE {slow.path}: does" if kind == "opendir" else f"SOURCE {slow.path}: {slow.path}/file: does"
    assert f"{where} not answer within 5 s" in seen.line


def test_root_that_is_nobody_at_the_source_is_named_with_the_user_who_may(
    doctor: Doctor, as_it_is: dict[str, set[Seen]]
) -> None:
    """A FUSE mount of another user, who did not allow others: root may not even look."""
    mounted = f"""
mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse
cp {PROGRAM} slowfs && chmod 755 . slowfs && mkdir own && chown {UID} own
setpriv --reuid {UID} --regid {UID} --clear-groups ./slowfs -f ../source own > /dev/null 2>&1 &
echo $! > slowfs.pid
until grep -q " $PWD/own " /proc/self/mountinfo; do :; done
mount --bind own ../source
"""
    try:
        seen = named(doctor.as_root(mounted), as_it_is["root"])
    finally:
        for told in doctor.folder.glob("*/slowfs.pid"):
            kill(int(told.read_text()))
    assert (seen.check, seen.level) == ("source-rights", "fault"), seen
    assert "root may not list it" in seen.line
    assert "hfs mount --as-user nobody" in seen.line


def test_a_server_that_takes_root_for_nobody_is_named(doctor: Doctor, slow_source: SlowSource) -> None:
    shutil.chown(doctor.source, UID, UID)
    slow = slow_source(doctor.source, at=doctor.folder / "slow")
    unbroken = doctor.as_root(source=slow.path)
    slow.order("squash")
    seen = named(doctor.as_root(source=slow.path), unbroken)
    read_as_nobody = doctor.as_root(source=slow.path, before=("env", f"HFS_AS_USER={UID}:{UID}"))
    slow.order("clear")
    assert read_as_nobody == unbroken
    assert (seen.check, seen.level) == ("source-rights", "fault"), seen
    assert "hfs mount --as-user nobody" in seen.line


def test_private_files_that_root_may_not_read_are_found(doctor: Doctor, as_it_is: dict[str, set[Seen]]) -> None:
    """As where a server takes root for nobody: root without the right to pass over mode bits."""
    (doctor.source / "private").write_text("x")
    (doctor.source / "private").chmod(0o600)
    shutil.chown(doctor.source / "private", UID, UID)
    squashed = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    assert doctor.as_root() == as_it_is["root"]
    seen = named(doctor.as_root(before=squashed), as_it_is["root"])
    assert (seen.check, seen.level) == ("source-rights", "limit"), seen
    assert f"root may not read {doctor.source}/private" in seen.line
    assert "hfs mount --as-user nobody" in seen.line


def test_a_dead_mount_is_named(doctor: Doctor, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(doctor.source)
    unbroken = doctor.as_root(keep=hfs.path.parent)
    hfs.kill()
    seen = named(doctor.as_root(keep=hfs.path.parent), unbroken)
    assert (seen.check, seen.level) == ("dead-mount", "fault"), seen
    assert f"{hfs.path}: the daemon of this mount is dead" in seen.line
    assert f"hfs umount {hfs.path}, or hfs mount there again" in seen.line


def test_a_mount_that_does_not_answer_is_named_and_hangs_nobody(doctor: Doctor, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(doctor.source)
    unbroken = doctor.as_root(keep=hfs.path.parent)
    with stopped(hfs.pid, hfs.keeper):
        seen = named(doctor.as_root(keep=hfs.path.parent), unbroken)
    assert (seen.check, seen.level) == ("silent-mount", "fault"), seen
    assert f"{hfs.path}: the mount does not answer within 5 s; hfs umount --lazy {hfs.path}" in seen.line


def test_a_daemon_of_another_pid_namespace_is_named(doctor: Doctor, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(doctor.source)
    assert [check for check, _ in ours(hfs)] == ["mount"]
    assert [check for check, _ in ours(hfs, "unshare", "--pid", "--fork", "--mount-proc")] == ["pid-namespace"]


def test_without_the_extension_that_is_named(doctor: Doctor, as_it_is: dict[str, set[Seen]]) -> None:
    variables = tuple(f"{name}={value}" for name, value in injected(hidden("hfs.mountd.native._fastpath")).items())
    seen = named(doctor.as_root(before=("env", *variables)), as_it_is["root"])
    assert (seen.check, seen.level) == ("extension", "fault"), seen


def test_a_mount_whose_keeper_was_killed_is_named(doctor: Doctor, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(doctor.source)
    unbroken = ours(hfs)
    os.kill(hfs.keeper, 9)
    while hfs.status()["keeper"]["pid"] is not None:
        pass
    (seen,) = ours(hfs) - unbroken
    assert seen[0] == "mount-without-keeper"


def ours(hfs: Hfs, *before: str) -> set[tuple[str, str]]:
    """What is said of this mount, where its sockets are seen."""
    done = run(*before, hfs_command(), "doctor", "--json")
    assert done.stdout, done
    told = json.loads(done.stdout)
    return {(found["check"], found["text"]) for found in told["findings"] if str(hfs.path) in found["text"]}
