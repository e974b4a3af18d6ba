"""Passthrough on real mounts: what a reader sees who has a file open through the kernel alone, through us, or both.

`early` is a handle from before its file was complete: it stays on the daemon's path. `late` is one from after: the
kernel reads the staged file by itself. Which is which is always proved by what `hfs status` counts.
"""

import errno
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import ROOT, Hfs, HfsMount, here, hfs_command, must, must_here
from tests.fuse.hinted import wait_until
from tests.fuse.modes import needs_passthrough, warm
from tests.support.pattern import pattern, write_pattern

pytestmark = needs_passthrough

CHUNK = 64 << 10
SIZE = 23 * CHUNK + 77
PASS = ("--io-mode", "passthrough")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_pattern(folder / "file", 1, SIZE)
    return folder


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def whole(descriptor: int) -> bytes:
    return b"".join(os.pread(descriptor, CHUNK, at) for at in range(0, SIZE + CHUNK, CHUNK))


def opens(hfs: Hfs) -> tuple[int, int]:
    """(passed through, looked up anew). Of the others status itself makes some: it asks what the page cache holds."""
    found = hfs.status()["opens"]
    return found["passed"], found["anew"]


def backing_files(hfs: Hfs) -> int:
    return int(hfs.status()["io_mode"]["backing_files"])


def closed(hfs: Hfs) -> dict[str, Any]:
    """The status once no file is passed through: the kernel tells of a close behind it."""
    return wait_until(hfs, lambda status: status["io_mode"]["backing_files"] == 0)


@contextmanager
def early_and_late(hfs: Hfs, name: str = "file") -> Iterator[tuple[int, int]]:
    """A handle in each mode."""
    with opened(hfs.path / name) as early:
        warm(hfs)
        with opened(hfs.path / name) as late:
            assert opens(hfs) == (1, 1)
            assert hfs.status()["io_mode"]["faster_if_reopened"] == 1
            yield early, late


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_mappings_through_both_modes_show_the_same(source: Path, hfs_mount: HfsMount) -> None:
    """Shared and private, of a handle from before the file was complete and of one that is passed through."""
    hfs = hfs_mount(source, *PASS)
    with ExitStack() as stack:
        early, late = stack.enter_context(early_and_late(hfs))
        maps = [
            stack.enter_context(mmap.mmap(descriptor, SIZE, kind, mmap.PROT_READ))
            for descriptor in (early, late)
            for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)
        ]
        for at in reversed(range(0, SIZE, 5 * 4096 + 1)):
            assert {mapped[at] for mapped in maps} == {pattern(1, at, 1)[0]}
        for mapped in maps:
            assert mapped[:] == pattern(1, 0, SIZE)
        copy = stack.enter_context(mmap.mmap(late, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        copy[: 2 * CHUNK] = bytes(2 * CHUNK)
        for mapped in maps:
            assert mapped[:] == pattern(1, 0, SIZE)
        assert whole(early) == whole(late) == pattern(1, 0, SIZE)


def test_every_way_to_read(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """O_DIRECT, a descriptor opened again below /proc, sendfile, splice, in both modes. cp tries copy_file_range
    first, which the kernel refuses from any FUSE mount to another file system (EXDEV), and goes on without."""
    hfs = hfs_mount(source, *PASS)
    expected = pattern(1, 0, SIZE)
    with early_and_late(hfs) as handles:
        for descriptor in handles:
            assert direct(Path(f"/proc/self/fd/{descriptor}")) == expected
            with opened(Path(f"/proc/self/fd/{descriptor}")) as again:
                assert whole(again) == expected
            for copy in (by_sendfile, by_splice):
                target = tmp_path / copy.__name__
                copy(descriptor, target)
                assert target.read_bytes() == expected, copy.__name__
    assert direct(hfs.path / "file") == expected
    must("cp", hfs.path / "file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == expected
    closed(hfs)


def direct(path: Path) -> bytes:
    """All of a file, read with O_DIRECT into memory that is aligned as it wants."""
    parts = []
    with opened(path, os.O_DIRECT) as descriptor, mmap.mmap(-1, CHUNK) as buffer:
        while size := os.preadv(descriptor, [buffer], len(parts) * CHUNK):
            parts.append(buffer[:size])
    return b"".join(parts)


def by_sendfile(descriptor: int, target: Path) -> None:
    with target.open("wb") as file:
        at = 0
        while size := os.sendfile(file.fileno(), descriptor, at, SIZE):
            at += size


def by_splice(descriptor: int, target: Path) -> None:
    reader, writer = os.pipe()
    with target.open("wb") as file, os.fdopen(reader), os.fdopen(writer, "wb"):
        at = 0
        while size := os.splice(descriptor, writer, 16384, offset_src=at):
            at += size
            while size:
                size -= os.splice(reader, file.fileno(), size)


def test_hard_links_are_one_backing_file(source: Path, hfs_mount: HfsMount) -> None:
    os.link(source / "file", source / "other")
    hfs = hfs_mount(source, *PASS)
    with early_and_late(hfs) as (early, late), opened(hfs.path / "other") as other:
        assert backing_files(hfs) == 1
        assert opens(hfs) == (2, 1)
        assert whole(early) == whole(late) == whole(other) == pattern(1, 0, SIZE)


def test_small_and_empty_files(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Every size around a page and a chunk; an empty file has no staged file and is read through us."""
    tree = tmp_path / "tree"
    tree.mkdir()
    sizes = (0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1)
    for seed, size in enumerate(sizes, 1):
        write_pattern(tree / str(size), seed, size)
    hfs = hfs_mount(tree, *PASS)
    warm(hfs)
    for seed, size in enumerate(sizes, 1):
        assert (hfs.path / str(size)).read_bytes() == pattern(seed, 0, size)
    assert opens(hfs) == (len(sizes) - 1, 0)


# -- changes under open handles ---------------------------------------------------------------------------------------


def test_a_new_version_under_handles_in_both_modes(source: Path, hfs_mount: HfsMount) -> None:
    """Open handles keep the old bytes, whatever their mode; new opens get the new ones; nobody sees an error."""
    hfs = hfs_mount(source, *PASS, "--ttl", "0")
    with early_and_late(hfs) as (early, late), mmap.mmap(late, SIZE, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        with (source / "file").open("r+b") as changed:
            changed.write(pattern(2, 0, SIZE))
        with opened(hfs.path / "file") as new:
            assert whole(new) == pattern(2, 0, SIZE)
            warm(hfs)
            with opened(hfs.path / "file") as newest:
                assert opens(hfs) == (2, 2)
                assert backing_files(hfs) == 2
                assert whole(newest) == pattern(2, 0, SIZE)
                assert whole(new) == pattern(2, 0, SIZE)
            assert whole(early) == whole(late) == mapped[:] == pattern(1, 0, SIZE)
    closed(hfs)
    assert (hfs.path / "file").read_bytes() == pattern(2, 0, SIZE)


def test_every_node_of_a_file_shows_the_inode_number_of_the_source(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *PASS, "--ttl", "0")
    inode = (source / "file").stat().st_ino
    with opened(hfs.path / "file") as early:
        warm(hfs)
        with opened(hfs.path / "file") as late:  # another node of the same version
            assert opens(hfs) == (1, 1)
            assert os.fstat(early).st_ino == os.fstat(late).st_ino == (hfs.path / "file").stat().st_ino == inode
            write_pattern(source / "file", 2, SIZE)  # in place: the same inode, another version
            assert (hfs.path / "file").stat().st_ino == inode
            with opened(hfs.path / "file") as newest:
                assert os.fstat(newest).st_ino == inode
            (entry,) = os.scandir(hfs.path)
            assert entry.inode() == inode


def test_eviction_leaves_a_file_that_is_open(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *PASS)
    warm(hfs)
    with opened(hfs.path / "file") as descriptor:
        evicted = json.loads(hfs.cache_command("evict", "--json", hfs.path / "file").stdout.splitlines()[-1])
        assert (evicted["files"], evicted["skipped"]) == (0, 1)
        assert whole(descriptor) == pattern(1, 0, SIZE)
        assert opens(hfs) == (1, 0)
    closed(hfs)
    must_here("cache", "evict", hfs.path / "file")
    assert hfs.status()["staged"]["files"] == 0
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)


@pytest.mark.parametrize("size", [SIZE, 5000])
def test_damage_that_is_found_under_an_open_handle(size: int, tmp_path: Path, hfs_mount: HfsMount) -> None:
    """`hfs cache check` drops the damaged chunk. No hole is made in what the kernel reads by itself, an open after it
    gets the right bytes although the handle is still open, and so does all of it once the chunk was fetched again."""
    tree = tmp_path / "source"
    tree.mkdir()
    write_pattern(tree / "file", 1, size)
    hfs = hfs_mount(tree, *PASS)
    hfs.expect_warning("damaged|checksum")
    warm(hfs)
    (staged,) = (path for path in (hfs.own_cache / "objects").rglob("*") if path.is_file())
    with opened(hfs.path / "file") as descriptor, mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        with staged.open("r+b") as file:
            file.seek(4000)
            file.write(b"damage")
        damaged = pattern(1, 0, 4000) + b"damage" + pattern(1, 4006, size - 4006)
        found = here("cache", "check", hfs.path)
        assert found.returncode != 0
        assert "1 of" in found.stderr
        assert mapped[:] in (damaged, pattern(1, 0, size))
        with opened(hfs.path / "file") as second:
            assert os.pread(second, size, 0) == pattern(1, 0, size)
            warm(hfs)
            with opened(hfs.path / "file") as third:
                assert os.pread(third, size, 0) == pattern(1, 0, size)
            assert mapped[:] in (damaged, pattern(1, 0, size))
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, size)
    assert must_here("cache", "check", hfs.path).startswith("checked 1 file")
    closed(hfs)


READER = """
import os, random, select, sys
from tests.support.pattern import pattern
path, size, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance, kept, more = random.Random(seed), [], 20
while more:
    kept.append(os.open(path, os.O_RDONLY))
    at = chance.randrange(size)
    assert os.pread(kept[-1], 3000, at) == pattern(1, at, min(3000, size - at))
    if len(kept) == 1 and more == 20:
        print("open", flush=True)
    if len(kept) > 3 or chance.random() < 0.3:
        os.close(kept.pop(chance.randrange(len(kept))))
    if select.select([sys.stdin], [], [], 0)[0]:
        more -= 1
"""


def test_many_open_a_file_while_it_becomes_complete(tmp_path: Path, source: Path, hfs_mount: HfsMount) -> None:
    """No open ever fails because of a mode, and every byte is right."""
    size = 300 * CHUNK + 5
    write_pattern(source / "large", 1, size)
    hfs = hfs_mount(source, *PASS)
    command = [sys.executable, "-c", READER, str(hfs.path / "large"), str(size)]
    with opened(hfs.path / "large"):  # from before, to the end
        readers = [
            subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
            for seed in range(5)
        ]
        try:
            for reader in readers:
                assert reader.stdout
                assert reader.stdout.readline() == b"open\n"
            warm(hfs)
        finally:
            for reader in readers:
                reader.communicate()
    assert [reader.returncode for reader in readers] == [0] * len(readers)
    passed, anew = opens(hfs)
    assert anew > 0
    assert passed >= len(readers)
    closed(hfs)


# -- leaks and crashes ------------------------------------------------------------------------------------------------


def test_a_thousand_opens_leak_nothing(source: Path, hfs_mount: HfsMount) -> None:
    """No descriptor of the daemon, no backing file, no handle."""
    write_pattern(source / "other", 2, 5000)
    hfs = hfs_mount(source, *PASS)
    warm(hfs)

    def open_and_close(times: int) -> None:
        for _ in range(times):
            with opened(hfs.path / "file") as one, opened(hfs.path / "other") as other:
                assert os.pread(one, 8, 5) == pattern(1, 5, 8)
                assert os.pread(other, 8, 5) == pattern(2, 5, 8)

    open_and_close(1)
    closed(hfs)

    def held() -> list[str]:
        """Sockets left out: the connection that has just asked for the status may not be closed yet."""
        links = []
        for number in os.listdir(f"/proc/{hfs.pid}/fd"):
            with suppress(FileNotFoundError):  # it is closed just now
                links.append(os.readlink(f"/proc/{hfs.pid}/fd/{number}"))
        return sorted(link for link in links if not link.startswith("socket:"))

    before = held()
    open_and_close(1000)
    status = wait_until(hfs, lambda status: status["io_mode"]["backing_files"] == status["open"]["files"] == 0)
    assert held() == before
    assert (status["opens"]["passed"], status["opens"]["cached"]) == (2002, 0)


def test_a_file_that_is_passed_through_outlives_its_daemon(source: Path, hfs_mount: HfsMount) -> None:
    """kill -9 of the daemon: what was open reads on, by read and by mmap, also when the mount was made anew. New opens
    fail until then. A handle that is not passed through gets an error for what it has not in memory."""
    hfs = hfs_mount(source, *PASS)
    with ExitStack() as stack:
        early, late = stack.enter_context(early_and_late(hfs))
        mapped = stack.enter_context(mmap.mmap(late, SIZE, mmap.MAP_SHARED, mmap.PROT_READ))
        hfs.kill()
        assert whole(late) == pattern(1, 0, SIZE)
        assert mapped[:] == pattern(1, 0, SIZE)
        os.posix_fadvise(early, 0, 0, os.POSIX_FADV_DONTNEED)
        for ask in (lambda: os.pread(early, 100, 12 * CHUNK), lambda: os.open(hfs.path / "file", os.O_RDONLY)):
            with pytest.raises(OSError, match="not connected") as refused:
                ask()
            assert refused.value.errno == errno.ENOTCONN
        must(hfs_command(), "umount", hfs.path)
        hfs.mount()
        with opened(hfs.path / "file") as again:
            assert whole(again) == pattern(1, 0, SIZE)
            assert opens(hfs) == (1, 0)
            assert hfs.source_bytes() == 0
        closed(hfs)
        # The new daemon may do with its cache what it likes: the blocks live as long as who has them open.
        must_here("cache", "evict", "--all", hfs.path)
        assert hfs.status()["staged"]["files"] == 0
        assert whole(late) == mapped[:] == pattern(1, 0, SIZE)
