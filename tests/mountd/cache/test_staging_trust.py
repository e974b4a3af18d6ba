"""What staging believes of an object that it finds: as it was left, changed by others, changed by us before a crash.

Without threads, in virtual time (tests/support/faults.py). Through real mounts: tests/fuse/test_cache_trust.py.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from hfs.mountd.cache import Cache, CacheSettings, StagedFile, open_cache
from hfs.mountd.cache.objects.changes import stamp_of
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    SIZE,
    Operations,
    check_contents,
    fail,
    healthy_staging,
    inline,
    object_path,
    overwrite,
    put,
    stage,
    version_of,
)

SMALL = 5000


def touched(path: str) -> None:
    """Somebody changes nothing but the time of change."""
    os.chmod(path, 0o600)


async def read_all(staging: Cache, file: StagedFile) -> None:
    check_contents(file.version.inode, 0, await staging.reader.read(file, Extent(0, file.size)))


@pytest.mark.parametrize("size", [SMALL, SIZE])
async def test_an_object_as_it_was_left_is_believed_at_once(tmp_path: Path, size: int) -> None:
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1, size)
        assert await staging.publisher.is_sound(file)
        with open(object_path(staging, file), "rb") as left:
            assert file.recorded == file.stamp == stamp_of(left.fileno(), size)
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, size))
        assert await staging.publisher.is_sound(file)
        assert await staging.publisher.publish(file, int) >= 0
        assert metrics["staged_verified_bytes"] == 0
        await read_all(staging, file)  # what we read ourselves is verified all the same, once
        await read_all(staging, file)
        assert metrics["staged_verified_bytes"] == size
        assert metrics["staged_changed"] == 0


@pytest.mark.parametrize("size", [SMALL, SIZE])
async def test_one_that_was_touched_is_verified_and_believed_again(tmp_path: Path, size: int) -> None:
    async with healthy_staging(tmp_path) as staging:
        path = object_path(staging, await stage(staging, 1, size))
    touched(path)
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, size))
        with pytest.raises(StagingError, match="changed"):
            await staging.publisher.publish(file, int)
        assert not await staging.publisher.is_sound(file)
        assert staging.publisher.publish_nowait(file, int) is None
        staging.files.pin(file)
        await staging.verifying.wait_verified(file)
        staging.files.unpin(file)
        assert await staging.publisher.is_sound(file)
        assert (metrics["staged_verified_bytes"], metrics["staged_changed"]) == (size, 1)
        assert metrics["staged_checksum_failures"] == 0
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        assert await staging.publisher.is_sound(await staging.files.get(version_of(1, size)))
        assert metrics["staged_verified_bytes"] == 0


async def test_of_a_changed_object_the_right_chunks_stay(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staged bytes of 'f' .* cannot be read: .*wrong checksum")
    async with healthy_staging(tmp_path) as staging:
        path = object_path(staging, await stage(staging, 1))
    overwrite(path, CHUNK_BYTES + 7, b"other")
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        assert not await staging.publisher.is_sound(file)
        await staging.verifying.wait_verified(file)
        assert list(file.present) == [0, 2, 3]
        await staging.reclaimer.wait_idle()
        assert put(staging, file, 1)
        await staging.committer.wait_committed()
        await read_all(staging, file)
        assert await staging.publisher.is_sound(file)


async def test_what_is_changed_while_it_is_used_is_verified_again(tmp_path: Path, logs: Logs) -> None:
    logs.expect("wrong checksum")
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await stage(staging, 1)
        await read_all(staging, file)
        assert metrics["staged_verified_bytes"] == 0  # all of it is from us
        overwrite(object_path(staging, file), 5, b"other")
        assert staging.reader.read_nowait(file, Extent(CHUNK_BYTES, CHUNK_BYTES + 10)) is None
        check_contents(1, CHUNK_BYTES, await staging.reader.read(file, Extent(CHUNK_BYTES, CHUNK_BYTES + 10)))
        with pytest.raises(StagingError):
            await staging.reader.read(file, Extent(0, 10))
        assert (metrics["staged_changed"], metrics["staged_checksum_failures"]) == (1, 1)
        assert list(file.present) == [1, 2, 3]


async def test_our_own_changes_are_no_reason_to_verify(tmp_path: Path) -> None:
    """Chunks written and given back one after the other, in any order, and read meanwhile."""
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await stage(staging, 1)
        for index in (2, 0, 3):
            assert await staging.evictions.evict_chunk(file, index) > 0
            check_contents(1, CHUNK_BYTES, await staging.reader.read_chunk(file, 1))
            assert put(staging, file, index)
            check_contents(1, CHUNK_BYTES, await staging.reader.read(file, Extent(CHUNK_BYTES, CHUNK_BYTES + 10)))
            await staging.committer.wait_committed()
        assert await staging.evictions.evict_chunk(file, 2) > 0
        assert file.sound
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, SIZE))
        assert file.stamp is not None
        assert put(staging, file, 2)
        await staging.committer.wait_committed()
        assert await staging.publisher.is_sound(file)
        assert (metrics["staged_verified_bytes"], metrics["staged_changed"]) == (0, 0)


async def test_a_crash_between_our_change_and_its_record_means_only_that_it_is_verified(tmp_path: Path) -> None:
    """Chunks are on the disk, their group was not entered: as after kill -9 within the two seconds."""
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        put(staging, file, 0)
        await staging.committer.wait_committed()
        path, recorded = object_path(staging, file), file.recorded
        assert recorded is not None
    with open(path, "r+b") as file_object:
        file_object.seek(2 * CHUNK_BYTES)
        file_object.write(bytes(CHUNK_BYTES))
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        database.execute("UPDATE state SET clean = 0")
    database.close()
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        await staging.ready.wait()
        file = await staging.files.get(version_of(1, SIZE), b"f")
        assert list(file.committed) == [0]
        assert not await staging.publisher.is_sound(file)
        check_contents(1, 0, await staging.reader.read(file, Extent(0, 100)))
        assert metrics["staged_verified_bytes"] == CHUNK_BYTES
        for index in (1, 2, 3):
            assert put(staging, file, index)
        await staging.committer.wait_committed()
        assert await staging.publisher.is_sound(file)


async def test_stamps_that_cannot_be_entered_are_not_believed(tmp_path: Path, logs: Logs) -> None:
    logs.expect("entering staged chunks in the index")

    async def read_all_present(staging: Cache, file: StagedFile) -> None:
        assert list(file.present) == [0]
        check_contents(1, 0, await staging.reader.read(file, Extent(0, CHUNK_BYTES)))

    broken = False

    def act(name: str) -> None:
        if broken and name.startswith("sql INSERT"):
            fail(name)

    async with healthy_staging(tmp_path, operations=Operations(1, act, for_ever=True)) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        put(staging, file, 0)
        await staging.committer.wait_committed()
        recorded = file.recorded
        broken = True
        put(staging, file, 1)
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        assert file.recorded != file.stamp or file.recorded == recorded
        await read_all_present(staging, file)
    async with healthy_staging(tmp_path) as staging:
        await read_all_present(staging, await staging.files.get(version_of(1, SIZE), b"f"))


async def test_objects_of_a_cache_that_was_copied_are_verified_once(tmp_path: Path) -> None:
    """They have other stamps where they lie now."""
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1)
        await stage(staging, 2, SMALL)
    for path in (tmp_path / "objects").glob("*/*"):
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    for verified in (SIZE + SMALL, 0):
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            for seed, size in ((1, SIZE), (2, SMALL)):
                file = await staging.files.get(version_of(seed, size), b"f")
                assert await staging.publisher.is_sound(file) == (not verified)
                if verified:
                    await staging.verifying.wait_verified(file)
                assert await staging.publisher.is_sound(file)
            assert metrics["staged_verified_bytes"] == verified


async def test_bytes_from_before_the_object_was_verified_again_are_not_given_out(tmp_path: Path, logs: Logs) -> None:
    """A thread has read a chunk that somebody had just changed; before that is looked at, another chunk is verified,
    and the object has a good stamp again."""
    logs.expect("wrong checksum")
    held: list[trio.Event] = []
    may_hold = False

    async def run_in_thread(
        sync_fn: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None
    ) -> Any:
        value = await inline(sync_fn, *args, limiter=limiter)
        if sync_fn.__name__ == "read_object" and may_hold and not held:
            held.append(trio.Event())
            await held[-1].wait()
        return value

    settings = CacheSettings(CAPACITY_BYTES, chunk_bytes=CHUNK_BYTES)
    async with open_cache(str(tmp_path), settings, metrics=Metrics(), run_in_thread=run_in_thread) as staging:
        file = await stage(staging, 1)
        overwrite(object_path(staging, file), 5, b"other")
        may_hold = True
        got: list[bytearray | None] = []

        async def read() -> None:
            try:
                got.append(await staging.reader.read(file, Extent(0, 100)))
            except StagingError:
                got.append(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not held:
                await trio.lowlevel.checkpoint()
            check_contents(1, CHUNK_BYTES, await staging.reader.read_chunk(file, 1))
            check_contents(1, CHUNK_BYTES, await staging.reader.read_chunk(file, 1))
            assert file.stamp is not None
            held[0].set()
        assert got == [None]


async def test_a_file_system_of_whole_seconds_is_never_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole_seconds(fd: int, size: int) -> Any:
        found = stamp_of(fd, size)
        return found and found._replace(ctime_ns=found.ctime_ns // 10**9 * 10**9)

    for user in ("objects.changes", "objects.reads", "reader", "publisher"):
        monkeypatch.setattr(f"hfs.mountd.cache.{user}.stamp_of", whole_seconds)
    async with healthy_staging(tmp_path) as staging:
        file = await stage(staging, 1)
        assert await staging.publisher.is_sound(file)
        assert file.recorded is None
    async with healthy_staging(tmp_path) as staging:
        assert not await staging.publisher.is_sound(await staging.files.get(version_of(1, SIZE), b"f"))


# -- Who reads a file from its beginning finds the next chunks verified; who reads at random pays for its own alone --

LAST = SIZE // CHUNK_BYTES


async def staged_before(tmp_path: Path) -> str:
    """A file of four chunks that an earlier daemon has staged; the path of its object."""
    async with healthy_staging(tmp_path) as staging:
        return object_path(staging, await stage(staging, 1))


async def read(staging: Cache, file: StagedFile, start: int, size: int) -> None:
    check_contents(1, start, await staging.reader.read(file, Extent(start, start + size)))
    await trio.testing.wait_all_tasks_blocked()


async def test_the_next_two_chunks_are_verified_while_one_is_read(tmp_path: Path) -> None:
    await staged_before(tmp_path)
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        await read(staging, file, 0, 1000)
        assert [index in file.verified for index in range(LAST + 1)] == [True, True, True, False]
        await read(staging, file, 1000, 1000)
        assert LAST not in file.verified
        await read(staging, file, CHUNK_BYTES, 1000)  # in a chunk that was verified ahead
        assert LAST in file.verified
        assert metrics["staged_verified_bytes"] == SIZE, "each once"


async def test_a_read_amid_a_chunk_has_no_other_verified(tmp_path: Path) -> None:
    await staged_before(tmp_path)
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        await read(staging, file, CHUNK_BYTES + 1, 1000)
        assert [index in file.verified for index in range(LAST + 1)] == [False, True, False, False]


async def test_damage_that_is_found_ahead_reaches_nobody(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staged bytes of 'f' .* cannot be read: .*wrong checksum")
    path = await staged_before(tmp_path)
    overwrite(path, CHUNK_BYTES + 7, b"other")
    async with healthy_staging(tmp_path) as staging:
        file = await staging.files.get(version_of(1, SIZE), b"f")
        await read(staging, file, 0, 1000)
        assert 1 not in file.present
        with pytest.raises(StagingError):
            await staging.reader.read(file, file.chunk(1))
        await read(staging, file, 2 * CHUNK_BYTES, 1000)
