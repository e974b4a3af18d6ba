"""What slowfs shows: the folder behind it, unchanged, and what becomes of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slowfs.mounted import Mount, files


@pytest.mark.fuse
class TestShows:
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
