"""The source reader on real files: every byte of one version or an error, beneath its root, through no symlink."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.statx import _walk, open_directory
from hfs.mountd.source import descriptors, metadata
from hfs.mountd.source.listing import Listing
from hfs.mountd.source.source import Source
from hfs.mountd.source.threads import SourceThreads
from hfs.policies.geometry import Extent
from tests.support.pattern import pattern

CHUNK = 64 << 10
ID = "0" * 16


@asynccontextmanager
async def opened(root: Path, metrics: Metrics, ttl_s: float = 60.0) -> AsyncIterator[Source]:
    threads = SourceThreads(metrics, demand=4, prefetch=2, time_limit_s=10)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    source = Source(fd, str(root), ID, threads, metrics, ttl_s=ttl_s, large_bytes=CHUNK)
    try:
        yield source
    finally:
        source.close()


def version_of(path: Path) -> Version:
    return Attributes.of(path.stat()).version(ID)


async def read(source: Source, path: Path, extent: Extent, version: Version | None = None) -> bytes:
    buffers = Buffers(8 << 20, 1 << 20)
    into = await buffers.take(-(-extent.size // 4096) * 4096, urgent=True)
    await source.files.read(b"", os.fsencode(path.name), version or version_of(path), extent, into, urgent=True)
    return bytes(into[: extent.size])


async def test_a_large_file_keeps_its_descriptors_until_released(tmp_path: Path, real_clock: None) -> None:
    path = tmp_path / "f"
    path.write_bytes(pattern(1, 0, 4 * CHUNK))
    metrics = Metrics()
    async with opened(tmp_path, metrics) as source:
        for index in range(4):
            await read(source, path, Extent(index * CHUNK, (index + 1) * CHUNK))
        assert (metrics["source_opens"], len(source.idle_files)) == (1, 1)
        source.idle_files.release(version_of(path))
        assert len(source.idle_files) == 0


async def test_reads_of_large_files_are_counted_with_their_order(tmp_path: Path, real_clock: None) -> None:
    for name, chunks in (("f", 4), ("g", 4), ("small", 1)):
        (tmp_path / name).write_bytes(pattern(1, 0, chunks * CHUNK))
    metrics = Metrics()
    async with opened(tmp_path, metrics) as source:
        # Of each file on its own: 0, 2, 1, 2 of one with 1, 0 of the other between them.
        for name, index in (("f", 0), ("g", 1), ("f", 2), ("small", 0), ("f", 1), ("g", 0), ("f", 2)):
            await read(source, tmp_path / name, Extent(index * CHUNK, (index + 1) * CHUNK))
    assert metrics["source_large_reads"] == 6
    assert metrics["source_large_read_bytes"] == 6 * CHUNK
    assert metrics["source_large_reads_ordered"] == 4


async def test_a_changed_file_is_refused(tmp_path: Path, real_clock: None) -> None:
    path = tmp_path / "f"
    path.write_bytes(pattern(1, 0, 4 * CHUNK))
    old = version_of(path)
    async with opened(tmp_path, Metrics()) as source:
        await read(source, path, Extent(0, CHUNK))  # its descriptor stays in the pool
        with path.open("r+b") as changed:
            changed.write(b"x")
        os.utime(path, ns=(old.mtime_ns, old.mtime_ns))  # only ctime tells
        with pytest.raises(VersionChanged):
            await read(source, path, Extent(CHUNK, 2 * CHUNK), old)
        path.unlink()
        with pytest.raises(VersionChanged):
            await read(source, path, Extent(CHUNK, 2 * CHUNK), old)


async def test_a_file_that_ends_early_is_an_error_not_zeros(tmp_path: Path, real_clock: None) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100)
    lie = version_of(path)
    async with opened(tmp_path, Metrics()) as source:
        source.files._check = lambda fd, version: None  # type: ignore[method-assign]  # attributes that are behind
        with pytest.raises(SourceError) as caught:
            await read(source, path, Extent(0, 200), lie._replace(size=200))
    assert caught.value.errno == errno.EIO


async def test_without_o_direct_it_goes_on_buffered(
    tmp_path: Path, real_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(pattern(2, 0, 3 * CHUNK))
    real = os.open

    def refusing(name: object, flags: int, *args: object, **more: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(name, flags, *args, **more)  # type: ignore[arg-type]  # passed on as it is

    async with opened(tmp_path, Metrics()) as source:
        monkeypatch.setattr(os, "open", refusing)
        assert await read(source, path, Extent(CHUNK, 2 * CHUNK)) == pattern(2, CHUNK, CHUNK)
        assert source.files.direct is False


async def test_symlinks_on_the_way_are_refused(tmp_path: Path, real_clock: None) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("s")
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to("..")
    async with opened(root, Metrics(), ttl_s=0) as source:
        for way in (b"out", b"up", b"real/../out", b"real/../../outside"):
            with pytest.raises(SourceError):
                await source.metadata.stat(way, b"secret")
        # the last component is shown as it is
        assert (await source.metadata.stat(b"", b"out")).mode & 0o170000 == 0o120000


def test_the_walk_without_openat2_promises_the_same(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "l").symlink_to("a")
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for walk in (_walk, open_directory):
            fd = walk(root, b"a/b")
            assert os.fstat(fd).st_ino == (tmp_path / "a" / "b").stat().st_ino
            os.close(fd)
            for bad in (b"l", b"l/b", b"a/../a", b"a/../..", b"missing"):
                if bad == b"a/../a" and walk is open_directory:
                    continue  # openat2 allows .. that stays beneath
                with pytest.raises(OSError, match=r"."):
                    walk(root, bad)
    finally:
        os.close(root)


async def test_a_look_at_many_names_says_what_stats_say(tmp_path: Path, real_clock: None) -> None:
    folder = tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    names = [b"file", b"again", b"linked", b"\xff\xfe", b"link", b"sub", b"gone"]
    for name in names[:4]:
        (folder / os.fsdecode(name)).write_bytes(name)
    os.unlink(folder / "again")
    os.link(folder / "linked", folder / "again")
    (folder / "link").symlink_to("file")
    async with opened(tmp_path, Metrics()) as source:
        found = await source.metadata.look(b"d", names)
        stats = await source.metadata.stats(b"d", names)
        assert [found.attributes(index) for index in range(len(names))] == stats
        assert found.plain == bytearray([1, 1, 1, 1, 0, 0, 0])
        before = stats[0]
        assert before is not None
        source.second_looks.rewritten.add(before.version(source.source_id))
        renamed = await source.metadata.look(b"d", names)
        assert [renamed.attributes(index) for index in range(len(names))] == await source.metadata.stats(b"d", names)
        assert renamed.attributes(0) != before, "its file has another identity"
        assert not renamed.plain[0]
        os.rename(folder, tmp_path / "away")
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "file").write_bytes(b"of another directory")
        source.directories.forget(b"d")
        another = await source.metadata.look(b"d", names[:2])
        assert [one is not None and one.size for one in map(another.attributes, range(2))] == [20, False]


async def test_a_replaced_directory_is_not_listed_for_the_old(tmp_path: Path, real_clock: None) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    inode = directory.stat().st_ino
    async with opened(tmp_path, Metrics(), ttl_s=0) as source:
        await source.listings.fill(b"d", inode, listing := Listing())
        assert len(listing) == 0
        directory.rename(tmp_path / "moved")
        directory.mkdir()
        with pytest.raises(VersionChanged):
            await source.listings.fill(b"d", inode, Listing())


async def test_a_directory_made_anew_is_seen_although_the_old_one_is_open(tmp_path: Path, real_clock: None) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    async with opened(tmp_path, Metrics(), ttl_s=float("inf")) as source:
        with pytest.raises(SourceError):
            await source.metadata.stat(b"d", b"f")
        inode = directory.stat().st_ino
        directory.rmdir()
        with pytest.raises(SourceError):
            await source.listings.fill(b"d", inode, Listing())
        directory.mkdir()
        with pytest.raises(SourceError):
            await source.metadata.stat(b"d", b"f")
        directory.rmdir()
        directory.mkdir()
        (directory / "f").write_bytes(b"x")
        assert (await source.metadata.stat(b"d", b"f")).size == 1


async def test_to_forget_a_directory_forgets_all_below_it(tmp_path: Path, real_clock: None) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "f").write_text(name * (3 if name == "a" else 5))
    async with opened(tmp_path, Metrics(), ttl_s=float("inf")) as source:
        assert (await source.metadata.stat(b"a/sub", b"f")).size == 3
        (tmp_path / "a").rename(tmp_path / "c")
        (tmp_path / "b").rename(tmp_path / "a")
        source.directories.forget(b"a")
        assert (await source.metadata.stat(b"a/sub", b"f")).size == 5


@pytest.mark.parametrize("local", [True, False])
async def test_only_a_local_source_is_believed_from_memory(
    tmp_path: Path, real_clock: None, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """What the client of a network file system remembers may be old."""
    monkeypatch.setattr(metadata, "is_local", lambda fd: local)
    (tmp_path / "f").write_bytes(b"data")
    async with opened(tmp_path, Metrics()) as source:
        found = source.metadata.stat_nowait(b"", b"f")
        assert found == (Attributes.of((tmp_path / "f").stat()) if local else None)
        assert source.metadata.stat_nowait(b"", b"absent") is None


async def test_a_directory_that_is_forgotten_while_it_is_opened_is_not_kept(
    tmp_path: Path, real_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one stands there by then, and what is in the old one would be shown for a time-to-live."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old").touch()
    async with opened(tmp_path, Metrics()) as source:

        def late(root_fd: int, path: bytes) -> int:
            fd = open_directory(root_fd, path)
            monkeypatch.undo()
            (tmp_path / "d").rename(tmp_path / "before")
            (tmp_path / "d").mkdir()
            (tmp_path / "d" / "new").touch()
            source.directories.forget(b"d")
            return fd

        monkeypatch.setattr(descriptors, "open_directory", late)
        assert (await source.metadata.stat(b"d", b"old")).is_file
        assert (await source.metadata.stat(b"d", b"new")).is_file


async def test_what_lies_past_the_end_is_no_hole(tmp_path: Path, real_clock: None) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100)
    lie = version_of(path)._replace(size=8 * CHUNK)
    async with opened(tmp_path, Metrics()) as source:
        source.files._check = lambda fd, version: None  # type: ignore[method-assign]  # attributes that are behind
        with pytest.raises(SourceError) as caught:
            await read(source, path, Extent(4 * CHUNK, 5 * CHUNK), lie)
        os.truncate(path, 0)
        os.truncate(path, 100)  # a hole to its end
        lie = version_of(path)._replace(size=8 * CHUNK)
        assert (await source.files.data(b"", b"f", lie))[0] == [Extent(0, 8 * CHUNK)]
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("levels", [17, 40])
def test_a_directory_deeper_than_a_path_is_long(tmp_path: Path, levels: int) -> None:
    """4 095 bytes are what the kernel takes; also for who asks as another user."""
    name = b"d" * 240
    root = fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        fd = os.open(name, os.O_RDONLY, dir_fd=fd)
    found = open_directory(root, b"/".join([name] * levels))
    try:
        assert os.path.sameopenfile(found, fd)
    finally:
        os.close(found)
        shutil.rmtree(tmp_path / os.fsdecode(name))
