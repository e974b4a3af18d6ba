"""Small files in virtual time: the real namespace, fetcher and `SmallFiles` over a fake source and a fake staging.

For tests/mountd/test_small_files*.py. Not a test module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from mountd.base.errors import HfsError
from mountd.core.buffers import Buffers
from mountd.core.memory import Memory
from mountd.core.metrics import Metrics
from mountd.fetch.fetcher import Fetcher
from mountd.fetch.recorder import Recorder
from mountd.fetch.small_files import Small, SmallFiles
from mountd.namespace.namespace import Namespace, open_namespace
from mountd.namespace.node import Node
from policies.geometry import Extent
from tests.support.fake_source import FakeSource
from tests.support.fake_staging import FakeStaging

CHUNK = 64 << 10
SIZE = 3000
"""16 of them fill the buffer of a batch."""


@dataclass
class Parts:
    source: FakeSource
    staging: FakeStaging
    namespace: Namespace
    fetcher: Fetcher
    small: SmallFiles
    buffers: Buffers
    pushed: list[bytes]
    nursery: trio.Nursery

    async def stage(self, *paths: bytes) -> list[Small | HfsError]:
        return await self.small.stage_paths(paths, push=True)

    def is_right(self, path: bytes) -> bool:
        """What is staged of the newest version of the file is the source's."""
        attributes = self.source.tree[path]
        version = attributes.version(self.source.source_id)
        return self.staging.chunks.get((version, 0)) == self.source.content(path, Extent(0, attributes.size))

    async def demand(self, path: bytes) -> bytes:
        """What a reader does: look up, then have the bytes fetched."""
        node = await self.namespace.lookups.resolve(path)
        assert node.version is not None
        file = await self.staging.files.get(node.version, path)
        held = self.fetcher.held_nowait(node.version, 0)
        return bytes(held if held is not None else await self.fetcher.chunk(node, file, 0))

    def by_itself(self) -> list[bytes]:
        """What was read outside of a batch."""
        return [path for what, path in self.source.calls if what in ("read", "read ahead")]

    def rest(self) -> None:
        """Nothing is under way any more, and nothing is kept."""
        assert self.fetcher.in_flight == 0
        assert self.buffers.used_bytes == 0
        assert not self.staging.queue


@asynccontextmanager
async def parts_of(source: FakeSource, *, ttl_s: float = 60.0) -> AsyncIterator[Parts]:
    metrics, staging, buffers = Metrics(), FakeStaging(CHUNK), Buffers(64 * CHUNK, CHUNK)
    staging.in_memory = True
    pushed: list[bytes] = []

    class Pushes:
        @staticmethod
        async def push(node: Node, offset: int, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            await trio.lowlevel.checkpoint()
            pushed.append(node.path)
            return True

        @staticmethod
        def push_nowait(node: Node, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            raise AssertionError("only an open does that")

    async with trio.open_nursery() as nursery:
        namespace = await open_namespace(source, metrics, nursery, ttl_s=ttl_s, strict=False)  # type: ignore[arg-type]  # a fake
        fetcher = Fetcher(
            source,
            staging,
            buffers,
            nursery,
            metrics,
            Pushes(),
            Memory(trio.current_time),
            Recorder(),
            None,  # no peers
            reads_a_file=8,
        )  # type: ignore[arg-type]  # fakes
        small = SmallFiles(namespace, staging, fetcher, source, buffers, metrics, chunk_bytes=CHUNK)  # type: ignore[arg-type]  # fakes
        yield Parts(source, staging, namespace, fetcher, small, buffers, pushed, nursery)
        nursery.cancel_scope.cancel()


def tree(files: int = 4, size: int = SIZE) -> FakeSource:
    source = FakeSource()
    source.directory(b"d", 3)
    for i in range(files):
        source.file(b"d/%d" % i, 100 + i, size)
    return source


def names(files: int) -> list[bytes]:
    return [b"d/%d" % i for i in range(files)]


def become(outcomes: Sequence[Small | HfsError]) -> list[object]:
    return [outcome.become if isinstance(outcome, Small) else type(outcome) for outcome in outcomes]
