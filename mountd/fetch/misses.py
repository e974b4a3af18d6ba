"""Misses: what a READ whose bytes are not here deserves, and what follows it.

Keeps one miss policy (policies/prefetch/miss_policy.py) for each large file, all its handles together: many data sets
open their one large file anew for each sample. Tells the policy what it must know of others: what epoch plans say of
the chunk, how soon a fill brings it, whether it was guessed. Never reads.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.prefetch import PrefetchQueue
from hfs.mountd.namespace import Node
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import PATIENCE_S, Decision, Fetch, Follow, MissPolicy, ScheduledChunk
from hfs.policies.schedule.successors import Successors, Trail

_MAX_FILES = 4096
"""Files whose random touches are remembered: a few hundred bytes each."""

_RANDOM_TOUCHES = 8
"""A file with this many bypass reads is read at random. (A sequential reader has one or two: its first reads, before it
was known for one.)"""

_CHUNK = Decision(Fetch.CHUNK, Follow.NOTHING)


_MAX_HISTORIES = 32
"""Files whose histories are remembered: half a megabyte each at most."""


class History:
    """What readers who say nothing have done in each of the files read last, and what is fetched ahead because of it.

    It is shown every READ of a large file that is neither sequential nor strided nor foreseen by a hint, and that is
    not all here. What a guess costs is bounded by policies/schedule/successors.py. Never reads, never waits.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._files: OrderedDict[Version, Successors] = OrderedDict()

    def read(
        self, file: StagedFile, trail: Trail, extent: Extent, *, here: bool, is_here: Callable[[int], bool]
    ) -> list[int]:
        """A READ of `extent` in one chunk, by the handle of `trail`. Chunks to fetch ahead now.

        `here`: it is answered without the source. `is_here`: whether a chunk is staged, in memory or on its way.
        """
        index = extent.start // file.chunk_bytes
        history = self._of(file)
        if here:
            history.hit(index, extent)
        if not history.enters(trail, index):
            return []
        ahead = history.worth_fetching(index, is_here)
        self._metrics.add("guessed_chunks", len(ahead))
        return ahead

    def paid(self, file: StagedFile, size: int) -> None:
        """A READ that missed has had `size` bytes read from the source."""
        self._of(file).paid(size)

    def is_ahead(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` was fetched, or is to be, because of a guess."""
        history = self._files.get(file.version)
        return history is not None and history.is_ahead(index)

    def _of(self, file: StagedFile) -> Successors:
        history = self._files.get(file.version)
        if history is None:
            history = self._files[file.version] = Successors(file.size, file.chunk_bytes)
            if len(self._files) > _MAX_HISTORIES:
                self._files.popitem(last=False)
        elif len(self._files) == _MAX_HISTORIES:
            self._files.move_to_end(file.version)
        return history


class EpochPlans(Protocol):
    """What the orders that learners told say of a chunk."""

    def missed(self, version: Version, index: int) -> None:
        """A chunk is not here; a plan may have thought it was."""

    def scheduled(self, version: Version, index: int) -> ScheduledChunk | None:
        """What the plans say of a chunk; None if none that is followed names it."""

    def comes(self, version: Version, index: int) -> bool:
        """Whether a chunk that is not here comes by itself, with many others in the order of the file."""


class Misses:
    """Event loop only."""

    def __init__(self, cache: Cache, plans: EpochPlans, history: History, queue: PrefetchQueue) -> None:
        self._cache = cache
        self._plans = plans
        self._history = history
        self._queue = queue
        self._policies: OrderedDict[Version, MissPolicy] = OrderedDict()

    def decide(
        self,
        node: Node,
        file: StagedFile,
        extent: Extent,
        *,
        sequential: bool,
        coming: bool,
        patient: bool,
        is_kept: bool,
    ) -> Decision:
        """What to do for `extent`, which lies in one chunk.

        `coming`: the chunk is on its way. `patient`: the reader may wait until the fill gets to its chunk. `is_kept`:
        a node of the job is to stage it.
        """
        index = extent.start // file.chunk_bytes
        if not coming:
            self._plans.missed(file.version, index)
        if file.size <= file.chunk_bytes:
            return _CHUNK
        if coming and self.is_guessed(file, index):
            return _CHUNK  # it was guessed: much of it will be read now
        return self._policy(file).missed(
            extent,
            sequential=sequential,
            missing_chunks=file.present.count - len(file.present),
            can_stage=is_kept and self._cache.admission.admits_nowait(file, file.chunk_bytes),
            scheduled=self._plans.scheduled(file.version, index),
            coming=coming,
            filled_in_s=self._queue.filled_in_s(node, index) if patient else math.inf,
        )

    def is_still_coming(self, node: Node, file: StagedFile, index: int, fetch: Fetch, since_s: float) -> bool:
        """Whether the chunk that a reader was told to wait for still comes by itself. `since_s`: when that was."""
        if fetch is Fetch.WAIT_FOR_SWEEP:
            return self._plans.comes(file.version, index)
        return trio.current_time() < since_s + PATIENCE_S and self._queue.filled_in_s(node, index) < math.inf

    def follow(self, node: Node, file: StagedFile, index: int, follow: Follow) -> None:
        """What is to be fetched behind the read of chunk `index`."""
        if follow is Follow.CHUNK:
            self._queue.window_nowait(node, file, [index])
        elif follow is not Follow.NOTHING:
            if follow is Follow.FILL_AROUND:
                around = (each for each in (index + 1, index - 1) if 0 <= each < file.present.count)
                self._queue.window_nowait(node, file, [each for each in around if each not in file.present])
            self._queue.fill_nowait(node, file)

    def paid(self, file: StagedFile, size: int) -> None:
        """A read that missed has had `size` bytes read from the source."""
        if file.size > file.chunk_bytes:
            self._history.paid(file, size)

    def is_guessed(self, file: StagedFile, index: int) -> bool:
        """Whether a chunk is fetched because of what readers did before, and its reads are to be seen."""
        return self._history.is_ahead(file, index)

    def is_random(self, file: StagedFile) -> bool:
        """Whether a file is read at random: then whole chunks go into the page cache when they come, and the small
        reads that follow never reach us."""
        policy = self._policies.get(file.version)
        return policy is not None and policy.touches >= _RANDOM_TOUCHES

    def _policy(self, file: StagedFile) -> MissPolicy:
        policy = self._policies.get(file.version)
        if policy is None:
            policy = self._policies[file.version] = MissPolicy(file.size, file.chunk_bytes)
            if len(self._policies) > _MAX_FILES:
                self._policies.popitem(last=False)
        return policy
