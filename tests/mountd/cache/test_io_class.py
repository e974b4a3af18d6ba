"""The I/O class of threads that stage: read back from the kernel, in the very threads, and gone when they are done."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache import CacheSettings, open_cache
from hfs.mountd.cache.objects.disk import Disk
from hfs.mountd.cache.objects.io import ObjectIO, idle_io, io_class_here, staging_io
from hfs.mountd.core.metrics import Metrics
from tests.support.faults import CHUNK_BYTES, stage

LAST, IDLE = 2 << 13 | 7, 3 << 13

pytestmark = pytest.mark.skipif(io_class_here() < 0, reason="ioprio_get(2) is not known here")


class Heeding(ObjectIO):
    """Notes in which class each call is made."""

    def __init__(self) -> None:
        self.classes: dict[str, set[int]] = {"write": set(), "sync": set(), "read": set()}

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        self.classes["write"].add(io_class_here())
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        self.classes["sync"].add(io_class_here())
        super().sync(fd)

    def read_into(self, fd: int, offset: int, buffer: memoryview) -> bool:
        self.classes["read"].add(io_class_here())
        return super().read_into(fd, offset, buffer)


async def test_chunks_are_written_and_synced_behind_what_is_read(tmp_path: Path) -> None:
    disk, before = Disk(str(tmp_path)), io_class_here()
    disk.io = heeding = Heeding()
    settings = CacheSettings(chunk_bytes=CHUNK_BYTES)
    async with open_cache(str(tmp_path), settings, metrics=Metrics(), disk=disk) as cache:
        await cache.ready.wait()
        file = await stage(cache, 1, 2 * CHUNK_BYTES)
        assert file.durable
        assert heeding.classes["write"] == heeding.classes["sync"] == {LAST}
        assert await trio.to_thread.run_sync(io_class_here) == before, "threads are used for reads again"


def test_a_thread_has_its_class_back_and_one_that_is_idle_from_outside_stays_so() -> None:
    def look() -> list[int]:
        found = [io_class_here()]
        with staging_io():
            found.append(io_class_here())
            with idle_io():
                found.append(io_class_here())
                with staging_io():
                    found.append(io_class_here())
            found.append(io_class_here())
        with pytest.raises(OSError, match="of the disk"), staging_io():
            raise OSError(5, "of the disk")
        return [*found, io_class_here()]

    with ThreadPoolExecutor(1) as thread:
        before, *inside, after = thread.submit(look).result()
    assert inside == [LAST, IDLE, IDLE, LAST]
    assert before == after != LAST
