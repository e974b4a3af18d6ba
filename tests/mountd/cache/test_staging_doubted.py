"""What is staged of a version that is in doubt: served, not committed until it is believed, gone if it is not."""

from pathlib import Path

import pytest

from hfs.mountd.cache import Cache
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.support.faults import CHUNK_BYTES, SIZE, healthy_staging, object_names, put, stage, verify, version_of
from tests.support.pattern import check


class Doubts:
    """Implements `cache.objects.context.Trust`."""

    def __init__(self) -> None:
        self.held: set[Version] = set()
        self.wrong: set[Version] = set()

    def holds(self, version: Version) -> bool:
        return version in self.held

    def refutes(self, version: Version) -> bool:
        return version in self.wrong

    def hurry(self, version: Version) -> None:
        pass


async def rows(staging: Cache) -> list[int]:
    await staging.committer.wait_committed()
    return [row.version.inode async for row in staging.listing.rows()]


async def test_what_is_in_doubt_is_served_and_committed_once_it_is_believed(tmp_path: Path) -> None:
    doubts = Doubts()
    async with healthy_staging(tmp_path, trust=doubts) as staging:
        doubts.held.add(version_of(1, SIZE))
        file = await stage(staging, 1, SIZE)
        await stage(staging, 2, SIZE)
        assert file.complete
        assert not file.durable
        check(1, 0, await staging.reader.read(file, Extent(0, SIZE)))
        assert await rows(staging) == [2]
        assert await staging.evictions.evict_paths([b""]) == (1, staging.statistics().room_bytes)
        check(1, 0, await staging.reader.read(file, Extent(0, SIZE)))
        doubts.held.clear()
        staging.committer.confirm(file.version)
        await staging.committer.wait_confirmed(file.version)
        assert await rows(staging) == [1]
        assert file.durable
    assert await verify(str(tmp_path)) == -(-SIZE // CHUNK_BYTES)


async def test_what_was_wrong_leaves_nothing(tmp_path: Path) -> None:
    doubts = Doubts()
    metrics = Metrics()
    async with healthy_staging(tmp_path, trust=doubts, metrics=metrics) as staging:
        version = version_of(1, SIZE)
        doubts.held.add(version)
        file = await stage(staging, 1, SIZE)
        doubts.held.clear()
        doubts.wrong.add(version)
        staging.committer.disbelieve(version)
        await staging.files.supersede(version)
        await staging.reclaimer.wait_idle()
        assert not file.present
        assert put(staging, file, 0)  # on its way when that was found out
        await staging.committer.wait_committed()
        await staging.reclaimer.wait_idle()
        assert await rows(staging) == []
        assert staging.statistics().room_bytes == 0
        assert metrics["staging_errors"] == 0
    assert object_names(str(tmp_path)) == set()
    assert await verify(str(tmp_path)) == 0


async def test_what_was_wrong_stays_with_who_has_it_open(tmp_path: Path) -> None:
    """What arrives late as well. Nobody else gets it, and nothing of it is left when the last has closed it."""
    doubts = Doubts()
    async with healthy_staging(tmp_path, trust=doubts) as staging:
        version = version_of(1, SIZE)
        doubts.held.add(version)
        file = await stage(staging, 1, SIZE)
        staging.files.pin(file)
        staging.files.pin(file)
        doubts.held.clear()
        doubts.wrong.add(version)
        staging.committer.disbelieve(version)
        await staging.files.supersede(version)
        await staging.reclaimer.wait_idle()
        staging.files.unpin(file)
        await staging.reclaimer.wait_idle()
        check(1, 0, await staging.reader.read(file, Extent(0, file.size)))
        assert await rows(staging) == []
        staging.files.unpin(file)
        await staging.reclaimer.wait_idle()
        assert not file.present
        assert staging.statistics().room_bytes == 0
    assert object_names(str(tmp_path)) == set()


@pytest.mark.parametrize("is_wrong", [False, True])
async def test_at_the_end_neither_what_is_in_doubt_nor_what_is_wrong_and_open_is_left(
    tmp_path: Path, is_wrong: bool
) -> None:
    doubts = Doubts()
    async with healthy_staging(tmp_path, trust=doubts) as staging:
        version = version_of(1, SIZE)
        doubts.held.add(version)
        file = await stage(staging, 1, SIZE)
        if is_wrong:
            staging.files.pin(file)
            doubts.wrong.add(version)
            staging.committer.disbelieve(version)
    assert object_names(str(tmp_path)) == set()
    assert await verify(str(tmp_path)) == 0
