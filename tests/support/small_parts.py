"""Small files in virtual time: the real namespace, fetcher and `SmallFiles` over a fake source and a fake staging.

For tests/mountd/test_small_files*.py. Not a test module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.daemon.fetching import Fetching
from hfs.mountd.fetch import Goal, Small, SmallFiles
from hfs.mountd.namespace.namespace import Namespace, open_namespace
from hfs.mountd.namespace.nodes.node import Node
from hfs.policies.geometry import Extent
from tests.support.fake_source import FakeSource
from tests.support.fake_staging import FakeStaging
from tests.support.fetch_parts import FetchParts

CHUNK = 64 << 10
SIZE = 3000


@dataclass
class Parts:
    source: FakeSource
    staging: FakeStaging
    namespace: Namespace
    fetch: Fetching
    small_files: SmallFiles
    pushed: list[bytes]
    nursery: trio.Nursery

    async def stage(self, *paths: bytes) -> list[Small | HfsError]:
        return await self.small_files.stage_paths(paths, Goal.STAGED, push=True)

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
        found = self.held(node.version)
        return bytes(found if found is not None else await self.fetch.fetcher.chunk(node, file, 0))

    def held(self, version: Version) -> memoryview | None:
        """What is in memory of a file and was not staged yet."""
        file = self.staging.files.get_nowait(version)
        found = self.fetch.resolver.peek(file, Extent(0, version.size)) if file is not None else None
        return memoryview(found.data) if found is not None and found.tier == "flight" else None

    def read(self) -> list[bytes]:
        """What was read from the source, in its order."""
        return [path for path, _ in self.source.reads]

    def rest(self) -> None:
        """Nothing is under way any more, and nothing is kept."""
        assert self.fetch.fetcher.in_flight == 0
        assert self.fetch.buffers.used_bytes == 0
        assert not self.staging.queue


@asynccontextmanager
async def parts_of(source: FakeSource, *, ttl_s: float = 60.0) -> AsyncIterator[Parts]:
    metrics, staging = Metrics(), FakeStaging(CHUNK)
    staging.in_memory = True
    pushed: list[bytes] = []

    class Pushes:
        @staticmethod
        async def push(node: Node, offset: int, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            await trio.lowlevel.checkpoint()
            pushed.append(node.path)
            return True

        @staticmethod
        async def push_whole(node: Node, data: memoryview) -> bool:  # noqa: ARG004 - the protocol's
            raise AssertionError("only an open does that")

    async with trio.open_nursery() as nursery:
        namespace = await open_namespace(source, metrics, nursery, ttl_s=ttl_s, strict=False)  # type: ignore[arg-type]  # a fake
        built = FetchParts(source, staging, metrics, chunk_bytes=CHUNK, buffer_chunks=64)
        fetch = built.fetching(namespace, Pushes(), lambda: False, nursery)
        yield Parts(source, staging, namespace, fetch, built.small_files(namespace, fetch), pushed, nursery)
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
