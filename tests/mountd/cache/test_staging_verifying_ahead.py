"""Who reads a file from its beginning finds the next chunks verified; who reads at random pays for its own alone.

Without threads, in virtual time (tests/support/faults.py).
"""

from pathlib import Path

import pytest
import trio
import trio.testing

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.faults import (
    CHUNK_BYTES,
    SIZE,
    check_contents,
    healthy_staging,
    object_path,
    overwrite,
    run,
    stage,
    version_of,
)

LAST = SIZE // CHUNK_BYTES


async def staged_before(tmp_path: Path) -> str:
    """A file of four chunks that an earlier daemon has staged; the path of its object."""
    async with healthy_staging(tmp_path) as staging:
        return object_path(staging, await stage(staging, 1))


async def read(staging: Cache, file: StagedFile, start: int, size: int) -> None:
    check_contents(1, start, await staging.reader.read(file, Extent(start, start + size)))
    await trio.testing.wait_all_tasks_blocked()


def test_the_next_two_chunks_are_verified_while_one_is_read(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_a_read_amid_a_chunk_has_no_other_verified(tmp_path: Path) -> None:
    async def main() -> None:
        await staged_before(tmp_path)
        async with healthy_staging(tmp_path) as staging:
            file = await staging.files.get(version_of(1, SIZE), b"f")
            await read(staging, file, CHUNK_BYTES + 1, 1000)
            assert [index in file.verified for index in range(LAST + 1)] == [False, True, False, False]

    run(main)


def test_damage_that_is_found_ahead_reaches_nobody(tmp_path: Path, logs: Logs) -> None:
    logs.expect("staged bytes of 'f' .* cannot be read: .*wrong checksum")

    async def main() -> None:
        path = await staged_before(tmp_path)
        overwrite(path, CHUNK_BYTES + 7, b"other")
        async with healthy_staging(tmp_path) as staging:
            file = await staging.files.get(version_of(1, SIZE), b"f")
            await read(staging, file, 0, 1000)
            assert 1 not in file.present
            with pytest.raises(StagingError):
                await staging.reader.read(file, file.chunk(1))
            await read(staging, file, 2 * CHUNK_BYTES, 1000)

    run(main)
