"""The scrub: finds what has rotted without a trace, at its rate, yields to readers, goes on where it was.

Without threads, in virtual time (tests/support/faults.py). Damage below a real file system:
tests/fuse/test_cache_rot.py.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.cache import scrub as staging_scrub
from hfs.mountd.cache.index import ScrubRow, Stamp
from hfs.mountd.cache.objects import changes as staging_stamps
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import ObjectIO
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SIZE,
    check_contents,
    evict,
    healthy_staging,
    object_path,
    overwrite,
    put,
    stage,
    version_of,
)

RATE = 1 << 20
ROUND_S = 1000
"""Instead of a day, in which other tasks look around too often for a test."""


@pytest.fixture(autouse=True)
def _short_rounds_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_scrub, "_ROUND_S", ROUND_S)
    monkeypatch.setattr(staging_scrub, "_STEP_BYTES", CHUNK_BYTES)


def rot(staging: Cache, file: StagedFile, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn a bit without a trace: the object keeps its stamp."""
    path = object_path(staging, file)
    before = os.stat(path)
    with open(path, "rb") as object_file:
        object_file.seek(offset)
        byte = object_file.read(1)[0]
    overwrite(path, offset, bytes([byte ^ 1]))
    after = os.stat(path)
    found = Stamp(after.st_ino, after.st_ctime_ns)
    real = staging_stamps.stamp_of

    def as_before(fd: int, size: int) -> Stamp | None:
        stamp = real(fd, size)
        return Stamp(before.st_ino, before.st_ctime_ns) if stamp == found else stamp

    for user in ("objects.changes", "objects.reads", "reader", "publisher", "evictions"):
        monkeypatch.setattr(f"hfs.mountd.cache.{user}.stamp_of", as_before)


@asynccontextmanager
async def scrubbed(
    path: Path, metrics: Metrics | None = None, *, clock_s: float = 1e9, **keywords: Any
) -> AsyncIterator[Cache]:
    began_s = trio.current_time()
    async with healthy_staging(
        path,
        metrics=metrics or Metrics(),
        scrub_bytes_s=RATE,
        clock=lambda: clock_s + trio.current_time() - began_s,
        **keywords,
    ) as staging:
        yield staging


async def round_ended(staging: Cache) -> float:
    """When the next round has ended: seconds since now."""
    began_s = trio.current_time()
    rounds = staging.context.metrics["scrub_rounds"]
    while staging.context.metrics["scrub_rounds"] == rounds:
        await trio.sleep(0.05)
    return trio.current_time() - began_s


@pytest.mark.parametrize("offset", [0, CHUNK_BYTES + 5, SIZE - 1])
async def test_what_rots_without_a_trace_is_found_and_dropped(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    metrics = Metrics()
    async with scrubbed(tmp_path, metrics, disk=Disk(str(tmp_path))) as staging:
        for seed in (1, 2, 3):
            await stage(staging, seed)
        rotten = await staging.files.get(version_of(2, SIZE))
        rot(staging, rotten, offset, monkeypatch)
        assert await staging.publisher.is_sound(rotten)  # nothing tells
        assert await staging.publisher.publish(rotten, int) >= 0
        await round_ended(staging)
        assert list(rotten.present) == [index for index in range(4) if index != offset // CHUNK_BYTES]
        assert not rotten.durable
        figures = staging.scrub.figures()
        assert (figures["damaged_chunks"], metrics["scrubbed_files"]) == (1, 3)
        assert metrics["staged_checksum_failures"] == 1
        for seed in (1, 3):
            assert (await staging.files.get(version_of(seed, SIZE))).durable
        await staging.reclaimer.wait_idle()
        assert put(staging, rotten, offset // CHUNK_BYTES)
        await staging.committer.wait_committed()
        check_contents(2, 0, await staging.reader.read(rotten, Extent(0, SIZE)))


async def test_it_keeps_to_its_rate_and_says_how_far_it_is(tmp_path: Path) -> None:
    async with scrubbed(tmp_path) as staging:
        for seed in range(1, 11):
            await stage(staging, seed)
        took_s = await round_ended(staging)
        total = 10 * SIZE
        # It begins five seconds after the start; the last step is not waited for.
        assert total / RATE < took_s < 5 + total / RATE + 1
        figures = staging.scrub.figures()
        assert figures["round_bytes"] == figures["staged_bytes"] == figures["read_bytes"] == total
        assert figures["rate_bytes_s"] == RATE
        assert 0 < int(str(figures["measured_bytes_s"])) <= 2 * RATE
        assert figures["round_began"] is not None
        assert figures["last_round_ended"] is not None
        await trio.sleep(ROUND_S - 100)
        assert staging.scrub.figures()["read_bytes"] == total
        await round_ended(staging)
        assert staging.scrub.figures()["read_bytes"] == 2 * total


async def test_it_goes_on_where_an_earlier_daemon_was(tmp_path: Path) -> None:
    async with scrubbed(tmp_path) as staging:
        objects = [(await stage(staging, seed)).object_id for seed in range(1, 11)]
        at = ScrubRow(objects[6] or 0, 7 * SIZE, int(1e9) - 100, 0)
        staging.context.index.writer.note_scrubbed(at)
    metrics = Metrics()
    async with scrubbed(tmp_path, metrics) as staging:
        await round_ended(staging)
        assert metrics["scrubbed_files"] == 3
        assert staging.scrub.figures()["round_bytes"] == 10 * SIZE
    # It is not yet time for another one, whoever has ended it.
    metrics = Metrics()
    async with scrubbed(tmp_path, metrics, clock_s=1e9 + ROUND_S / 2) as staging:
        await trio.sleep(ROUND_S / 4)
        assert metrics["scrubbed_files"] == 0
        await round_ended(staging)
        assert metrics["scrubbed_files"] == 10


async def test_it_waits_while_readers_wait_for_the_disk_but_not_for_ever(tmp_path: Path) -> None:
    metrics = Metrics()
    async with scrubbed(tmp_path, metrics) as staging:
        for seed in range(1, 4):
            await stage(staging, seed)
        limiter = staging.context.threads._reading.limiter
        holder = object()
        await limiter.acquire_on_behalf_of(holder)
        assert await round_ended(staging) > 12  # each step a second late
        limiter.release_on_behalf_of(holder)
        assert metrics["scrubbed_files"] == 3


async def test_off_reads_nothing(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await stage(staging, 1)
        await trio.sleep(2 * ROUND_S)
        figures = staging.scrub.figures()
        assert (figures["state"], figures["read_bytes"], figures["last_round_ended"]) == ("off", 0, None)


async def test_it_makes_changed_objects_believed_again(tmp_path: Path) -> None:
    """Those of an older cache, or that somebody has copied: verified by the way."""
    async with healthy_staging(tmp_path) as staging:
        files = [await stage(staging, seed, size) for seed, size in ((1, SIZE), (2, 5000))]
        paths = [object_path(staging, file) for file in files]
    for path in paths:
        os.chmod(path, 0o600)
    async with scrubbed(tmp_path) as staging:
        await round_ended(staging)
    metrics = Metrics()
    async with healthy_staging(tmp_path, metrics=metrics) as staging:
        for seed, size in ((1, SIZE), (2, 5000)):
            assert await staging.publisher.is_sound(await staging.files.get(version_of(seed, size)))
        assert metrics["staged_verified_bytes"] == 0


async def test_what_is_staged_and_evicted_meanwhile_is_no_damage(tmp_path: Path) -> None:
    metrics = Metrics()
    async with scrubbed(tmp_path, metrics, capacity_bytes=64 << 20) as staging:
        for seed in range(1, 30):
            await stage(staging, seed)
        async with trio.open_nursery() as nursery:

            async def disturb() -> None:
                for seed in range(1, 30, 2):
                    await evict(staging, version_of(seed, SIZE))
                    file = await stage(staging, seed + 100)
                    await staging.evictions.evict_chunk(file, 1)
                    put(staging, file, 1)
                    await trio.sleep(0.3)

            nursery.start_soon(disturb)
            await round_ended(staging)
        assert metrics["scrub_damaged_chunks"] == 0
        assert metrics["staging_errors"] == 0


class BufferedOnly(Disk):
    """A file system that takes no O_DIRECT for reading."""

    at_open = True

    def __init__(self, cache_dir: str) -> None:
        super().__init__(cache_dir)
        self.io: CountingIO = CountingIO()

    def open_read(self, number: int, *, direct: bool = False) -> int:
        if direct and self.at_open:
            raise OSError(22, "no direct reads here")
        return super().open_read(number)


class CountingIO(ObjectIO):
    let_go_bytes = 0

    def let_go(self, fd: int, offset: int, size: int) -> None:
        self.let_go_bytes += size
        super().let_go(fd, offset, size)


@pytest.mark.slow
async def test_where_there_is_no_direct_io_the_page_cache_is_left_as_it_was(tmp_path: Path) -> None:
    disk = BufferedOnly(str(tmp_path))
    async with scrubbed(tmp_path, disk=disk) as staging:
        if disk.in_memory():
            pytest.skip("the cache lies in memory")
        file = await stage(staging, 1)
        await round_ended(staging)
        assert disk.io.let_go_bytes == 0  # it was there: just written
        for _ in range(10):  # a round that is at the file just now brings a page back, as it was there
            with open(object_path(staging, file), "rb") as object_file:
                os.fsync(object_file.fileno())
                os.posix_fadvise(object_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            disk.io.let_go_bytes = 0
            await round_ended(staging)
            if disk.io.let_go_bytes == SIZE:
                break
        assert disk.io.let_go_bytes == SIZE
        assert staging.scrub.figures()["damaged_chunks"] == 0
