"""Staging: what is put comes back right, from memory, from the disk and after a restart; files are found quickly.

Without threads, in virtual time (tests/support/faults.py), except where threads are the matter.
"""

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from hfs.mountd.cache import Cache, CacheSettings, StagedFile, open_cache
from hfs.mountd.cache.objects.codec import Shrinker
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.cachestat import resident_of
from hfs.policies.cache.encoding import EncodingChoice
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SHRINKS,
    SIZE,
    contents,
    disk_bytes,
    healthy_staging,
    object_path,
    page_aligned,
    put,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import check, pattern


@pytest.mark.parametrize("size", [1, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE])
async def test_what_is_put_comes_back_byte_for_byte(tmp_path: Path, size: int) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1, size)
        assert file.complete
        assert file.durable
        check(1, 0, await staging.reader.read(file, Extent(0, size)))
        check(1, size // 2, await staging.reader.read(file, Extent(size // 2, size)))
        check(1, file.chunk(0).start, await staging.reader.read_chunk(file, 0))
        assert Path(object_path(staging, file)).read_bytes() == pattern(1, 0, size)
        assert os.stat(object_path(staging, file)).st_mode & 0o777 == 0o600
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, size))
        assert file.durable
        check(1, 0, await staging.reader.read(file, Extent(0, size)))
        assert file.staged_bytes() == staging.statistics().bytes == size
    assert await verify(str(tmp_path)) > 0


async def test_no_byte_is_counted_twice_while_it_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index counts in its thread, the event loop hears of it a moment later."""
    async with healthy_staging(tmp_path) as staging:
        threads, seen = staging.context.threads, []
        change_index = threads.change_index

        async def watched(change: Any, *arguments: Any) -> Any:
            done = await change_index(change, *arguments)
            seen.append(staging.statistics().bytes)
            return done

        monkeypatch.setattr(threads, "change_index", watched)
        for number in range(1, 4):
            await stage(staging, number, 5000)
        assert seen
        assert max(seen) <= 3 * 5000
        assert staging.statistics().bytes == 3 * 5000


async def test_an_incomplete_file_has_its_full_length_and_knows_its_chunks(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        assert put(staging, file, 2)
        assert 2 not in file.present
        await staging.committer.wait_committed()
        assert list(file.present) == list(file.committed) == [2]
        assert not file.complete
        assert os.path.getsize(object_path(staging, file)) == SIZE
        with pytest.raises(StagingError):
            await staging.reader.read(file, Extent(0, 10))
        assert staging.reader.read_nowait(file, Extent(0, 10)) is None
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE))
        assert list(file.committed) == [2]
        check(1, 2 * CHUNK_BYTES, await staging.reader.read_chunk(file, 2))


async def test_a_chunk_is_present_before_it_is_committed(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, 100), b"f")
        done: list[bool] = []
        data = page_aligned(pattern(1, 0, 100))
        assert staging.writer.put_nowait(file, 0, data, lambda: done.append(0 in file.present))
        assert not done
        while not done:
            await trio.lowlevel.checkpoint()
        assert done == [True]
        assert not file.committed
        assert staging.statistics().uncommitted_bytes == 100
        await trio.sleep(1.9)
        assert not file.committed
        await trio.sleep(0.2)
        assert file.committed
        assert staging.statistics().uncommitted_bytes == 0


async def test_nothing_keeps_the_bytes_once_they_are_written(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, 5000), b"f")
        array = np.frombuffer(pattern(1, 0, 5000), np.uint8).copy()
        gone = weakref.ref(array)
        assert staging.writer.put_nowait(file, 0, memoryview(array))
        del array
        while not file.present:
            await trio.lowlevel.checkpoint()
        assert gone() is None


async def test_a_file_found_keeps_its_chunk_size(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        put(staging, file, 1)
    async with healthy_staging(tmp_path, chunk_bytes=2 * CHUNK_BYTES) as staging:
        file = await staging.files.get(version_of(1, SIZE))
        assert file.chunk_bytes == CHUNK_BYTES
        put(staging, file, 0)
        await staging.committer.wait_committed()
        assert (await staging.files.get(version_of(2, SIZE))).chunk_bytes == 2 * CHUNK_BYTES
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE))
        check(1, 0, await staging.reader.read(file, Extent(0, 2 * CHUNK_BYTES)))


async def test_sources_of_one_cache_do_not_mix(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 5, 300)
        other = version_of(5, 300)._replace(source_id="00000000000000bb")
        file = await staging.files.get(other, b"f")
        assert not file.present
        staging.writer.put_nowait(file, 0, memoryview(pattern(6, 0, 300)))
    async with healthy_staging(tmp_path) as staging:
        check(6, 0, await staging.reader.read_chunk(await staging.files.get(other), 0))
        check(5, 0, await staging.reader.read_chunk(await staging.files.get(version_of(5, 300)), 0))
        assert await staging.evictions.evict_paths([b""], {other.source_id}) == (1, 8192)
        assert [row.version.source_id async for row in staging.listing.rows()] == ["00000000000000aa"]


@pytest.mark.slow
@pytest.mark.parametrize("encoded", [False, True])
async def test_large_chunks_go_to_a_real_disk_with_threads(tmp_path: Path, real_clock: None, encoded: bool) -> None:
    """With a ragged end, so that O_DIRECT, where the disk takes it, has something to cut off; several readers of each
    chunk."""
    size, chunk = (8 << 20) + 12345, 4 << 20
    first = SHRINKS if encoded else 1
    metrics = Metrics()

    async def compare(staging: Cache, file: StagedFile, expected: bytes, extent: Extent) -> None:
        assert await staging.reader.read(file, extent) == expected[extent.start : extent.end]

    async with open_cache(str(tmp_path), CacheSettings(1 << 30, chunk_bytes=chunk), metrics=metrics) as staging:
        if encoded:
            staging.shrinking.choose(EncodingChoice(True, "for a test"), Shrinker())
        files = [await staging.files.get(version_of(first + n, size), b"f%d" % n) for n in (0, 1)]
        for index in (2, 0, 1):
            for file in files:
                assert put(staging, file, index)
        await staging.committer.wait_committed()
        for number, file in enumerate(files):
            assert file.durable != encoded
            assert os.path.getsize(object_path(staging, file)) == size
            expected = contents(first + number, 0, size)
            assert await staging.reader.read(file, Extent(0, size)) == expected
            async with trio.open_nursery() as nursery:
                for start in range(0, size, 300_000):
                    nursery.start_soon(compare, staging, file, expected, Extent(start, min(size, start + 300_000)))
        data = staging.reader.read_nowait(files[0], Extent(100, 200))
        assert data is None or data == contents(first, 100, 100)  # tmpfs never answers without waiting
        assert [checked.broken async for checked in staging.checker.check()] == [(), ()]
        room_bytes = staging.statistics().room_bytes
        assert disk_bytes(str(tmp_path)) <= room_bytes
        assert (room_bytes < size) == encoded
    assert metrics["staging_errors"] == 0
    assert metrics["staging_put_bytes"] == 2 * size


async def test_of_a_file_of_many_chunks_a_thread_asks_once_for_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfs.mountd.cache.files._QUICK_CHUNKS", 3)
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1)
        await stage(staging, 2, 3 * CHUNK_BYTES)
    async with healthy_staging(tmp_path) as staging:
        asked: list[int] = []
        find = staging.context.index.reader.find

        def counted(version: Any) -> Any:
            asked.append(version.inode)
            return find(version)

        staging.context.index.reader.find = counted  # type: ignore[method-assign]  # replaced on purpose
        assert staging.files.get_nowait(version_of(1, SIZE)) is None
        found: list[StagedFile] = []

        async def look(seed: int, size: int) -> None:
            found.append(await staging.files.get(version_of(seed, size)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(look, 1, SIZE)
            nursery.start_soon(look, 2, 3 * CHUNK_BYTES)
        assert asked == [1]
        assert len(set(map(id, found))) == 2
        assert all(file.durable for file in found)


async def test_a_file_of_one_chunk_is_found_without_waiting(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        put(staging, await staging.files.get(version_of(1, 10), b"f"), 0)
    async with healthy_staging(tmp_path) as staging:
        file = staging.files.get_nowait(version_of(1, 10))
        assert file is not None
        assert file.durable
        assert file is await staging.files.get(version_of(1, 10))
        unknown = staging.files.get_nowait(version_of(2, 10))
        assert unknown is not None
        assert not unknown.present
        newer = version_of(1, 10)._replace(ctime_ns=1 << 40)
        found = staging.files.get_nowait(newer)
        assert found is not None
        assert not found.present
        assert file.superseded


async def test_some_objects_are_published_by_chance(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        for seed in range(1, 6):
            file = await stage(staging, seed, SIZE)
        folder = Path(object_path(staging, file)).parent
        (folder / "7.not-ours-1").write_bytes(b"x")
        assert await staging.publisher.publish_some(64, lambda fd: os.fstat(fd).st_size) == [SIZE] * 5
        assert len(await staging.publisher.publish_some(3, int)) == 3


async def test_objects_are_read_ahead_where_memory_does_not_have_them(tmp_path: Path) -> None:
    with (tmp_path / "any").open("wb+") as file:
        if resident_of(file.fileno()) is None:
            pytest.skip("this kernel does not tell what is in memory")
    async with healthy_staging(tmp_path) as staging:
        files = [await stage(staging, seed, SIZE) for seed in range(1, 4)]
        numbers = [file.object_id or 0 for file in files]
        assert await staging.reader.objects_will_need(numbers, 1 << 30) == 0
        drop_pages(object_path(staging, files[0]))
        assert await staging.reader.objects_will_need(numbers, SIZE + 5) == SIZE + 5
        drop_pages(object_path(staging, files[0]))
        assert await staging.reader.objects_will_need([*numbers, 10**9], 1 << 30) == 3 * SIZE
        assert await staging.reader.objects_will_need([10**9], 1 << 30) == 0, "there is none"


def drop_pages(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


async def test_whoever_holds_a_file_holds_the_same(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        staging.files._keep = 4
        held = await stage(staging, 1, 10)
        for seed in range(2, 20):
            await stage(staging, seed, 10)
        assert len(staging.files) <= 5
        assert await staging.files.get(held.version) is held
        again = await staging.files.get(version_of(2, 10))
        assert again.durable  # forgotten by memory, not by the index


async def test_a_broken_index_costs_staging_and_nothing_else(tmp_path: Path, logs: Logs) -> None:
    logs.expect("looking up staged files: .*serving from the source")
    metrics = Metrics()
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1)
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        staging.context.index.database.reader.close()
        staging.context.index.database.quick.close()
        file = await staging.files.get(version_of(1, SIZE))
        assert not file.present
        assert metrics["staging_errors"] == 1
        assert staging.statistics().state == "resting"
        staging.context.index.close()
