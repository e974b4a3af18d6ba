"""Reading small files, many with one call of the source, which opens and reads them and says what each of them is.

So none is stat'ed before; what is found is known to the namespace afterwards, as after a look-up, and lies in one
buffer until staging has written it. A file that did not come with its batch (gone, changed meanwhile, wanted by a
reader who fetches it) is left to be asked for by itself. Never tries again, never tells readers anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import trio

from hfs.mountd.base.errors import HfsError, SourceError
from hfs.mountd.cache import Cache
from hfs.mountd.core.buffers import Buffers
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.chunks.batches import Place, SmallFileBatch
from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.held import whole_pages
from hfs.mountd.fetch.chunks.page_pusher import PagePusher
from hfs.mountd.fetch.small_file_lookups import Become, Small, SmallFileLookups, path_of
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.source import SmallRead, Source

BATCH_FILES = 16
"""Files of one call of the source: what is the same for each call costs a tenth of the rest then, and a thread is taken
for 64 ms on a Lustre that needs 4 ms a file."""

_BATCH_BYTES = 2 << 20
"""The buffer of a batch: 16 threads with one each take half of what prefetch may have by default."""

Outcomes = dict[Place, Small | HfsError | None]
"""None: the data plane has it, or is fetching it."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What is to become of some files. `push`: into the page cache too, where the kernel knows them."""

    goal: Goal
    push: bool
    wanted: Callable[[Place], bool]
    """Asked of each just before it is read; what is not wanted any more counts as here."""


class BatchReader:
    """Event loop only."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        pusher: PagePusher,
        source: Source,
        buffers: Buffers,
        lookups: SmallFileLookups,
        metrics: Metrics,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._pusher = pusher
        self._source = source
        self._buffers = buffers
        self._lookups = lookups
        self._metrics = metrics
        self._bytes = max(whole_pages(lookups.limit_bytes), min(_BATCH_BYTES, buffers.chunk_bytes))
        buffers.reuse(self._bytes)
        self._refused_bytes: int | None = None
        """The size of a file that staging has not taken: until it would, nothing is read to be thrown away."""

    async def read(self, left: Sequence[Place], request: BatchRequest, outcomes: Outcomes) -> Sequence[Place]:
        """One call of the source for the first of `left`. Which of them are to be asked for by themselves.

        At least one of `left` has an outcome then, or is to be asked for, or was left to a reader who came in between.
        """
        async with self._fetcher.turns.turn():
            return await self._read_some(left, request, outcomes)

    async def _read_some(self, left: Sequence[Place], request: BatchRequest, outcomes: Outcomes) -> Sequence[Place]:
        if request.goal is not Goal.IN_MEMORY and self._refused_bytes is not None:
            if self._cache.admission.fits_nowait(self._refused_bytes):
                self._refused_bytes = None
            elif request.goal is Goal.HERE:
                request = replace(request, goal=Goal.IN_MEMORY)
            else:
                outcomes.update((place, self._cache.admission.refusal(self._refused_bytes)) for place in left)
                return ()
        if request.push:
            await self._pusher.wait_room(self._bytes)
        into = await self._buffers.take(self._bytes, urgent=False)
        # No checkpoint from here until all are registered.
        outcomes.update(dict.fromkeys(self._lookups.claim(left)))  # or it would be read twice
        self._drop_known([place for place in left if place not in outcomes], request, outcomes)
        left = [place for place in left if place not in outcomes]
        batches = self._fetcher.batches
        places = [place for place in left if place not in batches][:BATCH_FILES]
        if not places:
            return left  # others fetch them: wait for that
        batch = batches.take_off(places)
        try:
            return await self._read(batch, places, into, request, outcomes)
        except SourceError as error:
            error.__cause__ = error.__context__ = None
            error.with_traceback(None)  # its frames hold the buffer
            outcomes.update((place, error) for place in places if place not in outcomes)
            return ()
        finally:
            del into
            batches.land_all(batch)

    def _drop_known(self, left: Sequence[Place], request: BatchRequest, outcomes: Outcomes) -> None:
        """Memory may have been waited for: readers may have had some fetched meanwhile."""
        for place in left:
            if self._lookups.is_unknown(place):
                continue
            node, known = self._lookups.node(place), self._lookups.known(place, request.goal)
            if known is not None:
                outcomes[place] = known
            elif node is not None and not request.wanted(place):
                outcomes[place] = Small(node, Become.HERE)

    async def _read(
        self,
        batch: SmallFileBatch,
        places: Sequence[Place],
        into: memoryview,
        request: BatchRequest,
        outcomes: Outcomes,
    ) -> list[Place]:
        asked_s = trio.current_time()
        paths = [(directory.path, name) for directory, name in places]
        reads = await self._source.small_files.read_batch(
            paths, into, batch.progress, limit_bytes=self._lookups.limit_bytes
        )
        for place, read in zip(places, reads, strict=False):
            if read.data is not None and read.attributes is not None:
                version = read.attributes.version(self._source.source_id)
                if self._cache.files.get_nowait(version) is None:
                    await self._cache.files.get(version, path_of(place))
        # No checkpoint from here on.
        alone = self._taken_by_readers(batch, places, len(reads), request, outcomes)
        looked_up: list[tuple[Place, SmallRead]] = []
        """Somebody asks for the name just now, and it was not known: that answer is waited for, nothing read again."""
        for place, read in zip(places, reads, strict=False):
            if place not in batch:
                continue
            node = (
                self._namespace.lookups.found(*place, read.attributes, asked_s) if read.attributes is not None else None
            )
            if node is not None and not request.wanted(place) and not batch.is_wanted(place):
                self._fetcher.batches.land(batch, place)
                outcomes[place] = Small(node, Become.HERE)
                continue
            outcome = self._land(batch, place, read, node, request)
            if outcome is not None:
                outcomes[place] = outcome
            elif node is None and read.data is not None:
                looked_up.append((place, read))
            else:
                alone.append(place)
        for place, read in looked_up:
            outcome = await self._land_later(batch, place, read, request)
            if outcome is not None:
                outcomes[place] = outcome
            else:
                alone.append(place)
        return alone

    def _taken_by_readers(
        self, batch: SmallFileBatch, places: Sequence[Place], reads: int, request: BatchRequest, outcomes: Outcomes
    ) -> list[Place]:
        """Those that a reader wanted before the call came to them, of which `reads` came."""
        # A reader had hurried for it, and the thread has ended before it: that reader must not have to hurry again.
        alone = [place for place in places[reads:] if batch.is_wanted(place)]
        for place in [place for place in places if place not in batch]:
            # A reader was faster, and fetches it. Held for that reader it need not be any more.
            node = self._lookups.node(place)
            if request.goal is not Goal.STAGED and node is not None:
                outcomes[place] = Small(node, Become.HERE)
            else:
                alone.append(place)
        return alone

    async def _land_later(
        self, batch: SmallFileBatch, place: Place, read: SmallRead, request: BatchRequest
    ) -> Small | HfsError | None:
        """As `_land`, once it is known what the name is. Who wants the file meanwhile waits for the batch."""
        try:
            (dentry,) = await self._namespace.lookups.children(place[0], [place[1]])
            node = dentry.node
            if node is not None and node.version is not None and self._cache.files.get_nowait(node.version) is None:
                await self._cache.files.get(node.version, node.path)
        except HfsError:
            return None
        return self._land(batch, place, read, node, request)

    def _land(
        self, batch: SmallFileBatch, place: Place, read: SmallRead, node: Node | None, request: BatchRequest
    ) -> Small | HfsError | None:
        """One file has come. None: it is to be asked for by itself. No checkpoint."""
        batches, wanted = self._fetcher.batches, batch.is_wanted(place)
        if place not in batch or node is None or node.version is None or read.attributes is None:
            return None
        version = read.attributes.version(self._source.source_id)
        if node.version != version:
            return None  # something newer is known meanwhile
        if read.data is None:
            batches.land(batch, place)
            return Small(node, Become.LARGE)
        file = self._cache.files.get_nowait(version, node.path)
        if file is None:
            return None
        if file.present.full:
            self._lookups.found_staged()  # it was read for nothing
        if file.present.full or file.present.count > 1 or self._fetcher.is_coming(version, 0):
            batches.land(batch, place, version, read.data)
            return Small(node, Become.LARGE if file.present.count > 1 and not file.present.full else Become.HERE)
        staged = self._fetcher.land_nowait(node, file, read.data, request.goal, wanted=wanted, push=request.push)
        batches.land(batch, place, version, read.data)
        if request.goal is not Goal.IN_MEMORY and not staged:
            self._refused_bytes = len(read.data)
            if request.goal is Goal.STAGED:
                return self._cache.admission.refusal(len(read.data))
        self._metrics.add("prefetched_chunks")
        return Small(node, Become.FETCHED)
