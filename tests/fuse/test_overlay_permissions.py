"""Through the overlay over root's own mount nobody gets more, or less, than SOURCE allows.

An overlay checks mode bits and POSIX ACLs by itself, and opens with the rights of whoever has made it."""

import os
from pathlib import Path

import pytest

from hfs.mountd.supervisor.table import overlay_lies_at
from tests.fuse.harness import Hfs, HfsMount, hfs_command, must_here, run
from tests.fuse.overlaid import this_kernel_has_them
from tests.fuse.slowfs import SlowSource
from tests.fuse.users import GROUP, MEMBER, NO_ID, NOBODY, User, acl, needs_root
from tests.support.pattern import pattern, write_pattern

pytestmark = [
    needs_root,
    pytest.mark.skipif(not this_kernel_has_them(), reason="this kernel has no overlayfs with a layer of data alone"),
]

OVERLAY = ("--io-mode", "overlay", "--immutable")
SIZE = 3000
STRANGER = User(61002, 61002)
OWNER = User(61005, 61005)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Below a folder that users can pass who stand in it."""
    folder = tmp_path / "tree"
    folder.mkdir(mode=0o755)
    write_pattern(folder / "f", 1, SIZE)
    (folder / "f").chmod(0o644)
    return folder


def staged(hfs: Hfs) -> Hfs:
    must_here("cache", "warm", hfs.path)
    must_here("refresh", hfs.path)  # so that there is an overlay that knows
    assert overlay_lies_at(str(hfs.path))
    return hfs


@pytest.mark.parametrize(
    ("mode", "group", "named"),
    [
        (0o750, 0, NOBODY.uid),
        pytest.param(0o770, 5, OWNER.uid, marks=pytest.mark.long),
        pytest.param(0o755, 5, NOBODY.uid, marks=pytest.mark.long),
    ],
    ids=["the group is kept out", "and let in", "one is kept out"],
)
def test_the_acl_of_the_root_counts(tree: Path, hfs_mount: HfsMount, mode: int, group: int, named: int) -> None:
    """Its group bits are a mask."""
    os.chown(tree, OWNER.uid, GROUP)
    mask, others = mode >> 3 & 7, mode & 7
    its = 0 if others else 5
    os.setxattr(
        tree,
        "system.posix_acl_access",
        acl((1, 7, NO_ID), (2, its, named), (4, group, NO_ID), (16, mask, NO_ID), (32, others, NO_ID)),
    )
    hfs = staged(hfs_mount(tree, *OVERLAY))
    for user in (OWNER, MEMBER, NOBODY, STRANGER):
        read, listed = (user.told(tree, ask) for ask in (reads_f, lists))
        assert (user.told(hfs.path, reads_f), user.told(hfs.path, lists)) == (read, listed), user


def reads_f() -> bytes:
    with open("f", "rb") as file:
        return file.read()


def lists() -> list[str]:
    return os.listdir(".")


def test_an_acl_of_the_root_that_has_gone_counts_no_more(tree: Path, hfs_mount: HfsMount) -> None:
    os.chown(tree, OWNER.uid, GROUP)
    os.setxattr(
        tree,
        "system.posix_acl_access",
        acl((1, 7, NO_ID), (2, 5, NOBODY.uid), (4, 0, NO_ID), (16, 5, NO_ID), (32, 0, NO_ID)),
    )
    hfs = staged(hfs_mount(tree, *OVERLAY))
    assert NOBODY.told(hfs.path, lists) == repr(["f"])
    os.removexattr(tree, "system.posix_acl_access")
    tree.chmod(0o750)
    must_here("refresh", hfs.path)
    for user in (OWNER, MEMBER, NOBODY):
        assert user.told(hfs.path, lists) == user.told(tree, lists), user


def test_a_mount_of_roots_alone_has_none(tree: Path, tmp_path: Path) -> None:
    """It would let in whom the kernel keeps out of the mount."""
    place = tmp_path / "place"
    place.mkdir()
    command = ("mount", tree, place, "--cache", tmp_path / "cache", *OVERLAY, "-o", "allow-other=false")
    done = run(hfs_command(), *command)
    assert done.returncode == 2
    assert "io-mode: overlay is not possible here: only with allow-other as root" in done.stderr


def test_what_a_file_system_below_source_denies_is_denied(
    tree: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """Whatever its mode bits say: they are shown to its owner alone, and root asks for nobody then."""
    inner = tree.parent / "inner"
    inner.mkdir()
    write_pattern(inner / "f", 7, SIZE)
    for path in (inner, inner / "f"):
        path.chmod(0o755)
    (tree / "sub").mkdir()
    slow = slow_source(inner, "none", "--own-permissions", at=tree / "sub")
    slow.order("guard 61000 /f")
    hfs = hfs_mount(tree, *OVERLAY)
    assert overlay_lies_at(str(hfs.path))
    assert NOBODY.reads(hfs.path, "f") == pattern(1, 0, SIZE)
    for _ in range(2):
        assert STRANGER.reads(hfs.path, "sub/f") is None
        assert (hfs.path / "sub" / "f").read_bytes() == pattern(7, 0, SIZE)
    hfs.umount()
