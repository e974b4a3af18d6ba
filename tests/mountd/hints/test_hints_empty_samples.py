"""Samples without bytes among others: an order over them is followed, and nothing is fetched for them."""

import msgspec
import numpy as np
import trio

from hfs.mountd.wire.hints import At
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import joined, order, samples_of, told
from tests.support.read_parts import CHUNK, daemon


async def test_samples_without_bytes_are_passed_over() -> None:
    source = FakeSource()
    source.file(b"f", 11, 5 * CHUNK)
    # Every second sample, and the first and the last, is empty; the others are a chunk each.
    starts = np.array([0, *np.repeat(np.arange(6), 2)[:-1]], "<i8")
    frame = msgspec.structs.replace(samples_of(b"f", 5 * CHUNK, CHUNK), starts=starts.tobytes())
    async with daemon(source, workers=1) as parts:
        learner = await joined(parts, frame)
        await told(learner, order([0, 5, 2, 1, 10, 9, 4, 3, 6, 7, 8]))
        await trio.sleep(10)
        await told(learner, At(11))
        assert sorted(extent.start // CHUNK for _, extent in source.reads) == [0, 1, 2, 3, 4]
        await told(learner, order([0, 10, 2], epoch=1))
        await trio.sleep(10)
        assert len(source.reads) == 5
