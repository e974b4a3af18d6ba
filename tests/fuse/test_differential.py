"""Random operations on the mount and on the plain directory: both give the same answer, or fail with the same errno.

Hypothesis makes the operations and shrinks a failing list to the shortest one. Handles stay open across operations, so
that several on one file and reads of a half-staged file are met. All examples share one mount: what an earlier example
has staged is part of what is tested.
"""

import contextlib
import mmap
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuse.conftest import SMALL_CHUNK_BYTES
from tests.fuse.harness import HfsMount
from tests.fuse.modes import Mode
from tests.fuse.trees import make_odd_tree, shown_of, stat_of, walk

HANDLES = 4  # as many as BEGIN opens
MANY_CHUNKS_BYTES = 23 * SMALL_CHUNK_BYTES + 77

offsets = st.one_of(
    st.integers(0, MANY_CHUNKS_BYTES + 10_000),
    # Around the edges of chunks, where the arithmetic is.
    st.builds(lambda chunk, step: max(0, chunk * SMALL_CHUNK_BYTES + step), st.integers(0, 24), st.integers(-3, 3)),
)
sizes = st.one_of(st.integers(0, 5000), st.sampled_from([4096, 65536, 131072, 1 << 20, 3 << 20]))


# What is open when an example begins: files of many chunks, one of them twice, as reads of them are what goes wrong.
BEGIN = (b"many-chunks", b"sparse", b"many-chunks", b"links/second")


def operations(names: list[bytes]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    name, handle = st.sampled_from(names), st.integers(0, HANDLES - 1)
    pread = st.tuples(st.just("pread"), handle, offsets, sizes)
    return st.lists(
        st.one_of(
            pread,
            pread,
            st.tuples(st.just("read"), handle, sizes),
            st.tuples(st.just("open"), handle, name),
            st.tuples(st.just("seek"), handle, offsets),
            st.tuples(st.just("mmap"), handle, offsets, sizes),
            st.tuples(st.just("fstat"), handle),
            st.tuples(st.just("close"), handle),
            st.tuples(st.just("lstat"), name),
            st.tuples(st.just("list"), name),
            st.tuples(st.just("readlink"), name),
            st.tuples(st.just("missing"), name),
        ),
        min_size=1,
        max_size=40,
    )


class Side:
    """One of the two trees with its open handles. Every operation returns what a program would see."""

    def __init__(self, root: Path, *, covered: bool) -> None:
        """`covered`: what an overlay has of its own is not compared."""
        self.root = os.fsencode(root)
        self.covered = covered
        self.handles: dict[int, int] = {}

    def do(self, what: str, *arguments: Any) -> object:
        try:
            return getattr(self, f"do_{what}")(*arguments)
        except OSError as error:
            return f"errno {error.errno}"
        except KeyError:
            return "no such handle"

    def path(self, name: bytes) -> bytes:
        return os.path.join(self.root, name)

    def do_open(self, handle: int, name: bytes) -> object:
        self.do("close", handle)
        self.handles[handle] = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK)
        return "opened"

    def do_close(self, handle: int) -> object:
        return os.close(self.handles.pop(handle))

    def do_pread(self, handle: int, offset: int, size: int) -> object:
        return os.pread(self.handles[handle], size, offset)

    def do_read(self, handle: int, size: int) -> object:
        return os.read(self.handles[handle], size)

    def do_seek(self, handle: int, offset: int) -> object:
        # A directory's offset is a cookie of its file system: no two are alike.
        if os.path.isdir(f"/proc/self/fd/{self.handles[handle]}"):
            return "a directory"
        return os.lseek(self.handles[handle], offset, os.SEEK_SET)

    def do_mmap(self, handle: int, offset: int, size: int) -> object:
        total = os.fstat(self.handles[handle]).st_size
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        length = min(size, total - start)
        if length <= 0:
            return "nothing to map"
        with mmap.mmap(self.handles[handle], length, prot=mmap.PROT_READ, offset=start) as mapped:
            return mapped[:]

    def do_fstat(self, handle: int) -> object:
        found = os.fstat(self.handles[handle])
        is_own = self.covered and stat.S_ISDIR(found.st_mode)
        return found.st_mode, found.st_size, 0 if is_own else found.st_ino, found.st_mtime_ns

    def do_lstat(self, name: bytes) -> object:
        return shown_of(name, stat_of(self.path(name)), covered=self.covered)

    def do_list(self, name: bytes) -> object:
        with os.scandir(self.path(name)) as entries:
            found = [(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries]
        return sorted((each, 0 if self.covered and is_dir else inode, is_dir) for each, inode, is_dir in found)

    def do_readlink(self, name: bytes) -> object:
        return os.readlink(self.path(name))

    def do_missing(self, name: bytes) -> object:
        return os.lstat(self.path(name) + b"/no-such-name")

    def close(self) -> None:
        for descriptor in self.handles.values():
            os.close(descriptor)
        self.handles.clear()


@pytest.mark.slow
@pytest.mark.in_modes
def test_the_mount_answers_as_the_directory_does(tmp_path: Path, hfs_mount: HfsMount, io_mode: Mode | None) -> None:
    tree = make_odd_tree(tmp_path / "tree", SMALL_CHUNK_BYTES)
    names = sorted(walk(os.fsencode(tree)))
    hfs = hfs_mount(tree)
    covered = io_mode is not None and io_mode.covered

    @settings(
        max_examples=250,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(operations(names))
    def agree(steps: list[tuple[Any, ...]]) -> None:
        with (
            contextlib.closing(Side(tree, covered=covered)) as plain,
            contextlib.closing(Side(hfs.path, covered=covered)) as mount,
        ):
            for step in [*(("open", handle, name) for handle, name in enumerate(BEGIN)), *steps]:
                expected, found = plain.do(*step), mount.do(*step)
                if expected != found:
                    raise AssertionError(f"{step}: {difference(found, expected)}")

    agree()


def difference(found: object, expected: object) -> str:
    """Two answers for a message; of bytes only where they begin to differ."""
    if isinstance(found, bytes) and isinstance(expected, bytes):
        pairs = enumerate(zip(found, expected, strict=False))
        first = next((index for index, (one, other) in pairs if one != other), min(len(found), len(expected)))
        return (
            f"{len(found)} bytes, from byte {first} on {found[first : first + 16].hex()}...; "
            f"in the source {len(expected)} bytes, there {expected[first : first + 16].hex()}..."
        )
    return f"{found!r}, in the source {expected!r}"
