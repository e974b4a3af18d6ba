"""Small data sets, and the messages by which a learner tells the daemon its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from hfs.mountd.core.caller import Credentials
from hfs.mountd.hints.hints import HintSession, Learners
from hfs.mountd.wire.hints import LayoutFrame, LayoutPart, LearnerMessage, Order, encode_layout, layout_digest
from hfs.mountd.wire.protocol import Failure, Join, Result
from tests.support.fake_source import FakeSource
from tests.support.read_parts import Parts

SIZE = 8192


def source_of(count: int, size: int = SIZE) -> FakeSource:
    """Files d/0, d/1, ... of `size` bytes each."""
    source = FakeSource()
    source.directory(b"d", 10)
    for i in range(count):
        source.file(b"d/%d" % i, 100 + i, size)
    return source


def list_of(count: int) -> LayoutFrame:
    return LayoutFrame(files=b"\0".join(b"d/%d" % i for i in range(count)))


def samples_of(path: bytes, size: int, sample: int) -> LayoutFrame:
    """One file of samples of equal size, one after the other."""
    count = size // sample
    return LayoutFrame(
        files=path,
        extents=np.zeros(count, "<i4").tobytes(),
        offsets=(np.arange(count, dtype="<i8") * sample).tobytes(),
        sizes=np.full(count, sample, "<i8").tobytes(),
        file_sizes=np.array([size], "<i8").tobytes(),
    )


def order(indices: Sequence[int], epoch: int = 0, *, following: bool = False) -> Order:
    return Order(epoch, np.array(indices, "<i8").tobytes(), following=following)


async def joined(
    parts: Parts,
    frame: LayoutFrame,
    *,
    process: str = "p",
    rank: int = 0,
    world: int = 1,
    reader: Credentials | None = None,
) -> HintSession:
    blob = encode_layout(frame)
    join = Join(layout=layout_digest(blob), name="train", process=process, rank=rank, world=world)
    learner, answer = parts.learners.join(join, 7, reader)
    assert learner is not None
    assert isinstance(answer, Result)
    if answer.detail["layout"] == "wanted":
        half = len(blob) // 2
        assert await learner.receive(LayoutPart(blob[:half], False)) is None
        assert isinstance(await learner.receive(LayoutPart(blob[half:], True)), Result)
    return learner


async def told(learner: HintSession, message: LearnerMessage) -> None:
    answer = await learner.receive(message)
    assert not isinstance(answer, Failure), answer


async def shown(learners: Learners, reader: Credentials | None = None) -> dict[str, Any]:
    """What `hfs status` is told of them."""
    told: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(await learners.status(reader)))
    return told
