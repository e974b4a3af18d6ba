"""Faults of the cache disk and of its index: whatever fails costs staging and nothing else, and staging recovers.

Without threads, in virtual time (tests/support/faults.py). Every single operation failing in turn:
tests/power/test_crash.py.
"""

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache.objects.codec import UNDECIDED, Shrinker
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import ObjectIO
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.cache.encoding import EncodingChoice
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SHRINKS,
    SIZE,
    Operations,
    evict,
    fail,
    healthy_staging,
    object_names,
    object_path,
    overwrite,
    put,
    stage,
    verify,
    version_of,
)
from tests.support.pattern import check


class FullDisk(Disk):
    """Refuses writes, syncs, holes, or opens, while told to."""

    full = False
    full_but_bytes: int | None = None
    """So much of a write is taken."""
    sync_fails = False
    punch_fails = False
    opens_fail_with = 0

    def __init__(self, cache_dir: str) -> None:
        super().__init__(cache_dir)
        self.io = FullIO(self)

    def open_read(self, number: int, *, direct: bool = False) -> int:
        if self.opens_fail_with:
            raise OSError(self.opens_fail_with, os.strerror(self.opens_fail_with))
        return super().open_read(number, direct=direct)


class FullIO(ObjectIO):
    def __init__(self, disk: FullDisk) -> None:
        self.disk = disk

    def write(self, fd: int, parts: Any, offset: int) -> None:
        room_bytes = self.disk.full_but_bytes
        if self.disk.full or (room_bytes is not None and sum(map(len, parts)) > room_bytes):
            raise OSError(errno.ENOSPC, "full")
        super().write(fd, parts, offset)

    def punch(self, fd: int, start: int, end: int) -> None:
        if self.disk.punch_fails:
            raise OSError(errno.EOPNOTSUPP, "no holes here")
        super().punch(fd, start, end)

    def sync(self, fd: int) -> None:
        if self.disk.sync_fails:
            raise OSError(errno.EIO, "lost")


async def puts_taken_after_s(staging: Cache, file: StagedFile, for_s: int) -> list[int]:
    """After how many seconds from now a chunk that is put again and again was taken."""
    taken, start_s = [], trio.current_time()
    while (now_s := trio.current_time() - start_s) < for_s:
        if put(staging, file, 0):
            taken.append(round(now_s))
        await trio.sleep(0.25)
    return taken


async def errors_after_s(metrics: Metrics, for_s: int) -> list[int]:
    """After how many seconds from now the disk has failed."""
    failed, start_s = list[int](), trio.current_time()
    before = metrics["staging_errors"]
    while (now_s := trio.current_time() - start_s) < for_s:
        failed += [round(now_s)] * (metrics["staging_errors"] - before)
        before = metrics["staging_errors"]
        await trio.sleep(0.25)
    return failed


async def test_a_full_disk_rests_longer_and_longer_and_recovers(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staging a chunk: .*full; serving from the source, trying again in 1 s")
    disk, metrics = FullDisk(str(tmp_path)), Metrics()
    async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
        disk.full = True
        file = await staging.files.get(version_of(1, SIZE), b"f")
        assert await puts_taken_after_s(staging, file, 40) == [0, 1, 3, 7, 15, 31]
        assert staging.statistics().state == "resting"
        assert staging.statistics().room_bytes == 0
        assert object_names(str(tmp_path)) == set()
        assert len(logs.records) == 1  # one a minute
        disk.full = False
        await trio.sleep(32)
        assert staging.admission.open
        await stage(staging, 1)
        assert staging.statistics().state == "ok"
        disk.full = True
        put(staging, await staging.files.get(version_of(2, 10)), 0)
        await trio.sleep(0.1)
        assert staging.context.health._rest_s == 1  # forgiven
    await verify(str(tmp_path))


@pytest.mark.parametrize("where", ["write", "sync", "index"])
async def test_a_disk_that_nothing_is_staged_on_is_tried_again(tmp_path: Path, logs: Logs, where: str) -> None:
    logs.expect("serving from the source, trying again in 1 s")
    operations, disk, metrics = Operations(0, fail), FullDisk(str(tmp_path)), Metrics()
    async with healthy_staging(tmp_path, disk=disk, operations=operations, metrics=metrics) as staging:
        await staging.ready.wait()
        disk.full, disk.sync_fails = where == "write", where == "sync"
        if where == "index":
            operations.act_after(1, for_ever=True)
        file = await staging.files.get(version_of(1, SIZE), b"f")
        await trio.sleep(0.5)
        if where != "index":  # which has failed already: it was asked for the file
            assert put(staging, file, 0)
        tries = await errors_after_s(metrics, 40)
        assert [after - before for before, after in itertools.pairwise(tries[-5:])] == [2, 4, 8, 16]
        assert staging.statistics().state == "resting"
        disk.full = disk.sync_fails = False
        operations.act_no_more()
        await trio.sleep(32)
        assert staging.statistics().state == "ok"
    await verify(str(tmp_path))


async def test_a_disk_that_takes_a_trial_and_no_chunk_rests_longer_and_longer(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staging a chunk: .*full; serving from the source, trying again in 1 s")
    disk, metrics = FullDisk(str(tmp_path)), Metrics()
    async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
        disk.full_but_bytes = CHUNK_BYTES - 1
        file = await staging.files.get(version_of(1, SIZE), b"f")
        assert await puts_taken_after_s(staging, file, 40) == [0, 1, 3, 7, 15, 31]
        assert metrics["staging_errors"] == 6
        await trio.sleep(32)
        assert staging.statistics().state == "ok"
    await verify(str(tmp_path))


async def test_a_failed_sync_is_believed(tmp_path: Path, logs: Logs) -> None:
    """What was written before it is not used any more, although the file system would now say that all is well."""
    logs.expect("making staged chunks durable: .*lost")
    disk, metrics = FullDisk(str(tmp_path)), Metrics()
    async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
        good = await staging.files.get(version_of(1, SIZE), b"f")
        put(staging, good, 0)
        await staging.committer.wait_committed()
        disk.sync_fails = True
        file = await staging.files.get(version_of(2, 5000), b"f")
        put(staging, good, 1)
        put(staging, file, 0)
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        assert list(good.present) == list(good.committed) == [0]
        assert not file.present
        assert metrics["staging_errors"] == 1
        assert staging.statistics().room_bytes == CHUNK_BYTES + 4096
        disk.sync_fails = False
        await trio.sleep(2)
        assert put(staging, good, 1)
        assert put(staging, file, 0)
        await staging.committer.wait_committed()
        assert file.durable
    assert await verify(str(tmp_path)) == 3


@pytest.mark.parametrize("how", ["wrong byte", "short", "gone"])
async def test_a_damaged_file_is_forgotten_and_staged_again(tmp_path: Path, logs: Logs, how: str) -> None:
    logs.expect("cannot be read")
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await stage(staging, 1)
        path = object_path(staging, file)
        if how == "wrong byte":
            overwrite(path, CHUNK_BYTES + 7, b"x")
        elif how == "short":
            os.truncate(path, 100)
        else:
            os.unlink(path)
        with pytest.raises(StagingError):
            await staging.reader.read_chunk(file, 1)
        assert 1 not in file.present
        assert metrics["staging_errors"] == 1
        assert metrics["staged_checksum_failures"] == (how != "gone")
        await staging.reclaimer.wait_idle()
        for index in list(file.present.missing()):
            assert put(staging, file, index)
        await staging.committer.wait_committed()
        check(1, CHUNK_BYTES, await staging.reader.read_chunk(file, 1))
    if how != "short":  # there the other chunks are damaged too, which only a look at them tells
        assert await verify(str(tmp_path)) == 4


async def test_check_finds_damage_and_reports_it(tmp_path: Path) -> None:
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        for seed in (1, 2):
            await stage(staging, seed, path=b"d/%d" % seed)
        file = await staging.files.get(version_of(1, SIZE))
        overwrite(object_path(staging, file), SIZE - 1, b"\0")
        found = {checked.path: checked async for checked in staging.checker.check([b"d"])}
        assert found[b"d/1"].broken == (3,)
        assert found[b"d/2"].broken == ()
        assert (found[b"d/2"].chunks, found[b"d/2"].bytes) == (4, SIZE)
        assert metrics["staged_checksum_failures"] == 1
        await staging.reclaimer.wait_idle()
        assert [checked.chunks async for checked in staging.checker.check([b"d/1"])] == [3]
    assert await verify(str(tmp_path)) == 7


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_check_drops_nothing_for_want_of_descriptors(tmp_path: Path, number: int) -> None:
    disk, metrics = FullDisk(str(tmp_path)), Metrics()
    async with healthy_staging(tmp_path, disk=disk, metrics=metrics) as staging:
        file = await stage(staging, 1)
        disk.opens_fail_with = number
        (checked,) = [checked async for checked in staging.checker.check()]
        disk.opens_fail_with = 0
        assert checked.broken == ()
        assert checked.fault == f"not checked: {os.strerror(number)}"
        assert file.durable
        assert metrics["staged_checksum_failures"] == 0
        assert [checked.fault async for checked in staging.checker.check()] == [None]
    assert await verify(str(tmp_path)) == 4


async def test_check_keeps_what_was_staged_again_since_it_was_listed(tmp_path: Path) -> None:
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        file = await stage(staging, SHRINKS, CHUNK_BYTES)
        staging.files.pin(file)
        rows = [row async for row in staging.listing.rows()]
        staging.reclaim_queue.give_up(file, [0])
        await staging.reclaimer.wait_idle()
        staging.shrinking.choose(EncodingChoice(True, "for a test"), Shrinker())
        file.element_bytes = UNDECIDED
        assert put(staging, file, 0)
        await staging.committer.wait_committed()
        assert not file.plain
        checks = staging.checker.check_rows(rows)
        assert [checked.fault async for checked in checks] == [None]
        assert file.committed.full
        assert metrics["staged_checksum_failures"] == 0
        staging.files.unpin(file)
    assert await verify(str(tmp_path)) == 1


async def test_what_could_not_be_punched_is_given_back_with_its_file(tmp_path: Path) -> None:
    disk = FullDisk(str(tmp_path))
    async with healthy_staging(tmp_path, disk=disk) as staging:
        file, other = await stage(staging, 1), await stage(staging, 2)
        disk.punch_fails = True
        staging.reclaim_queue.give_up(file, [0, 1])
        await staging.reclaimer.wait_idle()
        held_bytes = staging.statistics().room_bytes
        assert held_bytes == 2 * other.room_bytes  # it may all lie there still
        assert await evict(staging, file.version) == (1, other.room_bytes)
        assert staging.statistics().room_bytes == other.room_bytes
    async with healthy_staging(tmp_path) as staging:
        assert staging.context.index.opened.clean
    assert await verify(str(tmp_path)) == 4


async def test_a_damaged_index_stops_staging_until_the_next_start(tmp_path: Path, logs: Logs) -> None:
    logs.expect("nothing more is staged; the next daemon looks at all of it")
    logs.expect("set aside as index.sqlite.broken-1")
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1)
    async with healthy_staging(tmp_path) as staging:
        path = tmp_path / "index.sqlite"
        path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
        file = await staging.files.get(version_of(1, SIZE))
        assert not file.present
        assert not put(staging, file, 0)
        assert staging.statistics().state == "off"
    async with healthy_staging(tmp_path) as staging:
        await staging.ready.wait()
        await stage(staging, 1)
    assert await verify(str(tmp_path)) == 4


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_an_object_that_cannot_be_opened_is_not_sound_and_fails_nobody(tmp_path: Path, number: int) -> None:
    """Whoever opens the file asks this first, and goes on with the source."""
    disk = FullDisk(str(tmp_path))
    async with healthy_staging(tmp_path, disk=disk) as staging:
        await stage(staging, 1)
        file = await staging.files.get(version_of(1, SIZE), b"f")
        disk.open_cached = lambda _number: None  # type: ignore[method-assign]  # only here
        assert await staging.publisher.is_sound(file)
        disk.opens_fail_with = number
        assert not await staging.publisher.is_sound(file)
