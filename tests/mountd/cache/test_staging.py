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

from hfs.mountd.cache import CacheSettings, StagedFile, open_cache
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.native.cachestat import resident_of
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SIZE,
    Operations,
    disk_bytes,
    fail,
    healthy_staging,
    object_path,
    page_aligned,
    put,
    run,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import check, pattern


@pytest.mark.parametrize("size", [1, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE])
def test_what_is_put_comes_back_byte_for_byte(tmp_path: Path, size: int) -> None:
    async def main() -> None:
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

    run(main)
    assert run(verify, str(tmp_path)) > 0


def test_no_byte_is_counted_twice_while_it_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index counts in its thread, the event loop hears of it a moment later."""

    async def main() -> None:
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

    run(main)


def test_an_incomplete_file_has_its_full_length_and_knows_its_chunks(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_a_chunk_is_present_before_it_is_committed(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_a_wrong_length_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.files.get(version_of(1, SIZE))
            with pytest.raises(ValueError, match="has 1000 bytes, not 7"):
                staging.writer.put_nowait(file, 3, memoryview(b"1234567"))

    run(main)


def test_nothing_keeps_the_bytes_once_they_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            file = await staging.files.get(version_of(1, 5000), b"f")
            array = np.frombuffer(pattern(1, 0, 5000), np.uint8).copy()
            gone = weakref.ref(array)
            assert staging.writer.put_nowait(file, 0, memoryview(array))
            del array
            while not file.present:
                await trio.lowlevel.checkpoint()
            assert gone() is None

    run(main)


def test_a_file_found_keeps_its_chunk_size(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_sources_of_one_cache_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


@pytest.mark.slow
def test_large_chunks_go_to_a_real_disk_with_threads(tmp_path: Path) -> None:
    """With a ragged end, so that O_DIRECT, where the disk takes it, has something to cut off."""
    size, chunk = (8 << 20) + 12345, 4 << 20

    async def main() -> None:
        metrics = Metrics()
        settings = CacheSettings(1 << 30, chunk_bytes=chunk)
        async with open_cache(str(tmp_path), settings, metrics=metrics) as staging:
            files = [await staging.files.get(version_of(seed, size), b"f%d" % seed) for seed in (1, 2)]
            for index in (2, 0, 1):
                for file in files:
                    assert put(staging, file, index)
            await staging.committer.wait_committed()
            for seed, file in zip((1, 2), files, strict=True):
                assert file.durable
                assert os.path.getsize(object_path(staging, file)) == size
                check(seed, 0, await staging.reader.read(file, Extent(0, size)))
            data = staging.reader.read_nowait(files[0], Extent(100, 200))
            assert data is None or data == pattern(1, 100, 100)  # tmpfs never answers without waiting
            assert [checked.broken async for checked in staging.checker.check()] == [(), ()]
            assert disk_bytes(str(tmp_path)) <= staging.statistics().room_bytes
        assert metrics["staging_errors"] == 0
        assert metrics["staging_put_bytes"] == 2 * size

    trio.run(main)


def test_look_ups_that_wait_together_go_to_the_index_together(tmp_path: Path) -> None:
    size = 4096 + 10  # of one chunk they are found without waiting

    async def main() -> None:
        async with healthy_staging(tmp_path, chunk_bytes=4096) as staging:
            for seed in range(1, 101):
                file = await staging.files.get(version_of(seed, size), b"f")
                put(staging, file, 0)
                put(staging, file, 1)
        operations = Operations(0, fail)
        async with healthy_staging(tmp_path, chunk_bytes=4096, operations=operations) as staging:
            assert staging.files.get_nowait(version_of(1, size)) is None
            asked: list[int] = []
            find = staging.context.index.reader.find

            def counted(versions: Any) -> Any:
                asked.append(len(versions))
                return find(versions)

            staging.context.index.reader.find = counted  # type: ignore[method-assign]  # replaced on purpose
            found: list[StagedFile] = []
            async with trio.open_nursery() as nursery:
                for seed in (*range(1, 101), 1, 1):

                    async def look(seed: int = seed) -> None:
                        found.append(await staging.files.get(version_of(seed, size)))

                    nursery.start_soon(look)
            assert sum(asked) == 100
            assert len(asked) <= 2
            assert len(found) == 102
            assert len(set(map(id, found))) == 100
            assert all(file.durable for file in found)
            await staging.files.load([version_of(seed, size) for seed in range(90, 110)])
            assert sum(asked) == 109
            known = staging.files.get_nowait(version_of(109, size))
            assert known is not None
            assert not known.present

    run(main)


def test_a_file_of_one_chunk_is_found_without_waiting(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_some_objects_are_lent_by_chance(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            for seed in range(1, 6):
                file = await stage(staging, seed, SIZE)
            folder = Path(object_path(staging, file)).parent
            (folder / "7.not-ours-1").write_bytes(b"x")
            assert await staging.lender.lend_some(64, lambda fd: os.fstat(fd).st_size) == [SIZE] * 5
            assert len(await staging.lender.lend_some(3, int)) == 3

    run(main)


def test_objects_are_read_ahead_where_memory_does_not_have_them(tmp_path: Path) -> None:
    with (tmp_path / "any").open("wb+") as file:
        if resident_of(file.fileno()) is None:
            pytest.skip("this kernel does not tell what is in memory")

    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            files = [await stage(staging, seed, SIZE) for seed in range(1, 4)]
            numbers = [file.object_id or 0 for file in files]
            assert await staging.reader.objects_will_need(numbers, 1 << 30) == 0
            drop_pages(object_path(staging, files[0]))
            assert await staging.reader.objects_will_need(numbers, SIZE + 5) == SIZE + 5
            drop_pages(object_path(staging, files[0]))
            assert await staging.reader.objects_will_need([*numbers, 10**9], 1 << 30) == 3 * SIZE
            assert await staging.reader.objects_will_need([10**9], 1 << 30) == 0, "there is none"

    run(main)


def drop_pages(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def test_what_an_earlier_run_staged_is_in_memory_soon(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            for seed in range(1, 31):
                put(staging, await staging.files.get(version_of(seed, 10), b"f"), 0)
        async with healthy_staging(tmp_path) as staging:
            await trio.testing.wait_all_tasks_blocked()
            for seed in range(1, 31):
                file = staging.files.peek(version_of(seed, 10))
                assert file is not None
                assert file.durable
                check(seed, 0, await staging.reader.read(file, Extent(0, 10)))

    run(main)


def test_whoever_holds_a_file_holds_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging:
            staging.files._keep = 4
            held = await stage(staging, 1, 10)
            for seed in range(2, 20):
                await stage(staging, seed, 10)
            assert len(staging.files) <= 5
            assert await staging.files.get(held.version) is held
            again = await staging.files.get(version_of(2, 10))
            assert again.durable  # forgotten by memory, not by the index

    run(main)


def test_a_broken_index_costs_staging_and_nothing_else(tmp_path: Path, logs: Logs) -> None:
    logs.expect("looking up staged files: .*serving from the source")

    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path) as staging:
            await stage(staging, 1)
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            staging.context.index.database.reader.close()
            file = await staging.files.get(version_of(1, SIZE))
            assert not file.present
            assert metrics["staging_errors"] == 1
            assert staging.statistics().state == "resting"
            staging.context.index.close()

    run(main)
