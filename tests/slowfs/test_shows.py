"""What slowfs shows: the folder behind it, unchanged, and what becomes of it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slowfs.mounted import Mount, errno_of, files, read_direct


@pytest.mark.fuse
class TestShows:
    def test_a_tree_of_odd_files(self, mount: Callable[..., Mount], tmp_path: Path) -> None:
        slow = mount()
        root = os.fsencode(slow.backing)
        (slow.backing / "sub/deep").mkdir(parents=True)
        (slow.backing / "empty").touch()
        (slow.backing / "one").write_bytes(b"x")
        (slow.backing / "sub/random").write_bytes(os.urandom(3_000_001))
        Path(os.fsdecode(root + b"/not \xff\xfe utf-8\n")).write_bytes(b"odd name")
        os.link(slow.backing / "one", slow.backing / "sub/hard link")
        os.symlink("sub/random", slow.backing / "link")
        os.symlink(b"\xff nowhere", root + b"/broken")
        os.mkfifo(slow.backing / "fifo")
        os.utime(slow.backing / "one", ns=(1_234_567_891, 987_654_321_012_345_678))
        os.chmod(slow.backing / "empty", 0o640)
        seen = 0
        for folder, folders, names in os.walk(root):
            there = os.fsencode(slow.path) + folder[len(root) :]
            assert sorted(os.listdir(there)) == sorted(folders + names)
            with os.scandir(there) as entries:
                assert {e.name: e.inode() for e in entries} == {e.name: e.inode() for e in os.scandir(folder)}
            for name in [b".", *folders, *names]:
                real, shown = os.lstat(folder + b"/" + name), os.lstat(there + b"/" + name)
                for field in ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_rdev"):
                    assert getattr(shown, field) == getattr(real, field), (name, field)
                assert (shown.st_mtime_ns, shown.st_ctime_ns) == (real.st_mtime_ns, real.st_ctime_ns)
                if os.path.islink(folder + b"/" + name):
                    assert os.readlink(there + b"/" + name) == os.readlink(folder + b"/" + name)
                elif os.path.isfile(folder + b"/" + name):
                    with open(there + b"/" + name, "rb") as a, open(folder + b"/" + name, "rb") as b:
                        assert a.read() == b.read()
                seen += 1
        assert seen == 13
        assert os.statvfs(slow.path).f_blocks == os.statvfs(slow.backing).f_blocks

    def test_extended_attributes(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").touch()
        if errno_of(lambda: os.setxattr(slow.backing / "file", "user.color", b"\0blue")):
            pytest.skip("no user.* attributes on the file system of the temporary directory")
        assert os.listxattr(slow.path / "file") == ["user.color"]
        assert os.getxattr(slow.path / "file", "user.color") == b"\0blue"
        assert errno_of(lambda: os.getxattr(slow.path / "file", "user.taste")) == errno.ENODATA

    def test_a_sparse_file_past_4_gib(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        end = 20_000_000_000
        with open(slow.backing / "huge", "wb") as file:
            file.seek(end - 5)
            file.write(b"tail!")
        with open(slow.path / "huge", "rb") as file:
            assert os.fstat(file.fileno()).st_size == end
            assert os.pread(file.fileno(), 100, end - 10) == b"\0" * 5 + b"tail!"
            assert os.pread(file.fileno(), 100, end) == b""
            assert os.pread(file.fileno(), 8192, 5_000_000_000) == bytes(8192)

    def test_read_past_the_page_cache(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").write_bytes(data := os.urandom(1_000_000))
        assert read_direct(slow.path / "file", 1 << 20) == data
        assert slow.state()["read"] == 1
        assert slow.state()["read_bytes"] == 1_000_000

    def test_a_rewritten_file_at_the_next_open(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "file").write_bytes(b"old")
        assert (slow.path / "file").read_bytes() == b"old"
        (slow.backing / "file").write_bytes(b"new")
        assert (slow.path / "file").read_bytes() == b"new"

    def test_inode_numbers_that_are_used_again(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        for i in range(40):
            (slow.backing / f"file{i}").write_bytes(b"%d" % i)
            assert (slow.path / f"file{i}").read_bytes() == b"%d" % i
            (slow.backing / f"file{i}").unlink()

    def test_renamed_directories(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / "a").mkdir()
        (slow.backing / "a/file").write_bytes(b"first")
        with open(slow.path / "a/file", "rb") as file:
            (slow.backing / "a").rename(slow.backing / "b")
            (slow.backing / "a").mkdir()
            (slow.backing / "a/file").write_bytes(b"second")
            assert (slow.path / "b/file").read_bytes() == b"first"
            assert file.read() == b"first"

    def test_writing_is_refused(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        files(slow.backing, 1)
        path = slow.path / "file0"
        for action in (
            lambda: path.write_bytes(b""),
            lambda: path.open("ab"),
            (slow.path / "new").touch,
            (slow.path / "new").mkdir,
            lambda: (slow.path / "new").symlink_to("x"),
            lambda: (slow.path / "new").hardlink_to(path),
            lambda: path.rename(slow.path / "new"),
            path.unlink,
            lambda: path.chmod(0o600),
            lambda: os.utime(path),
            lambda: os.truncate(path, 0),
            lambda: os.setxattr(path, "user.a", b"b"),
        ):
            assert errno_of(action) == errno.EROFS
        assert (slow.backing / "file0").read_bytes() == b"A" * 100

    def test_the_control_file_is_in_no_listing(self, mount: Callable[..., Mount]) -> None:
        slow = mount()
        (slow.backing / ".slowfs").write_text("hidden by ours")
        files(slow.backing, 1)
        assert os.listdir(slow.path) == ["file0"]
        assert slow.state()["readdir_names"] == 1

    def test_more_files_than_descriptors(self, mount: Callable[..., Mount], tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("file handles can be opened by root only")
        folder = tmp_path / "backing/folder"
        folder.mkdir()
        for number in range(300):
            (folder / f"{number:03}").write_text(f"this is {number}")
        slow = mount("--set", "lookup_us=1", descriptors=100)
        shown = slow.path / "folder"
        for _ in range(2):
            for number in range(300):
                assert os.stat(shown / f"{number:03}").st_ino == os.stat(folder / f"{number:03}").st_ino
                assert (shown / f"{number:03}").read_text() == f"this is {number}"
        assert 50 <= len(os.listdir(f"/proc/{slow.pid}/fd")) < 100
        # A file that has taken the place of another, perhaps its inode number too, is not taken for it.
        for number in range(100, 300):
            (folder / f"{number:03}").unlink()
        for number in range(100, 300):
            (folder / f"new {number:03}").write_text(f"now {number}")
        for number in range(100, 300):
            assert (shown / f"new {number:03}").read_text() == f"now {number}"
