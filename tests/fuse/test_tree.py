"""A tree of odd files looks through the mount exactly as in the source: names, lstat, bytes, links, xattrs.

Each over a plain directory and over slowfs, with chunks so small that every edge is met.
"""

import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.conftest import SMALL_CHUNK_BYTES
from tests.fuse.harness import Hfs, hfs_command, must
from tests.fuse.modes import Mode
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
from tests.support.pattern import check, pattern, write_pattern

AnySource = Callable[[Path], Path]
HfsMount = Callable[..., Hfs]


@pytest.mark.in_modes
def test_every_byte_and_every_stat(
    tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount, io_mode: Mode | None
) -> None:
    """Read twice: the second time comes from the staged files or the page cache."""
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    hfs = hfs_mount(any_source(tree))
    covered = io_mode is not None and io_mode.covered
    assert different_stats(tree, hfs.path, covered=covered) == []
    assert different_contents(tree, hfs.path) == []
    assert different_contents(tree, hfs.path) == []
    assert different_stats(tree, hfs.path, covered=covered) == []


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


def test_more_than_5_gb(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    make_huge_file(tree / "huge")
    hfs = hfs_mount(any_source(tree))
    assert os.stat(hfs.path / "huge").st_size == HUGE_BYTES
    with open(hfs.path / "huge", "rb", buffering=0) as file:
        for at, size in reversed(HUGE_EXTENTS):
            check(99, at, os.pread(file.fileno(), size, at))
        at, size = HUGE_EXTENTS[-1]
        assert os.pread(file.fileno(), 1 << 20, at) == pattern(99, at, size)
        hole_at = (3 << 30) + 777
        assert os.pread(file.fileno(), 50_000, hole_at) == bytes(50_000)
    assert different_bytes(tree / "huge", hfs.path / "huge") is None


def test_large_directory(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """5 000 entries, listed whole, twice at once, and again after rewinding."""
    tree = tmp_path / "tree"
    (tree / "many").mkdir(parents=True)
    names = sorted(f"entry-{number:05d}-" + "x" * (number % 150) for number in range(5000))
    for name in names:
        (tree / "many" / name).touch()
    hfs = hfs_mount(any_source(tree))
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


def test_names_that_are_not_there(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    write_pattern(tree / "file", 1, 100)
    hfs = hfs_mount(any_source(tree))
    for name in (b"missing", b"\xff\xfe", b"n" * 255):
        with pytest.raises(FileNotFoundError):
            os.lstat(os.path.join(os.fsencode(hfs.path), name))
    with pytest.raises(OSError, match="File name too long"):
        os.lstat(hfs.path / ("n" * 256))
    with pytest.raises(NotADirectoryError):
        os.lstat(hfs.path / "file" / "below")
    with pytest.raises(NotADirectoryError):
        os.listdir(hfs.path / "file")
    with pytest.raises(IsADirectoryError), open(hfs.path, "rb"):
        pass


def test_links(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """Hard links are one file, read once from the source; symbolic links are shown as they are and followed."""
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    hfs = hfs_mount(any_source(tree))
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


def test_special_files_are_shown_and_refused(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """lstat tells what they are; opening one fails at once with the errno the kernel has for it, and nothing hangs."""
    tree = tmp_path / "tree"
    tree.mkdir()
    names = make_special_files(tree)
    hfs = hfs_mount(any_source(tree))
    assert different_stats(tree, hfs.path) == []
    for name in names:
        if name == "fifo":
            # The kernel makes the pipe itself; without a reader a writer is refused.
            with pytest.raises(OSError, match=r"No such device or address|Read-only"):
                os.open(hfs.path / name, os.O_WRONLY | os.O_NONBLOCK)
        else:
            with pytest.raises(OSError, match=r"No such device|Permission denied|Operation not permitted"):
                os.open(hfs.path / name, os.O_RDONLY | os.O_NONBLOCK)
    assert hfs.status()["pid"] == hfs.pid


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as the kernel stores it: version 2, then (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 65534
NO_ID = 0xFFFFFFFF
# rw for the owner, r for user 65534, nothing for the group and others, mask r.
ACL_FOR_NOBODY = acl((1, 6, NO_ID), (2, 4, NOBODY), (4, 0, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID))


def test_xattrs_and_acls(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    write_pattern(tree / "file", 1, 100)
    (tree / "dir").mkdir()
    long = pattern(5, 0, 2000)
    try:
        for name in ("file", "dir"):
            os.setxattr(tree / name, "user.origin", b"\x00\xffbytes")
            os.setxattr(tree / name, "user.long", long)
            os.setxattr(tree / name, "user.empty", b"")
            os.setxattr(tree / name, "system.posix_acl_access", ACL_FOR_NOBODY)
        os.setxattr(tree / "dir", "system.posix_acl_default", ACL_FOR_NOBODY)
    except OSError as error:
        pytest.skip(f"the file system below {tmp_path} has no xattrs or no ACLs: {error}")
    hfs = hfs_mount(any_source(tree))
    for name in ("file", "dir"):
        names = set(os.listxattr(tree / name))
        assert {shown for shown in os.listxattr(hfs.path / name) if not shown.startswith("user.hfs.")} == names
        for attribute in names:
            assert os.getxattr(hfs.path / name, attribute) == os.getxattr(tree / name, attribute), attribute
        with pytest.raises(OSError, match="No data available"):
            os.getxattr(hfs.path / name, "user.missing")
    assert different_stats(tree, hfs.path) == []


def test_our_own_xattrs(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """user.hfs.state, user.hfs.tier and user.hfs.socket answer on a file, and do not hide the file's own."""
    tree = tmp_path / "tree"
    tree.mkdir()
    write_pattern(tree / "file", 1, 100)
    hfs = hfs_mount(tree)
    assert stat.S_ISSOCK(os.stat(os.fsdecode(os.getxattr(hfs.path, "user.hfs.socket"))).st_mode)
    for name in ("user.hfs.state", "user.hfs.tier"):
        assert os.getxattr(hfs.path / "file", name)


def as_nobody(folder: Path, question: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Ask in a process of another user, in `folder` (entered before: tmp_path itself is closed to other users)."""
    answer, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, json.dumps(question()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(answer, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_permissions_hold_for_other_users(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """Another user may read through the mount exactly what he may read in the source; ACLs count on both sides."""
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o755)
    for mode in (0o000, 0o600, 0o604, 0o640, 0o644):
        write_pattern(tree / f"mode-{mode:03o}", 1, 100)
        (tree / f"mode-{mode:03o}").chmod(mode)
    (tree / "closed").mkdir()
    write_pattern(tree / "closed" / "inside", 1, 100)
    (tree / "closed").chmod(0o700)
    (tree / "passable").mkdir()
    write_pattern(tree / "passable" / "inside", 1, 100)
    (tree / "passable").chmod(0o711)
    # The group bits of this one are the mask: taken alone they would let the owner's group read.
    write_pattern(tree / "acl-allows", 1, 100)
    write_pattern(tree / "acl-refuses", 1, 100)
    (tree / "acl-refuses").chmod(0o644)
    os.setxattr(tree / "acl-allows", "system.posix_acl_access", ACL_FOR_NOBODY)
    refuse = acl((1, 6, NO_ID), (2, 0, NOBODY), (4, 4, NO_ID), (16, 4, NO_ID), (32, 4, NO_ID))
    os.setxattr(tree / "acl-refuses", "system.posix_acl_access", refuse)
    hfs = hfs_mount(any_source(tree))
    answers = [as_nobody(root, what_is_readable) for root in (tree, hfs.path)]
    assert answers[0] == answers[1]
    expected = {"mode-604", "mode-644", "acl-allows", "passable/inside"}
    assert {name for name, answer in answers[0].items() if answer == 100} == expected


def test_statfs(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """`df` shows the source's size, not the cache disk's."""
    tree = tmp_path / "tree"
    tree.mkdir()
    source = any_source(tree)
    hfs = hfs_mount(source)
    expected, found = os.statvfs(source), os.statvfs(hfs.path)
    assert found.f_blocks * found.f_frsize == expected.f_blocks * expected.f_frsize
    assert found.f_namemax == expected.f_namemax
    assert found.f_flag & os.ST_RDONLY


FAR_AWAY = ("1902-01-01", "1969-12-31 23:59:59.999999999", "2262-04-12", "2300-06-01", "2400-01-01")


@pytest.mark.parametrize("when", FAR_AWAY)
def test_times_far_away_are_shown_and_staged(tmp_path: Path, hfs_mount: HfsMount, when: str) -> None:
    """Broken headers bring such times. Past 2262 nanoseconds no longer fit 64 bits: one such file ended a daemon."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"data")
    must("touch", "-d", f"{when} UTC", source / "file")
    wanted = (source / "file").lstat()
    hfs = hfs_mount(source)
    for _ in range(2):
        assert (hfs.path / "file").lstat().st_mtime_ns == wanted.st_mtime_ns
        assert (hfs.path / "file").read_bytes() == b"data"
        must(hfs_command(), "cache", "warm", hfs.path / "file")  # staged, and in the index
    assert hfs.status()["staged"]["files"] == 1
    assert hfs.status()["faults"]["staging_errors"] == 0
