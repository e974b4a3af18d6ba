"""An overlay over the mountpoint of root's own `hfs mount --io-mode overlay`: made by its keeper, seen by all, renewed,
and gone with the mount, however that ends."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hfs.client.client import find_socket
from hfs.mountd.supervisor.generations import NUMBERS
from hfs.mountd.supervisor.table import device_at, overlay_lies_at
from hfs.mounting import mountinfo
from tests.fuse.harness import (
    Hfs,
    HfsMount,
    environment,
    hfs_command,
    kill,
    must,
    must_here,
    run,
    stopped,
    unmount_lazily,
    wait_gone,
)
from tests.fuse.overlaid import SOON, this_kernel_has_them, until
from tests.support.pattern import pattern

NAMES = ("a", "b", "large")
SIZES = {"a": 50_000, "b": 60_000, "large": 9 << 20}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the keeper of a plain user may not mount over it"),
    pytest.mark.skipif(not this_kernel_has_them(), reason="this kernel has no overlayfs with a layer of data alone"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for seed, (name, size) in enumerate(SIZES.items(), start=1):
        (folder / name).write_bytes(pattern(seed, 0, size))
    return folder


@pytest.fixture
def hfs(source: Path, hfs_mount: HfsMount) -> Hfs:
    made = hfs_mount(source, "--io-mode", "overlay", "--immutable", env=SOON)
    assert overlay_lies_at(str(made.path)), made.log_text()
    return made


def overlays(place: Path) -> list[int]:
    """Numbers of those that lie there."""
    table = mountinfo.parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return [mount.mount_id for mount in table if mount.mountpoint == str(place) and mount.is_our_overlay]


def staged(hfs: Hfs) -> None:
    """All of it, in an overlay that knows."""
    before = overlays(hfs.path)
    must_here("cache", "warm", hfs.path)
    until(lambda: overlays(hfs.path) not in ([], before) and len(overlays(hfs.path)) == 1)


def is_right(hfs: Hfs, *names: str) -> bool:
    return all((hfs.path / name).read_bytes() == (hfs.source / name).read_bytes() for name in names or NAMES)


def gone(hfs: Hfs) -> None:
    """All of it, and nothing is left."""
    assert all(wait_gone(pid) for pid in (hfs.keeper, hfs.pid)), hfs.log_text()
    hfs.mounted = False
    assert (overlays(hfs.path), device_at(str(hfs.path))) == ([], None)


def test_what_is_staged_is_read_while_nobody_serves_and_umount_leaves_nothing(hfs: Hfs) -> None:
    staged(hfs)
    assert is_right(hfs)
    with stopped(hfs.pid, hfs.keeper):
        assert is_right(hfs)
    assert "overlay" in must(hfs_command(), "status", hfs.path).splitlines()[0]
    listed = json.loads(run(hfs_command(), "status", "--json").stdout)["mounts"]
    assert str(hfs.path) in [mount["mountpoint"] for mount in listed]
    hfs.umount()
    gone(hfs)


def find(hfs: Hfs) -> None:
    """The daemon that answers now."""
    find_socket(str(hfs.path))
    hfs.look()


def test_what_is_in_use_is_unmounted_by_nobody(hfs: Hfs) -> None:
    with (hfs.path / "a").open("rb"):
        done = run(hfs_command(), "umount", hfs.path)
        assert done.returncode == 1
        assert f"process {os.getpid()}" in done.stderr
        staged(hfs)  # and what is open is so in one that was replaced
        done = run(hfs_command(), "umount", hfs.path)
        assert done.returncode == 1
        assert "in use" in done.stderr
    assert is_right(hfs)
    hfs.umount()


def test_after_a_killed_daemon_a_new_one_has_all(hfs: Hfs) -> None:
    staged(hfs)
    for _ in range(3):
        hfs.expect_warning(r"was ended by SIGKILL .*; the next one is started")
        kill(hfs.pid)
        find(hfs)
        assert is_right(hfs)


@pytest.mark.parametrize("command", [pytest.param(["umount"], marks=pytest.mark.long), ["umount", "-R"]], ids=" ".join)
def test_who_unmounts_by_hand_means_the_mount(hfs: Hfs, command: list[str]) -> None:
    must(*command, hfs.path)
    gone(hfs)


def test_what_a_killed_keeper_has_left_is_taken_away(hfs: Hfs) -> None:
    staged(hfs)
    assert is_right(hfs)
    hfs.kill()
    assert is_right(hfs), "the kernel needs nobody for what was looked up"
    assert f"{hfs.path}" in must(hfs_command(), "sweep")
    hfs.mounted = False
    assert (overlays(hfs.path), device_at(str(hfs.path))) == ([], None)


@pytest.mark.long
def test_who_mounts_again_over_a_dead_one_has_it_anew(hfs: Hfs) -> None:
    staged(hfs)
    hfs.kill()
    hfs.mount()
    assert len(overlays(hfs.path)) == 1
    assert is_right(hfs)


@pytest.mark.long
def test_another_release_goes_on_with_it(hfs: Hfs) -> None:
    staged(hfs)
    must(hfs_command(), "mount", "--take-over", hfs.source, hfs.path, "--cache", hfs.cache, *hfs.options)
    find(hfs)
    assert len(overlays(hfs.path)) == 1
    assert is_right(hfs)
    hfs.umount()


def test_a_command_in_place_has_its_own_over_the_mount_itself(hfs: Hfs) -> None:
    command = "grep ' overlay hfs' /proc/self/mountinfo | grep $0; cat $0/a | md5sum; hfs status $0 --json | head -c 20"
    given = ["--source", hfs.source, "--cache", hfs.cache, *hfs.options, "--quiet"]
    done = run(hfs_command(), "run", *given, "--", "sh", "-c", command, hfs.source)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[4] for line in lines[:-2]] == [str(hfs.source)]
    assert lines[-1].startswith('{"')
    assert is_right(hfs)


@pytest.mark.long
def test_at_a_second_place_the_mount_itself_is_shown(hfs: Hfs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    given = ["--cache", hfs.cache, *hfs.options]
    must(hfs_command(), "mount", hfs.source, other, *given)
    assert (other / "a").read_bytes() == (hfs.source / "a").read_bytes()
    assert overlays(other) == []
    must(hfs_command(), "umount", hfs.path)
    assert (overlays(hfs.path), device_at(str(hfs.path))) == ([], None)
    assert (other / "b").read_bytes() == (hfs.source / "b").read_bytes()
    must(hfs_command(), "umount", other)
    gone(hfs)


@contextlib.contextmanager
def command_of(given: Sequence[object]) -> Iterator[subprocess.Popen[bytes]]:
    """Of `hfs run` with these options: it runs, until its input ends."""
    code = "import sys; print('runs', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [hfs_command(), "run", *map(str, given), "--", "python3", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        yield process


def test_who_goes_on_with_a_mount_covers_it(hfs: Hfs) -> None:
    given = ["--source", hfs.source, "--at", hfs.path, "--cache", hfs.cache, *hfs.options, "--quiet"]
    with command_of(given) as process:
        staged(hfs)
        before = overlays(hfs.path)
        kill(hfs.keeper)
        kill(hfs.pid)
        until(lambda: overlays(hfs.path) not in ([], before) and len(overlays(hfs.path)) == 1)
        assert is_right(hfs)
        process.communicate(timeout=40)
    hfs.mounted = False
    assert (overlays(hfs.path), device_at(str(hfs.path))) == ([], None)


@pytest.mark.long
def test_a_mount_that_does_not_answer_holds_up_neither_keeper_nor_end(hfs: Hfs) -> None:
    staged(hfs)
    number = Path(hfs.status()["io_mode"]["overlays"]["number"])
    children = Path(f"/proc/{hfs.keeper}/task/{hfs.keeper}/children")
    before = children.read_text().split()
    os.kill(hfs.pid, signal.SIGSTOP)
    number.with_name("next").write_text("1000")
    number.with_name("next").rename(number)
    until(lambda: len(children.read_text().split()) > len(before))
    must(hfs_command(), "umount", "--lazy", hfs.path)
    hfs.expect_warning("did not answer")
    gone(hfs)


def test_where_there_is_none_a_line_says_so(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    done = run(hfs_command(), "mount", "-v", source, place, "--cache", tmp_path / "cache")
    try:
        assert done.returncode == 0
        assert "overlays: none" in done.stderr
    finally:
        run(hfs_command(), "umount", place)
        if os.path.ismount(place):
            unmount_lazily(place)


@pytest.mark.long
def test_a_command_that_reads_something_else_keeps_none(hfs: Hfs, tmp_path: Path) -> None:
    """Its namespace begins with a copy of all mounts."""
    (tmp_path / "other").mkdir()
    given = ["--source", tmp_path / "other", "--cache", tmp_path / "other-cache", "--quiet"]
    with command_of(given) as process:
        staged(hfs)
        (file,) = (hfs.own_cache / "overlays").glob("maker-*")
        until(lambda: len(set(NUMBERS.unpack(file.read_bytes()))) == 1)
        hfs.umount()
        process.communicate(timeout=40)
    gone(hfs)


APART = """
mount -t tmpfs none /run && mkdir /run/data && mount --bind "$1" /run/data || exit 99
exec hfs status /run/data
"""


def test_where_the_overlay_alone_is_seen_commands_say_so(hfs: Hfs) -> None:
    done = run("unshare", "--mount", "sh", "-c", APART, "sh", hfs.path)
    assert done.returncode == 2
    assert "/run/data: in an overlay over a mount that is not seen here" in done.stderr
