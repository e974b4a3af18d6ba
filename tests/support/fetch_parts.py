"""What the daemon builds to fetch, over a fake source and a fake staging: the product's own wiring, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import trio

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import SourceTimeout
from hfs.mountd.core.limits import Memory
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.daemon.fetching import Fetching, Hinting, fetching, hinting
from hfs.mountd.fetch import PageCache, PrefetchQueue, SmallFiles
from hfs.mountd.files import IoMode
from hfs.mountd.hints import Learners, PlanChanges
from hfs.mountd.namespace import Namespace, Node
from hfs.policies.iomode import SMALL_BYTES
from tests.support.fake_source import FakeSource
from tests.support.fake_staging import FakeStaging


async def in_no_thread(function: Callable[..., Any], *arguments: object) -> Any:
    """Instead of trio.to_thread.run_sync."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


async def _is_not_delegated(_directory: Node) -> bool:
    return False


class FetchParts:
    """Basics and storage of a daemon as its wiring wants them."""

    def __init__(
        self,
        source: FakeSource,
        staging: FakeStaging,
        metrics: Metrics,
        *,
        chunk_bytes: int,
        buffer_chunks: int = 16,
        coalesce_bytes: int = 0,
    ) -> None:
        self.answers: set[bytes] | None = set()
        """Names that other users may read; None: the source does not say."""
        self.asked: list[tuple[int, bytes]] = []
        self.closed: set[tuple[bytes, bytes]] = set()
        """Links where they may not go."""
        self.asked_for: Callable[[list[bytes]], object] = lambda _names: None
        """Called when it was asked who may read these names."""
        self.has_overlays = False
        """Somebody reads through an overlay over the mount."""
        self.buffer_bytes = buffer_chunks * chunk_bytes
        self.queue = PrefetchQueue(metrics)
        changes = PlanChanges(self.queue.hints_nowait)
        self.learners = Learners(
            chunk_bytes, metrics, in_no_thread, changed=changes.changed, coalesce_bytes=coalesce_bytes
        )
        config = SimpleNamespace(
            buffer_bytes=self.buffer_bytes, chunk_bytes=chunk_bytes, stagger=8, prefetch_threads=16, io_mode="auto"
        )
        self._basics: Any = SimpleNamespace(
            config=config,
            metrics=metrics,
            memory=Memory(trio.current_time),
            workers=SimpleNamespace(run_sync=in_no_thread),
        )
        self._storage: Any = SimpleNamespace(
            source=source, cache=staging, queue=self.queue, plan_changes=changes, learners=self.learners
        )

    def fetching(
        self, namespace: Namespace, page_cache: PageCache | None, is_recorded: Callable[[], bool], nursery: trio.Nursery
    ) -> Fetching:
        return fetching(self._basics, self._storage, None, namespace, page_cache, is_recorded, nursery)

    def small_files(self, namespace: Namespace, fetch: Fetching) -> SmallFiles:
        """Those that the data plane does not fetch: see tests/fuse/test_small_pipeline.py."""
        limit_bytes = min(SMALL_BYTES, self._basics.config.chunk_bytes)
        pipeline: Any = SimpleNamespace(places=512, delegate=_is_not_delegated, limit_bytes=limit_bytes)
        return SmallFiles(namespace, self._storage.cache, fetch.resolver, fetch.owners, pipeline)

    def hinting(self, namespace: Namespace, fetch: Fetching, io_mode: IoMode, small_files: SmallFiles) -> Hinting:
        permissions: Any = SimpleNamespace(readable=self._readable, may_go=self._may_go, is_own=lambda _who: False)
        names: Any = SimpleNamespace(namespace=namespace, permissions=permissions)
        return hinting(self._basics, self._storage, names, fetch, io_mode, small_files, lambda: self.has_overlays)

    async def _may_go(self, _who: Credentials, ways: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[bool]:
        return [not self.closed.intersection(way) for way in ways]

    async def _readable(self, who: Credentials, places: Sequence[tuple[Node, bytes]]) -> list[bool | None]:
        self.asked += [(who.uid, name) for _, name in places]
        if self.answers is None:
            raise SourceTimeout("asking")
        links = self._storage.source.targets
        found = [None if b"/".join((at.path, name)) in links else name in self.answers for at, name in places]
        self.asked_for([name for _, name in places])
        return found
