"""Which I/O mode a mount gets, what it says of it, and what is refused, by root and by others.

Reading in each mode is tested elsewhere: the tests marked in_modes, test_passthrough.py, test_stateless.py.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, hfs_command, mounts_below, must, run, unmount_lazily
from tests.fuse.hinted import wait_until
from tests.fuse.modes import needs_passthrough, warm
from tests.support.pattern import pattern, write_pattern

USAGE = 2
SIZE = 300_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_pattern(folder / "file", 1, SIZE)
    return folder


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """disks(kind): a folder on a tmpfs, on an overlay, or on an overlay over an overlay."""
    made: list[Path] = []

    def mount(kind: str, name: str, *options: str) -> Path:
        point = tmp_path / name
        point.mkdir()
        must("mount", "-t", kind, *options, name, point)
        made.append(point)
        return point

    def overlay(name: str, lower: Path, below: Path) -> Path:
        for part in ("upper", "work"):
            (below / name / part).mkdir(parents=True)
        layers = f"lowerdir={lower},upperdir={below / name / 'upper'},workdir={below / name / 'work'}"
        return mount("overlay", name, "-o", layers)

    def disk(kind: str) -> Path:
        tmpfs = mount("tmpfs", "tmpfs")
        if kind == "tmpfs":
            return tmpfs
        (tmpfs / "lower").mkdir()
        one = overlay("overlay", tmpfs / "lower", tmpfs)
        return one if kind == "overlay" else overlay("second", one, tmpfs)

    yield disk
    for point in reversed(made):
        unmount_lazily(point)


def refused(tmp_path: Path, source: Path, *options: str, cache: Path | None = None, **env: str) -> str:
    """`hfs mount` ends with the code for bad input, one line, and nothing mounted. Returns the line."""
    mnt = tmp_path / "refused"
    mnt.mkdir(exist_ok=True)
    done = run(hfs_command(), "mount", source, mnt, "--cache", cache or tmp_path / "cache", *options, env=env)
    assert (done.returncode, done.stdout) == (USAGE, ""), done.stderr
    assert mounts_below(mnt) == []
    (line,) = done.stderr.splitlines()
    return line


# -- what is refused --------------------------------------------------------------------------------------------------


def test_stateless_only_of_what_never_changes(tmp_path: Path, source: Path) -> None:
    said = refused(tmp_path, source, "--io-mode", "stateless")
    assert "io-mode" in said
    assert "stateless only with --immutable" in said


@needs_passthrough
def test_no_passthrough_from_an_overlay_on_an_overlay(
    tmp_path: Path, source: Path, disks: Callable[[str], Path], hfs_mount: HfsMount
) -> None:
    """Deeper than the kernel goes: asked for it is refused, with `auto` it is done without, and told."""
    cache = disks("overlay on overlay") / "cache"
    assert "stacked file system" in refused(tmp_path, source, "--io-mode", "passthrough", cache=cache)
    hfs = hfs_mount(source, cache=cache)
    warm(hfs)
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)
    status = hfs.status()
    assert (status["io_mode"]["mode"], status["opens"]["passed"]) == ("daemon", 0)
    assert "stacked file system" in status["io_mode"]["passthrough"]


# -- what is taken ----------------------------------------------------------------------------------------------------


@needs_passthrough
@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_cache_on(kind: str, source: Path, disks: Callable[[str], Path], hfs_mount: HfsMount) -> None:
    """Once closed and evicted its blocks are free: the kernel has let go of the backing file too."""
    disk = disks(kind)
    hfs = hfs_mount(source, "--io-mode", "passthrough", cache=disk / "cache")
    warm(hfs)
    with open(hfs.path / "file", "rb", buffering=0) as file:
        assert file.read() == pattern(1, 0, SIZE)
        status = hfs.status()
    assert (status["io_mode"]["passthrough"], status["opens"]["passed"]) == ("available", 1)
    assert status["io_mode"]["backing_files"] == 1
    wait_until(hfs, lambda status: status["io_mode"]["backing_files"] == 0)  # the kernel tells of a close behind it
    full = os.statvfs(disk)
    assert hfs.cache_command("evict", "--all", hfs.path).returncode == 0
    freed_bytes = (os.statvfs(disk).f_bfree - full.f_bfree) * full.f_frsize
    assert freed_bytes > SIZE / 2  # less than all of it: the index has grown by some pages


@needs_passthrough
def test_mount_says_how_files_will_be_read(source: Path, tmp_path: Path) -> None:
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    done = run(hfs_command(), "mount", "-v", source, mnt, "--cache", tmp_path / "cache")
    shown = must(hfs_command(), "status", "--all", mnt)
    must(hfs_command(), "umount", mnt)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [line.partition(", with")[0] for line in done.stderr.splitlines()] == [
        "hfs: io mode: passthrough (the kernel can read staged files by itself)",
        "hfs: passthrough: available",
        "hfs: stateless: only with --immutable, since nothing is asked again at an open",
        "hfs: extension: loaded",
        "hfs: overlays: none: only with --immutable, since what was looked up once is not looked at again",
        "hfs: readahead: 1024 KiB",
        "hfs: background requests: 512",
    ]
    for words in ("io mode", "the kernel can read staged files by itself", "asked for", "opens", "stateless"):
        assert words in shown


# -- without root -----------------------------------------------------------------------------------------------------

# Root of a user namespace of its own: it may mount FUSE, and has no right outside of it.
UNPRIVILEGED = ("unshare", "--user", "--map-root-user", "--mount")

SCRIPT = """
hfs mount -v "$1" "$2" --cache "$3" 2>&1 || exit 10
cat "$2/file" >/dev/null && hfs cache warm "$2" >/dev/null && cmp "$1/file" "$2/file" || exit 11
hfs status --json "$2" | grep -o '"passed": [0-9][0-9]*'
hfs umount "$2" || exit 12
hfs mount "$1" "$2" --cache "$3" --io-mode passthrough 2>&1
echo "code $?"
grep -c " $2 " /proc/self/mountinfo
hfs mount "$1" "$2" --cache "$3" --io-mode stateless --immutable || exit 13
cmp "$1/file" "$2/file" || exit 14
hfs status --json "$2" | grep -o '"stateless": [0-9][0-9]*'
hfs umount "$2" || exit 15
grep -c " $2 " /proc/self/mountinfo
"""


def test_without_privileges(source: Path, tmp_path: Path) -> None:
    """`auto` does without passthrough and says why; asked for it is refused, and nothing is left mounted. Stateless
    needs no rights."""
    if (tried := run(*UNPRIVILEGED, "true")).returncode:
        pytest.skip(f"no user namespaces here: {tried.stderr}")
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    done = run(*UNPRIVILEGED, "sh", "-c", SCRIPT, "sh", source, mnt, tmp_path / "cache")
    lines = done.stdout.splitlines()
    reason = "it needs CAP_SYS_ADMIN: mount as root"
    assert lines[:2] == [f"hfs: io mode: daemon (no passthrough: {reason})", f"hfs: passthrough: {reason}"], done
    assert lines[7:] == [
        '"passed": 0',
        f"hfs: io-mode: passthrough is not possible here: {reason}",
        "code 2",
        "0",
        '"stateless": 1',
        "0",
    ], done
