"""What is open when the daemon is killed goes on: handles of every I/O mode, mappings, working directories, listings.

Real mounts, real kills. Never an I/O error, and never a byte of another version; ESTALE only for bytes that nobody has
any more.
"""

import contextlib
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, Hfs, drop_pages, environment, must
from tests.fuse.inherited import DAEMON, MODES, STATELESS, wait_closed
from tests.fuse.modes import needs_passthrough, warm
from tests.support.pattern import check, pattern, write_pattern

HfsMount = Callable[..., Hfs]

CHUNK = 64 << 10
SIZE = 20 * CHUNK + 77
SMALL = 3000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """`large` (seed 1), `other` (seed 2), and `sub/N` of seed 10 + N."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    write_pattern(folder / "large", 1, SIZE)
    write_pattern(folder / "other", 2, SIZE)
    for number in range(5):
        write_pattern(folder / "sub" / str(number), 10 + number, SMALL)
    return folder


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_all(descriptor: int, seed: int, size: int = SIZE) -> None:
    """Not what the kernel has read ahead already."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    at = 0
    while at < size:
        data = os.pread(descriptor, 100_000, at)
        assert data
        check(seed, at, data)
        at += len(data)


@needs_passthrough
@pytest.mark.parametrize("mode", MODES)
def test_an_open_file_reads_on(source: Path, hfs_mount: HfsMount, mode: str) -> None:
    """In every mode, after one crash and after another; closed, nothing of it is left."""
    hfs = hfs_mount(source, *MODES[mode])
    warm(hfs)
    with opened(hfs.path / "large") as large, opened(hfs.path / "sub" / "1") as small:
        read_all(large, 1, CHUNK)
        for _ in range(2):
            hfs.crash()
            read_all(large, 1)
            read_all(small, 11, SMALL)
            assert os.fstat(large).st_size == SIZE
            with opened(hfs.path / "large") as again:  # its node has handles of the daemon before
                read_all(again, 1)
            assert (hfs.path / "sub" / "2").read_bytes() == pattern(12, 0, SMALL)
        if mode != "stateless":
            assert hfs.status()["open"]["files"] >= 2  # and what status itself has opened to look at
    assert wait_closed(hfs)


def test_an_open_file_of_which_little_is_staged_reads_on_from_the_source(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, *DAEMON)
    with opened(hfs.path / "large") as large:
        assert os.pread(large, 10, 5 * CHUNK) == pattern(1, 5 * CHUNK, 10)
        hfs.crash()
        read_all(large, 1)


READER = """
import mmap, sys
from tests.support.pattern import pattern
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
mapped.madvise(mmap.MADV_RANDOM)
for line in sys.stdin:
    start = int(line)
    for page in range(start, len(mapped), 2 * mmap.PAGESIZE):
        end = min(page + 8, len(mapped))
        assert mapped[page:end] == pattern(1, page, end - page), page
    print("read", flush=True)
"""


@needs_passthrough
@pytest.mark.parametrize("mode", MODES)
def test_a_mapping_goes_on(source: Path, hfs_mount: HfsMount, mode: str) -> None:
    """Its pages, and those that it faults in later; the file itself was closed when it was mapped."""
    hfs = hfs_mount(source, *MODES[mode])
    warm(hfs)
    command = [sys.executable, "-c", READER, str(hfs.path / "large")]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin
        assert reader.stdout
        print(0, file=reader.stdin, flush=True)
        assert reader.stdout.readline() == "read\n"
        hfs.crash()
        drop_pages(hfs.path / "large")
        for start in (0, mmap.PAGESIZE):
            print(start, file=reader.stdin, flush=True)
            assert reader.stdout.readline() == "read\n"
        reader.stdin.close()
    assert reader.returncode == 0


WORKER = """
import os, sys
from tests.support.pattern import pattern
for line in sys.stdin:
    assert os.getcwd() == sys.argv[1], os.getcwd()
    assert sorted(os.listdir(".")) == sorted(line.split()), os.listdir(".")
    for name in line.split():
        with open(name, "rb") as file:
            assert file.read() == pattern(10 + int(name), 0, int(sys.argv[2]))
    os.stat("../large")
    print("worked", flush=True)
"""


@pytest.mark.parametrize("options", [DAEMON, STATELESS], ids=["daemon", "stateless"])
def test_whoever_works_in_a_directory_goes_on(source: Path, hfs_mount: HfsMount, options: tuple[str, ...]) -> None:
    """Names in it are looked up by its node alone, whatever leads there."""
    hfs = hfs_mount(source, *options)
    command = [sys.executable, "-c", WORKER, str(hfs.path / "sub"), str(SMALL)]
    with subprocess.Popen(
        command,
        cwd=hfs.path / "sub",
        env=environment({"PYTHONPATH": str(ROOT)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        names = "0 1 2 3 4"
        for _ in range(3):
            print(names, file=worker.stdin, flush=True)
            assert worker.stdout.readline() == "worked\n"
            hfs.crash()
            assert sorted(os.listdir(hfs.path)) == ["large", "other", "sub"]
        worker.stdin.close()
    assert worker.returncode == 0


# -- listings ---------------------------------------------------------------------------------------------------------

MANY = 3000


@pytest.fixture
def many(source: Path) -> Path:
    """`many`: 3 000 empty files, far more than one readdir gives."""
    (source / "many").mkdir()
    for number in range(MANY):
        (source / "many" / f"a name that takes some room {number}").touch()
    return source


def test_a_listing_goes_on_where_it_was(many: Path, hfs_mount: HfsMount) -> None:
    """No name is missing and none comes twice."""
    hfs = hfs_mount(many)
    with os.scandir(hfs.path / "many") as entries:
        found = [next(entries).name for _ in range(100)]
        hfs.crash()
        found += [next(entries).name for _ in range(1000)]
        hfs.crash()
        found += [entry.name for entry in entries]
    assert len(found) == len(set(found)) == MANY


def test_a_listing_of_what_has_changed_meanwhile_is_stale_and_never_short(many: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(many)
    with os.scandir(hfs.path / "many") as entries:
        found = [next(entries).name for _ in range(100)]
        (many / "many" / found[0]).unlink()
        hfs.crash()
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            found += [entry.name for entry in entries]
    assert len(os.listdir(hfs.path / "many")) == MANY - 1


def test_a_directory_can_be_rewound_whatever_happened(many: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(many)
    with opened(hfs.path / "many") as directory:
        assert len(os.listdir(directory)) == MANY
        (many / "many" / "another").touch()
        hfs.crash()
        assert len(os.listdir(directory)) == MANY + 1


# -- versions ---------------------------------------------------------------------------------------------------------


def replace(path: Path, seed: int, size: int = SIZE) -> None:
    """Another file under the name, as those who know what they do change one."""
    write_pattern(path.with_name("new"), seed, size)
    path.with_name("new").rename(path)


@needs_passthrough
@pytest.mark.parametrize("mode", ["through the daemon", "passed through"])
def test_a_file_that_changes_while_nobody_serves(source: Path, hfs_mount: HfsMount, mode: str) -> None:
    """The open handle keeps its version, which is staged; who opens the name gets the new one."""
    hfs = hfs_mount(source, *MODES[mode], "--ttl", "0")
    warm(hfs)
    with opened(hfs.path / "large") as old:
        read_all(old, 1)
        replace(source / "large", 3)
        hfs.crash()
        with opened(hfs.path / "large") as new:
            read_all(new, 3)
            read_all(old, 1)
    with opened(hfs.path / "large") as new:
        read_all(new, 3)


def test_a_handle_whose_bytes_are_gone_is_stale(source: Path, hfs_mount: HfsMount) -> None:
    """Nothing of the file was staged, and the source has another one."""
    hfs = hfs_mount(source, *DAEMON, "--ttl", "0")
    with opened(hfs.path / "large") as old:
        replace(source / "large", 3)
        hfs.crash()
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            os.pread(old, 10, 0)
        with opened(hfs.path / "large") as new:
            read_all(new, 3)


def test_a_file_rewritten_in_place_never_shows_old_pages(source: Path, hfs_mount: HfsMount) -> None:
    """Same name, same inode, same size: pages of the old version are in the page cache, under the old node."""
    hfs = hfs_mount(source, "--io-mode", "daemon", "--ttl", "0")
    for round_number in range(3):
        seed = 1 if not round_number else 20 + round_number
        with opened(hfs.path / "large") as descriptor:
            assert os.pread(descriptor, SIZE, 0) == pattern(seed, 0, SIZE)
        write_pattern(source / "large", 21 + round_number, SIZE)
        hfs.crash()
    assert (hfs.path / "large").read_bytes() == pattern(23, 0, SIZE)


def test_pages_of_a_closed_file_are_of_use_after_a_crash(hfs_mount: HfsMount) -> None:
    """The same version gets the same node: what the kernel has of it is not asked for again.

    Of a file that was changed long ago, as those of Python itself: one younger than the longest second look is not
    believed to be what the dead daemon has read.
    """
    folder = Path(os.__file__).parent / "pydoc_data"
    contents = (folder / "topics.py").read_bytes()
    hfs = hfs_mount(folder, *DAEMON)
    assert (hfs.path / "topics.py").read_bytes() == contents
    before = sum(hfs.status()["reads"].values())
    hfs.crash()
    assert (hfs.path / "topics.py").read_bytes() == contents
    assert sum(hfs.status()["reads"].values()) <= before // 3  # the machine may have let go of some pages


# -- stateless --------------------------------------------------------------------------------------------------------


def test_a_mount_that_became_stateless_stays_so(source: Path, hfs_mount: HfsMount) -> None:
    """The kernel was told once, for ever: the next daemon reads by node, also of files that it has never heard of."""
    for number in range(5, 90):
        write_pattern(source / "sub" / str(number), 10 + number, SMALL)
    (source / "large").unlink()
    (source / "other").unlink()
    hfs = hfs_mount(source, "--immutable", "-o", "siblings=0")
    warm(hfs)
    for number in range(90):  # known to the kernel, but not all of them opened yet
        assert (hfs.path / "sub" / str(number)).stat().st_size == SMALL
    for number in range(70):
        assert (hfs.path / "sub" / str(number)).read_bytes() == pattern(10 + number, 0, SMALL)
    assert hfs.status()["io_mode"]["mode"] == "stateless"
    hfs.crash()
    for number in range(90):
        with opened(hfs.path / "sub" / str(number)) as descriptor:
            read_all(descriptor, 10 + number, SMALL)
    found = hfs.status()
    assert found["io_mode"]["mode"] == "stateless"
    assert found["opens"]["stateless"] == 0


@needs_passthrough
@pytest.mark.parametrize("mode", ["through the daemon", "passed through"])
def test_a_source_without_an_identity_is_the_same_one_as_long_as_the_mount(
    tmp_path: Path, hfs_mount: HfsMount, mode: str
) -> None:
    """Nothing tells one tmpfs from another, but the keeper holds this one: handles and what is staged go on."""
    source = tmp_path / "memory"
    source.mkdir()
    must("mount", "-t", "tmpfs", "none", source)
    try:
        write_pattern(source / "large", 1, SIZE)
        hfs = hfs_mount(source, *MODES[mode])
        warm(hfs)
        with opened(hfs.path / "large") as large:
            read_all(large, 1, CHUNK)
            hfs.crash()
            read_all(large, 1)
            with opened(hfs.path / "large") as again:
                read_all(again, 1)
        assert hfs.source_reads() == 0
        hfs.umount()
        hfs.mount()
        with opened(hfs.path / "large") as other:  # another mount trusts nothing of it
            read_all(other, 1)
        assert hfs.source_reads() > 0
        hfs.umount()
    finally:
        must("umount", "-l", source)
