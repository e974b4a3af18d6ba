"""What reads of a daemon go through, put together in virtual time over a fake source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from hfs.mountd.cache import ExposedObjects
from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import FetchesAhead, PagePusher, Prefetch, PrefetchQueue, SiblingFetches, SiblingWatch
from hfs.mountd.files import (
    ChangedNames,
    Delegations,
    Handles,
    Impediments,
    IoMode,
    OpenedFiles,
    Opening,
    OpenModes,
    OpenObservers,
    PageFaults,
    ReadaheadWindows,
    ReadPath,
    Recorder,
    SentAway,
    SmallOpens,
    open_again,
)
from hfs.mountd.files.handles import FileHandle
from hfs.mountd.hints import FollowedPlans, HintFollower, Learners, PageCacheWarmer
from hfs.mountd.namespace.journal.journal import Journal
from hfs.mountd.namespace.namespace import Namespace, open_namespace
from hfs.mountd.namespace.nodes.node import Node
from hfs.policies.iomode import Choice
from hfs.policies.prefetch.siblings import Siblings
from tests.support.fake_plane import FakePlane
from tests.support.fake_source import FakeSource
from tests.support.fake_staging import FakeStaging
from tests.support.fetch_parts import FetchParts


class FakePassthrough:
    """Hands out backing ids for durable files in memory, as `files.passthrough.Passthrough` does, with the number of
    users in `StagedFile.passed`. `refuse`: the kernel takes no more. `checkpoints`: how often a registration lets
    others run."""

    def __init__(self) -> None:
        self.on = False
        self.refuse = False
        self.checkpoints = 1
        self.backings: dict[StagedFile, int] = {}
        self.made = 0
        self.lost: list[int] = []

    def __len__(self) -> int:
        return len(self.backings)

    def may(self, file: StagedFile) -> bool:
        return self.on and file.durable

    def object_of(self, file: StagedFile) -> int:
        return 1

    def attach(self, file: StagedFile, backing_id: int, inode: int) -> None:
        self.backings.setdefault(file, backing_id)
        self.made = max(self.made, backing_id)
        file.passed += 1

    def lose(self, backing_id: int) -> None:
        self.lost.append(backing_id)

    def acquire_nowait(self, file: StagedFile) -> int | None:
        if file in self.backings:
            return self._one_more(file)
        return None if not self.may(file) or self.checkpoints or self.refuse else self._one_more(file)

    async def acquire(self, file: StagedFile) -> int | None:
        if file not in self.backings and not self.may(file):
            return None
        file.passed += 1
        for _ in range(0 if file in self.backings else self.checkpoints):
            await trio.lowlevel.checkpoint()
        file.passed -= 1
        if file not in self.backings and (self.refuse or not file.durable):
            return None
        return self._one_more(file)

    def release(self, file: StagedFile) -> None:
        file.passed -= 1
        if not file.passed:
            self.backings.pop(file, None)

    def _one_more(self, file: StagedFile) -> int:
        if file not in self.backings:
            self.made += 1
            self.backings[file] = self.made
        file.passed += 1
        return self.backings[file]


CHUNK = 1 << 20
THREAD = 4711


@dataclass
class Parts:
    """A daemon without kernel, disk and threads."""

    source: FakeSource
    staging: FakeStaging
    namespace: Namespace
    handles: Handles
    read_path: ReadPath
    opening: Opening
    prefetch: PrefetchQueue
    metrics: Metrics
    buffers: Buffers
    passthrough: FakePassthrough
    learners: Learners
    hints: HintFollower
    plans: FollowedPlans
    warmer: PageCacheWarmer
    faults: PageFaults
    pushed: list[tuple[bytes, int, int]]
    pusher: PagePusher
    delegations: Delegations
    recorder: Recorder
    built: FetchParts
    stuck: bool = False
    """Pushes never end."""

    async def open(self, path: bytes) -> int:
        node = await self.namespace.lookups.resolve(path)
        if not node.lookups:
            self.namespace.holds.referenced(node)
        number, _ = await self.opening.open(node, THREAD)
        return number

    async def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(await self.read_path.read(self.handles.file(number), offset, size))


@asynccontextmanager
async def daemon(
    source: FakeSource,
    *,
    workers: int = 0,
    push: bool = False,
    ttl_s: float = 60.0,
    coalesce_bytes: int = 0,
    journal: Journal | None = None,
    staging: FakeStaging | None = None,
    plane: FakePlane | None = None,
) -> AsyncIterator[Parts]:
    journal = journal or Journal()
    inherited = journal.take_inherited()
    metrics, handles, staging = Metrics(), Handles(journal), staging or FakeStaging(CHUNK)
    pushed: list[tuple[bytes, int, int]] = []

    class Pushes:
        @staticmethod
        async def push(node: Node, offset: int, data: memoryview) -> bool:
            if parts.stuck:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            pushed.append((node.path, offset, len(data)))
            return True

        async def push_whole(self, node: Node, data: memoryview) -> bool:
            return await self.push(node, 0, data)

    passthrough = FakePassthrough()
    io_mode = IoMode(
        "auto",
        immutable=False,
        cache=staging,  # type: ignore[arg-type]  # a fake
        passthrough=passthrough,  # type: ignore[arg-type]  # a fake
        journal=journal,
        missing=Impediments(lambda: None, lambda: None),
        becomes_stateless=lambda: None,
    )
    io_mode.choice = Choice("passthrough", "a test", final=True)
    async with trio.open_nursery() as nursery:
        fake: Any = source
        built = FetchParts(source, staging, metrics, chunk_bytes=CHUNK, coalesce_bytes=coalesce_bytes)
        sent_away = SentAway()
        namespace = await open_namespace(
            fake,
            metrics,
            nursery,
            ttl_s=ttl_s,
            strict=False,
            journal=journal,
            inherited=inherited.nodes,
            gone=(built.learners.plans.forget, sent_away.forget),
        )
        fake_plane: Any = plane or FakePlane(runs=False)
        cache: Any = staging
        nobody: Any = passthrough
        await open_again(
            inherited, journal, namespace, handles, cache, nobody, fake_plane, 0, 0, trio.to_thread.run_sync
        )
        recorder = Recorder()
        fetch = built.fetching(namespace, Pushes() if push else None, lambda: recorder.active, nursery)
        small_files = built.small_files(namespace, fetch)
        hinting = built.hinting(namespace, fetch, io_mode, small_files)
        hints, learners, queue = hinting.follower, built.learners, built.queue
        siblings = SiblingWatch(
            Siblings(CHUNK, budget_bytes=8 * CHUNK), nursery, namespace.listings.whole, queue.siblings_nowait
        )
        # Nothing is fetched without Python here; see tests/fuse/test_small_pipeline.py.
        pipeline: Any = SimpleNamespace(
            delegate_soon=lambda _directory: None, opened=lambda _node, _thread, _at_ns: False
        )
        ahead = FetchesAhead(
            fetch.resolver,
            fetch.owners,
            fetch.misses,
            SiblingFetches(fetch.resolver, small_files, siblings, cache),
            staging,  # type: ignore[arg-type]  # a fake
            source,  # type: ignore[arg-type]  # a fake
            fetch.fetcher.turns,
            metrics,
        )
        faults = PageFaults(fetch.pusher, fetch.history)
        readahead = ReadaheadWindows(
            fetch.resolver,
            fetch.owners,
            staging,  # type: ignore[arg-type]  # a fake
            fetch.history,
            fetch.plans,
            queue,
            buffer_bytes=built.buffer_bytes,
            pushes=push,
        )
        everybody: Any = SimpleNamespace(all_may_open=lambda _node: True)
        nothing_told: Any = None
        changed = ChangedNames(ExposedObjects(nothing_told, None), nothing_told)
        modes = OpenModes(namespace, cache, io_mode, nobody, sent_away, queue, metrics, changed)
        observers = OpenObservers(
            recorder,
            fetch.plans,
            siblings,
            source,  # type: ignore[arg-type]  # a fake
            pipeline,
            SimpleNamespace(read=lambda _node_id: None),  # type: ignore[arg-type]  # nobody has overlays here
            lambda _thread_id: False,
        )
        opened_files = OpenedFiles(namespace, handles, cache, modes, observers, queue, fake_plane)
        delegations = Delegations(
            fake_plane,
            namespace,
            everybody,
            handles,
            opened_files,
            cache,
            is_heard=lambda: recorder.active or fetch.plans.any_followed,
            slot_opened=pipeline.opened,
        )
        read_path = ReadPath(
            fetch.resolver, readahead, faults, fetch.plans, recorder, metrics, delegations, chunk_bytes=CHUNK
        )
        opening = Opening(
            namespace,
            handles,
            cache,
            modes,
            SmallOpens(fetch.resolver, fetch.pusher, io_mode, queue),
            opened_files,
            delegations,
        )
        prefetch = Prefetch(queue, ahead, hints, metrics, workers=workers)
        nursery.start_soon(prefetch.run)
        nursery.start_soon(hints.run)
        parts = Parts(
            source,
            staging,
            namespace,
            handles,
            read_path,
            opening,
            queue,
            metrics,
            fetch.buffers,
            passthrough,
            learners,
            hints,
            fetch.plans,
            hinting.warmer,
            faults,
            pushed,
            fetch.pusher,
            delegations,
            recorder,
            built,
        )
        yield parts
        nursery.cancel_scope.cancel()


def with_file(size: int, path: bytes = b"f") -> FakeSource:
    source = FakeSource()
    source.file(path, 11, size)
    return source


@asynccontextmanager
async def read_once(plane: FakePlane, *, push: bool = False) -> AsyncIterator[tuple[Parts, FileHandle]]:
    """A daemon of which a large file is open that is complete, durable and sound, and was read once since."""
    source = FakeSource()
    source.file(b"large", 21, 2 * CHUNK)
    async with daemon(source, plane=plane, push=push) as parts:
        handle = parts.handles.file(await parts.open(b"large"))
        file = handle.file
        for index in range(2):
            parts.staging.chunks[file.version, index] = source.content(b"large", file.chunk(index))
            file.present.add(index)
            file.committed.add(index)
        file.object_id, file.stamp, file.sound = 1, Stamp(7, 8), True
        assert parts.read_path.read_nowait(handle, 0, 10) is not None
        yield parts, handle
