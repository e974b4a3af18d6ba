"""What the parts of storage know of each other, with a real source and a real cache in folders."""

import os
from pathlib import Path

import numpy as np
import pytest
import trio

from hfs.mountd.cache import StagedFile
from hfs.mountd.core.config import Config
from hfs.mountd.core.memory import Memory
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.open_files import OpenFiles
from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.storage import Storage, open_storage
from hfs.mountd.namespace import Journal
from hfs.mountd.wire.handover import Handover
from hfs.mountd.wire.hints import LayoutFrame, LayoutPart, Order, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join
from tests.support.faults import CHUNK_BYTES, stage

ROOM_BYTES = CHUNK_BYTES + 4096


async def follow(storage: Storage, file: StagedFile) -> None:
    """A learner joins, with an order that names this file alone."""
    blob = encode_layout(LayoutFrame(files=b"f"))
    learner, _ = storage.learners.join(Join(layout=layout_digest(blob)), 1)
    assert learner is not None
    await learner.receive(LayoutPart(blob, True))
    await learner.receive(Order(0, np.zeros(1, "<i8").tobytes()))
    assert learner.plan is not None
    assert learner.plan.objects is not None
    assert file.object_id is not None
    learner.plan.objects[0] = file.object_id


@pytest.mark.usefixtures("real_clock")
async def test_the_cache_knows_what_an_order_names_and_evicts_other_files(tmp_path: Path) -> None:
    for name in ("source", "mount", "cache"):
        (tmp_path / name).mkdir(mode=0o700)
    config = Config(
        source=str(tmp_path / "source"),
        mountpoint=str(tmp_path / "mount"),
        cache=str(tmp_path / "cache"),
        cache_size_bytes=4 * ROOM_BYTES,
        chunk_bytes=CHUNK_BYTES,
        eviction="lru",
        scrub_bytes_s=0,
    )
    workers = Workers()
    memory = Memory(trio.current_time)
    source_fd = os.open(config.source, os.O_RDONLY | os.O_DIRECTORY)
    handover = Handover(-1, b"", source_fd, (-1, -1), 0)
    basics = Basics(config, {}, handover, Journal(), Metrics(), memory, workers, OpenFiles(1024))
    with trio.fail_after(20):
        async with workers.running(), open_storage(basics) as storage:
            await storage.cache.ready.wait()
            named, other = [await stage(storage.cache, seed, CHUNK_BYTES) for seed in (1, 2)]
            await follow(storage, named)
            assert await storage.cache.evictor.wait_room(3 * ROOM_BYTES)
            assert (named.complete, other.complete) == (True, False)
    os.close(source_fd)
