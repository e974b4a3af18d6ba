"""A tree of odd files looks through the mount exactly as in the source: names, lstat, bytes, links, xattrs.

Over a plain directory, over slowfs and in each I/O mode, with chunks so small that every edge is met.
"""

import ast
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse import users
from tests.fuse.conftest import SMALL_CHUNK_BYTES, Show, Shown
from tests.fuse.harness import HfsMount, must, must_here
from tests.fuse.modes import MODES, needs_overlays
from tests.fuse.trees import (
    HUGE_BYTES,
    HUGE_EXTENTS,
    different_bytes,
    different_contents,
    different_stats,
    make_huge_file,
    make_odd_tree,
    make_special_files,
)
from tests.fuse.users import NO_ID, acl, acl_for, needs_root
from tests.support.pattern import check, pattern, write_pattern

AnySource = Callable[[Path], Path]


def make_tree(tree: Path) -> None:
    make_odd_tree(tree, SMALL_CHUNK_BYTES)
    make_special_files(tree)
    with contextlib.suppress(OSError):  # where there are no ACLs; the tests that want them look for what was made
        make_attributes(tree)
        make_modes(tree)


@pytest.fixture(scope="module")
def shown(show: Show) -> Shown:
    return show(make_tree)


def test_every_byte_and_every_stat(shown: Shown) -> None:
    """Read twice: the second time comes from the staged files or the page cache."""
    assert different_stats(shown.tree, shown.hfs.path) == []
    assert different_contents(shown.tree, shown.hfs.path) == []
    assert different_contents(shown.tree, shown.hfs.path) == []
    assert different_stats(shown.tree, shown.hfs.path) == []
    shown.prove()


@pytest.mark.long
@needs_overlays
def test_every_byte_and_every_stat_in_an_overlay(tmp_path: Path, hfs_mount: HfsMount) -> None:
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    hfs = MODES["overlay"].mount(hfs_mount, tree)
    assert different_stats(tree, hfs.path, covered=True) == []
    assert different_contents(tree, hfs.path) == []
    MODES["overlay"].prove(hfs)


@pytest.mark.in_modes("passthrough", "stateless")
def test_bytes_from_the_cache_after_a_remount(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    source = any_source(tree)
    first = hfs_mount(source)
    assert different_contents(tree, first.path) == []
    first.umount()
    first.mount()
    assert different_contents(tree, first.path) == []
    assert first.source_bytes() == 0


def test_chunks_of_the_default_size(tmp_path: Path, hfs_mount: HfsMount) -> None:
    chunk_bytes = 8 << 20
    tree = tmp_path / "tree"
    tree.mkdir()
    for seed, size in enumerate((chunk_bytes - 1, chunk_bytes, chunk_bytes + 1, 3 * chunk_bytes + 5), 1):
        write_pattern(tree / str(size), seed, size)
    hfs = hfs_mount(tree, chunk_bytes=chunk_bytes)
    assert different_contents(tree, hfs.path) == []


def test_more_than_5_gb(tmp_path: Path, hfs_mount: HfsMount) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    make_huge_file(tree / "huge")
    hfs = hfs_mount(tree)
    assert os.stat(hfs.path / "huge").st_size == HUGE_BYTES
    with open(hfs.path / "huge", "rb", buffering=0) as file:
        for at, size in reversed(HUGE_EXTENTS):
            check(99, at, os.pread(file.fileno(), size, at))
        at, size = HUGE_EXTENTS[-1]
        assert os.pread(file.fileno(), 1 << 20, at) == pattern(99, at, size)
        hole_at = (3 << 30) + 777
        assert os.pread(file.fileno(), 50_000, hole_at) == bytes(50_000)
    assert different_bytes(tree / "huge", hfs.path / "huge") is None


def test_large_directory(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """5 000 entries, listed whole, twice at once, and again after rewinding."""
    tree = tmp_path / "tree"
    (tree / "many").mkdir(parents=True)
    names = sorted(f"entry-{number:05d}-" + "x" * (number % 150) for number in range(5000))
    for name in names:
        (tree / "many" / name).touch()
    hfs = hfs_mount(tree)
    assert sorted(os.listdir(hfs.path / "many")) == names
    with os.scandir(hfs.path / "many") as one, os.scandir(hfs.path / "many") as other:
        together = list(zip(one, other, strict=True))
    assert sorted(entry.name for entry, _ in together) == sorted(entry.name for _, entry in together) == names
    assert all(entry.is_file(follow_symlinks=False) and entry.stat().st_ino == entry.inode() for entry, _ in together)
    directory = os.open(hfs.path / "many", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert sorted(os.listdir(directory)) == names
        assert sorted(os.listdir(directory)) == names
    finally:
        os.close(directory)
    assert different_stats(tree, hfs.path) == []


def test_ls_l_is_the_same(shown: Shown) -> None:
    command = ("env", "LC_ALL=C", "ls", "-lAin", "--time-style=full-iso")
    for folder in ("", "names", "links"):
        assert must(*command, shown.hfs.path / folder) == must(*command, shown.tree / folder)


def test_names_that_are_not_there(shown: Shown) -> None:
    root = shown.hfs.path
    for name in (b"missing", b"\xff\xfe", b"m" * 255):
        with pytest.raises(FileNotFoundError):
            os.lstat(os.path.join(os.fsencode(root), name))
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(root / ("n" * 256))
    with pytest.raises(NotADirectoryError):
        os.lstat(root / "page" / "below")
    with pytest.raises(NotADirectoryError):
        os.listdir(root / "page")
    with pytest.raises(IsADirectoryError), open(root, "rb"):
        pass


def test_links(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Hard links are one file, read once from the source; symbolic links are shown as they are and followed."""
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    hfs = hfs_mount(tree)
    links = hfs.path / "links"
    inodes = {os.stat(path).st_ino for path in (links / "first", links / "second", hfs.path / "third")}
    assert len(inodes) == 1
    assert os.stat(links / "first").st_nlink == 3
    before = hfs.source_bytes()
    for name in ("first", "second", "relative", "upwards"):
        check(98, 0, (links / name).read_bytes())
    assert hfs.source_bytes() - before == os.stat(links / "first").st_size
    assert os.readlink(links / "absolute-into-source") == str(tree / "links" / "first")
    assert (links / "absolute-outside").read_bytes() == Path("/proc/version").read_bytes()
    with pytest.raises(FileNotFoundError):
        (links / "dangling").read_bytes()
    with pytest.raises(OSError, match="symbolic links"):
        (links / "to-itself").read_bytes()


def test_special_files_are_refused(shown: Shown) -> None:
    """Opening one fails at once with the errno the kernel has for it, and nothing hangs."""
    # The kernel makes the pipe itself; without a reader a writer is refused.
    with pytest.raises(OSError, match=r"No such device or address|Read-only"):
        os.open(shown.hfs.path / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    for name in {"socket", "char-device", "block-device"} & set(os.listdir(shown.tree)):
        with pytest.raises(OSError, match=r"No such device|Permission denied|Operation not permitted"):
            os.open(shown.hfs.path / name, os.O_RDONLY | os.O_NONBLOCK)
    assert shown.hfs.status()["pid"] == shown.hfs.pid


NOBODY = 65534
# rw for the owner, r for user 65534, nothing for the group and others, mask r.
ACL_FOR_NOBODY = acl_for(NOBODY)


def make_attributes(tree: Path) -> None:
    (tree / "attributes").mkdir()
    write_pattern(tree / "attributes" / "file", 1, 100)
    (tree / "attributes" / "dir").mkdir()
    for name in ("file", "dir"):
        os.setxattr(tree / "attributes" / name, "user.origin", b"\x00\xffbytes")
        os.setxattr(tree / "attributes" / name, "user.long", pattern(5, 0, 2000))
        os.setxattr(tree / "attributes" / name, "user.empty", b"")
        os.setxattr(tree / "attributes" / name, "system.posix_acl_access", ACL_FOR_NOBODY)
    os.setxattr(tree / "attributes" / "dir", "system.posix_acl_default", ACL_FOR_NOBODY)


def test_xattrs_and_acls(shown: Shown) -> None:
    if not (shown.tree / "modes").exists():
        pytest.skip(f"the file system below {shown.tree} has no xattrs or no ACLs")
    for name in ("attributes/file", "attributes/dir"):
        names = set(os.listxattr(shown.tree / name))
        assert {each for each in os.listxattr(shown.hfs.path / name) if not each.startswith("user.hfs.")} == names
        for attribute in names:
            assert os.getxattr(shown.hfs.path / name, attribute) == os.getxattr(shown.tree / name, attribute), attribute
        with pytest.raises(OSError, match="No data available"):
            os.getxattr(shown.hfs.path / name, "user.missing")


def what_is_readable() -> dict[str, object]:
    """Name -> bytes read, names listed, or "refused", for the working directory and the folders in it."""
    answers: dict[str, object] = {}
    for name in [*os.listdir("."), "closed/inside", "passable/inside"]:
        try:
            if os.path.isdir(name):
                answers[name] = os.listdir(name)
            else:
                with open(name, "rb", buffering=0) as file:
                    answers[name] = len(file.read())
        except PermissionError:
            answers[name] = "refused"
    return answers


def make_modes(tree: Path) -> None:
    root = tree / "modes"
    root.mkdir(mode=0o755)
    for mode in (0o000, 0o600, 0o604, 0o640, 0o644):
        write_pattern(root / f"mode-{mode:03o}", 1, 100)
        (root / f"mode-{mode:03o}").chmod(mode)
    (root / "closed").mkdir()
    write_pattern(root / "closed" / "inside", 1, 100)
    (root / "closed").chmod(0o700)
    (root / "passable").mkdir()
    write_pattern(root / "passable" / "inside", 1, 100)
    (root / "passable").chmod(0o711)
    # The group bits of this one are the mask: taken alone they would let the owner's group read.
    write_pattern(root / "acl-allows", 1, 100)
    write_pattern(root / "acl-refuses", 1, 100)
    (root / "acl-refuses").chmod(0o644)
    os.setxattr(root / "acl-allows", "system.posix_acl_access", ACL_FOR_NOBODY)
    refuse = acl((1, 6, NO_ID), (2, 0, NOBODY), (4, 4, NO_ID), (16, 4, NO_ID), (32, 4, NO_ID))
    os.setxattr(root / "acl-refuses", "system.posix_acl_access", refuse)


@needs_root
def test_permissions_hold_for_other_users(shown: Shown) -> None:
    """Another user may read through the mount exactly what he may read in the source; ACLs count on both sides."""
    answers = [
        ast.literal_eval(users.NOBODY.told(root / "modes", what_is_readable)) for root in (shown.tree, shown.hfs.path)
    ]
    assert answers[0] == answers[1]
    expected = {"mode-604", "mode-644", "acl-allows", "passable/inside"}
    assert {name for name, answer in answers[0].items() if answer == 100} == expected


def test_statfs(shown: Shown) -> None:
    """`df` shows the source's size, not the cache disk's."""
    expected, found = os.statvfs(shown.source), os.statvfs(shown.hfs.path)
    assert found.f_blocks * found.f_frsize == expected.f_blocks * expected.f_frsize
    assert found.f_namemax == expected.f_namemax
    assert found.f_flag & os.ST_RDONLY


FAR_AWAY = ("1902-01-01", "1969-12-31 23:59:59.999999999", "2262-04-12", "2300-06-01", "2400-01-01")


def test_times_far_away_are_shown_and_staged(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Broken headers bring such times. Past 2262 nanoseconds no longer fit 64 bits: one such file ended a daemon."""
    source = tmp_path / "source"
    source.mkdir()
    for number, when in enumerate(FAR_AWAY):
        (source / str(number)).write_bytes(b"data")
        must("touch", "-d", f"{when} UTC", source / str(number))
    hfs = hfs_mount(source)
    for _ in range(2):
        for number in range(len(FAR_AWAY)):
            assert (hfs.path / str(number)).lstat().st_mtime_ns == (source / str(number)).lstat().st_mtime_ns
            assert (hfs.path / str(number)).read_bytes() == b"data"
        must_here("cache", "warm", hfs.path)  # staged, and in the index
    assert hfs.status()["staged"]["files"] == len(FAR_AWAY)
    assert hfs.status()["faults"]["staging_errors"] == 0
