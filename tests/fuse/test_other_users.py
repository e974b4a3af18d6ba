"""Whoever may not read a file at SOURCE cannot read it through the mount, whatever lies below SOURCE and answers."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, hfs_command, must, must_here, run
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.fuse.users import GROUP, MEMBER, NOBODY, User, acl_for, needs_root, refused_by_acl
from tests.support.pattern import pattern, write_pattern

pytestmark = needs_root

SIZE = 3000
BYTES = {name: pattern(seed, 0, SIZE) for seed, name in enumerate(("open", "guarded", "other"), 1)}
METADATA = ("lookup", "getattr", "getxattr", "opendir", "readdir", "open", "read", "readlink")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir(mode=0o755)
    for seed, name in enumerate(BYTES, 1):
        write_pattern(folder / name, seed, SIZE)
    (folder / "guarded").chmod(0o640)
    try:
        refused_by_acl(folder, ["guarded"])
    except OSError as error:
        pytest.skip(f"the file system below {tmp_path} has no ACLs: {error}")
    return folder


def test_a_file_system_without_acls_says_nothing_of_others(tree: Path, hfs_mount: HfsMount) -> None:
    """A file of ramfs below SOURCE has no ACL; those of SOURCE itself go on to count."""
    (tree / "sub").mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", tree / "sub"], check=True)
    try:
        write_pattern(tree / "sub" / "plain", 5, SIZE)
        (tree / "sub").chmod(0o755)
        assert MEMBER.reads(tree, "guarded") is None
        hfs = hfs_mount(tree)
        assert MEMBER.reads(hfs.path, "sub/plain") == pattern(5, 0, SIZE)
        assert MEMBER.reads(hfs.path, "guarded") is None
        assert NOBODY.reads(hfs.path, "guarded") == BYTES["guarded"]
    finally:
        subprocess.run(["umount", "-l", tree / "sub"], check=True)


def test_staged_files_go_on_while_the_source_hangs_for_every_user_and_past_the_ttl(
    tree: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """A source that hangs: who may read a staged file goes on, who may not is refused as before, at most 2 s later."""
    (tree / "link").symlink_to("other")
    slow = slow_source(tree)
    hfs = hfs_mount(slow.path, "-o", "source-timeout=8,ttl=100ms")
    must_here("cache", "warm", hfs.path)

    def all_is_as_it_should_be() -> None:
        assert NOBODY.reads(hfs.path, "guarded") == BYTES["guarded"]
        assert MEMBER.reads(hfs.path, "guarded") is None
        assert NOBODY.reads(hfs.path, "link") == BYTES["other"]
        assert MEMBER.reads(hfs.path, "open") == BYTES["open"]

    all_is_as_it_should_be()
    before = hfs.source_reads()
    slow.order(*(f"fault {kind} hang" for kind in METADATA))
    try:
        while not hfs.status()["stale_served"]:
            all_is_as_it_should_be()
        all_is_as_it_should_be()
    finally:
        slow.order("clear")
    assert hfs.source_reads() == before


# -- a source with permissions of its own -----------------------------------------------------------------------------

STRANGER = User(61002, 61002)
BY_GROUP = User(61003, 61003, (7, GROUP))
"""A member of the group too, by its supplementary groups."""


@pytest.fixture
def guarded(tmp_path: Path, slow_source: SlowSource) -> SlowFs:
    """Everybody's, if one believes the mode bits; the server gives what is in `d` and `l` to members of GROUP alone."""
    folder = tmp_path / "tree"
    (folder / "d").mkdir(parents=True)
    (folder / "free").mkdir()
    for seed, name in enumerate(("d/f", "free/f", "d/run"), 1):
        write_pattern(folder / name, seed, SIZE)
    (folder / "d/run").write_bytes(b"#!/bin/sh\necho it runs\n")
    (folder / "d/run").chmod(0o755)
    (folder / "l").symlink_to("free/f")
    os.setxattr(folder / "d/f", "user.secret", b"of a few")
    for path in (folder, folder / "d", folder / "free"):
        path.chmod(0o755)
    slow = slow_source(folder, "none", "--own-permissions")
    slow.order("guard 61000 /d", "guard 61000 /l")
    return slow


def what_may_be_done(user: User, folder: Path) -> dict[str, object]:
    """Each thing that a user may want to know, and what comes of it."""
    return {
        "read": user.reads(folder, "d/f"),
        "list": user.lists(folder, "d"),
        "free": user.reads(folder, "free/f"),
        "follow": user.run(folder, "readlink", "l").stdout,
        "xattr": user.told(folder, lambda: os.getxattr("d/f", "user.secret")),
        "xattrs": user.told(folder, lambda: os.listxattr("d/f")),
        "direct": user.run(folder, "dd", "if=d/f", "iflag=direct", "status=none").returncode,
        "run": user.run(folder, "sh", "-c", "d/run").returncode,
    }


def test_what_the_source_denies_is_denied_here_whatever_the_mode_bits_say(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    """Also when it is staged, in the page cache, and open by others; supplementary groups count."""
    hfs = hfs_mount(guarded.path)
    must_here("cache", "warm", hfs.path)
    assert (hfs.path / "d/f").read_bytes() == pattern(1, 0, SIZE)
    with (hfs.path / "d/f").open("rb"):
        for user in (MEMBER, STRANGER, BY_GROUP, NOBODY):
            assert what_may_be_done(user, hfs.path) == what_may_be_done(user, guarded.path), user
    assert MEMBER.reads(hfs.path, "d/f") == BY_GROUP.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
    assert STRANGER.reads(hfs.path, "d/f") is None
    assert STRANGER.lists(hfs.path, "d") is None
    assert STRANGER.reads(hfs.path, "free/f") == pattern(2, 0, SIZE)
    found = hfs.status()["other_users"]
    assert found["asked_as_user"] == [
        "fuse.slowfs decides itself about permissions (it is mounted without default_permissions)"
    ]
    assert found["asked"] > 0
    assert found["refused"] > 0
    assert guarded.counters()["refused"] > 0
    with pytest.raises(OSError, match="Operation not supported"):
        os.getxattr(guarded.path / "d/f", "system.posix_acl_access")


def test_what_the_source_denies_is_denied_of_files_that_python_has_no_node_of(
    guarded: SlowFs, hfs_mount: HfsMount
) -> None:
    """The data plane has them, and their bytes: listed with their attributes, and staged by the mount before. Of its
    owner's file the kernel asks for no ACL, which would make a node of it."""
    many = {f"n{seed}": pattern(seed, 0, SIZE) for seed in range(20, 60)}
    for seed, name in enumerate(many, 20):
        write_pattern(guarded.backing / "d" / name, seed, SIZE)
        os.chown(guarded.backing / "d" / name, STRANGER.uid, STRANGER.gid)
    hfs = hfs_mount(guarded.path)
    must_here("cache", "warm", hfs.path)
    hfs.umount()
    again = hfs_mount(guarded.path, "--io-mode", "daemon")  # what may be passed through is opened by Python
    assert sum(entry.stat().st_size == SIZE for entry in os.scandir(again.path / "d")) > len(many)
    assert again.status()["slots"]["known"] > len(many) // 2
    assert [name for name in many if STRANGER.reads(again.path, f"d/{name}") is not None] == []
    assert {name: MEMBER.reads(again.path, f"d/{name}") for name in many} == many


def test_a_yes_is_good_for_the_time_to_live_and_a_no_for_nothing(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(guarded.path)
    assert MEMBER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
    asked = hfs.status()["other_users"]["asked"]
    for _ in range(3):
        assert MEMBER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
    assert hfs.status()["other_users"]["asked"] == asked
    assert STRANGER.reads(hfs.path, "d/f") is None
    guarded.order("unguard")
    assert STRANGER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)


def test_a_yes_ends_with_the_time_to_live(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(guarded.path, "-o", "ttl=100ms")
    guarded.order("unguard")
    assert STRANGER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
    guarded.order("guard 61000 /d")
    while STRANGER.reads(hfs.path, "d/f") is not None:
        pass


def test_a_yes_is_served_while_the_source_hangs_and_nobody_gets_one(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(guarded.path, "-o", "ttl=100ms,source-timeout=4")
    must_here("cache", "warm", hfs.path)
    assert MEMBER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
    hfs.expect_warning("no answer within the time limit")
    guarded.order(*(f"fault {kind} hang" for kind in METADATA))
    try:
        while not hfs.status()["stale_served"]:
            assert MEMBER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
        assert MEMBER.reads(hfs.path, "d/f") == pattern(1, 0, SIZE)
        done = STRANGER.run(hfs.path, "cat", "d/f")
        assert (done.returncode, done.stdout) == (1, b"")
    finally:
        guarded.order("clear")


def test_a_name_that_was_swapped_says_nothing_of_what_it_led_to_before(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    """The question is about the file whose bytes are staged, and not about what stands under its name by now."""
    hfs = hfs_mount(guarded.path)
    assert (hfs.path / "d/f").read_bytes() == pattern(1, 0, SIZE)
    tree = guarded.backing
    guarded.order("unguard", "guard 61000 /kept")
    (tree / "d/f").rename(tree / "d/kept")
    write_pattern(tree / "d/f", 9, SIZE)
    while (seen := STRANGER.run(guarded.path, "cat", "d/f").stdout) != pattern(9, 0, SIZE):
        assert not seen  # the kernel's client of the source remembers names for a second
    assert STRANGER.reads(hfs.path, "d/f") == pattern(9, 0, SIZE)


def test_a_file_that_was_written_anew_says_nothing_of_its_bytes_before(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    """What a user may read now is not what is staged: the same inode, another version."""
    hfs = hfs_mount(guarded.path)
    assert (hfs.path / "d/f").read_bytes() == pattern(1, 0, SIZE)
    (guarded.backing / "d/f").write_bytes(pattern(9, 0, SIZE))
    guarded.order("unguard")
    while STRANGER.run(guarded.path, "cat", "d/f").stdout != pattern(9, 0, SIZE):
        pass  # the kernel's client of the source remembers attributes for a second
    assert STRANGER.reads(hfs.path, "d/f") == pattern(9, 0, SIZE)


def test_a_link_that_was_swapped_says_nothing_of_where_it_led_before(guarded: SlowFs, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(guarded.path)
    assert os.readlink(hfs.path / "l") == "free/f"
    guarded.order("unguard")
    (guarded.backing / "new").symlink_to("d/f")
    (guarded.backing / "new").rename(guarded.backing / "l")
    while STRANGER.run(guarded.path, "readlink", "l").stdout != b"d/f\n":
        pass  # as above
    assert STRANGER.run(hfs.path, "readlink", "l").stdout == b"d/f\n"


def test_the_acl_of_a_file_says_nothing_of_the_one_before(tree: Path, hfs_mount: HfsMount) -> None:
    """The kernel's own check takes the ACL that stands under the name; the bytes are those of another file."""
    hfs = hfs_mount(tree)
    assert (hfs.path / "guarded").read_bytes() == BYTES["guarded"]
    write_pattern(tree / "new", 9, SIZE)
    os.setxattr(tree / "new", "system.posix_acl_access", acl_for(MEMBER.uid))
    (tree / "new").rename(tree / "guarded")
    assert MEMBER.reads(tree, "guarded") == pattern(9, 0, SIZE)
    assert MEMBER.reads(hfs.path, "guarded") == pattern(9, 0, SIZE)


def test_one_that_is_mounted_below_source(tree: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """Each file system is asked in its own way; found when it is first met."""
    (tree.parent / "inner").mkdir()
    write_pattern(tree.parent / "inner" / "f", 7, SIZE)
    (tree / "sub").mkdir()
    hfs = hfs_mount(tree)
    assert MEMBER.reads(hfs.path, "open") == BYTES["open"]
    assert hfs.status()["other_users"] == {"asked_as_user": [], "asked": 0, "refused": 0}
    slow = slow_source(tree.parent / "inner", "none", "--own-permissions", at=tree / "sub")
    slow.order("guard 61000 /f")
    again = hfs_mount(tree, cache=tree.parent / "cache-2")
    assert STRANGER.reads(again.path, "sub/f") is None
    assert MEMBER.reads(again.path, "sub/f") == pattern(7, 0, SIZE)
    assert MEMBER.reads(again.path, "guarded") is None
    assert NOBODY.reads(again.path, "guarded") == BYTES["guarded"]
    again.umount()


def test_no_open_goes_by_unseen_where_the_source_decides(guarded: SlowFs, hfs_mount: HfsMount, tmp_path: Path) -> None:
    hfs = hfs_mount(guarded.path, "--immutable")
    shown = hfs.status()["io_mode"]
    assert "opens are needed: fuse.slowfs decides itself about permissions" in shown["stateless"]
    assert STRANGER.reads(hfs.path, "d/f") is None
    (tmp_path / "mnt").mkdir()
    command = (hfs_command(), "mount", guarded.path, tmp_path / "mnt", "--cache", tmp_path / "cache-2")
    done = run(*command, "--cache-size", "1G", "--immutable", "--io-mode", "stateless")
    assert done.returncode == 2
    assert "io-mode: stateless is not possible here: opens are needed" in done.stderr


def test_what_is_met_later_in_a_mount_without_opens_is_its_owners_alone(
    tree: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    (tree.parent / "inner").mkdir()
    write_pattern(tree.parent / "inner" / "f", 7, SIZE)
    os.chown(tree.parent / "inner" / "f", STRANGER.uid, GROUP)
    (tree / "sub").mkdir()
    slow_source(tree.parent / "inner", "none", "--own-permissions", at=tree / "sub").order("guard 61000 /f")
    hfs = hfs_mount(tree, "--immutable", "--io-mode", "stateless")
    assert MEMBER.reads(hfs.path, "open") == BYTES["open"]
    assert (hfs.path / "sub/f").read_bytes() == pattern(7, 0, SIZE)
    assert stat.S_IMODE((hfs.path / "sub/f").stat().st_mode) == 0o600
    assert NOBODY.reads(hfs.path, "sub/f") is None
    assert MEMBER.reads(hfs.path, "sub/f") is None  # less than the source allows, and never more
    hfs.umount()


def test_without_the_right_to_ask_nobody_else_is_let_in(guarded: SlowFs, tmp_path: Path) -> None:
    """allow-other is refused with the reason; without it the mount is made."""
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    unable = ("setpriv", "--bounding-set=-setuid,-setgid")
    command = (*unable, hfs_command(), "mount", guarded.path, mnt, "--cache", tmp_path / "cache", "--cache-size", "1G")
    done = run(*command)
    assert done.returncode == 2
    assert "hfs: allow-other: fuse.slowfs decides itself about permissions" in done.stderr
    assert "give hfs CAP_SETUID and CAP_SETGID, or -o allow-other=false" in done.stderr
    assert not os.path.ismount(mnt)
    must(*command, "-o", "allow-other=false")
    try:
        assert (mnt / "d/f").read_bytes() == pattern(1, 0, SIZE)
        assert STRANGER.reads(mnt, "free/f") is None
    finally:
        must(hfs_command(), "umount", mnt)


def test_what_the_daemon_says_of_files_is_for_its_owner(tree: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """A log names files that not everybody may know of."""
    hfs = hfs_mount(tree, env={"HFS_LOG_FILE": str(tmp_path / "logs" / "log")})
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "logs").iterdir()} == {0o600}
    assert stat.S_IMODE(hfs.socket.stat().st_mode) == 0o666, "who may ask for what is checked there"
    assert stat.S_IMODE(hfs.cache.stat().st_mode) == 0o700
