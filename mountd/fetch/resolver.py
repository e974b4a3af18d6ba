"""The resolver: the one place that knows where bytes can come from, and in which order they are asked for there.

    staged, in memory   on the cache disk, its pages in the page cache
    held                in memory, not on the disk yet; blocks that bypass reads brought
    staged, on disk     in a thread
    owner node          a part of a chunk that another node of the job stages
    source              as the miss policy says: a bypass read, the whole chunk, or wait for one that comes by itself

`peek` looks only where nothing has to be waited for, `get` goes on until it has the bytes, `ensure` has them here
before anybody asks. (Above it is the kernel, which answers most reads without asking.) The cache and other nodes can
only make it faster: a fault there is a counter and the next place. Errors of the source are raised. Never looks at the
arguments of a READ: an extent lies in one chunk and ends with the file.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, NamedTuple

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.errors import HfsError, StagingError, ungrouped
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.held import ChunkMemory
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.misses import Misses
from hfs.mountd.fetch.prefetch import PrefetchQueue
from hfs.mountd.namespace import Namespace, Node, tried
from hfs.mountd.source import Source
from hfs.policies.cache.holes import is_sparse, may_have_holes, pieces_of, seek
from hfs.policies.geometry import Extent, chunk_range, split
from hfs.policies.iomode import SMALL_BYTES
from hfs.policies.prefetch.miss_policy import Decision, Fetch, bypass_extent
from hfs.policies.prefetch.readahead import Kind

_WARM_STREAMS = 4
"""Chunks of one file fetched at a time by a warm: shared file systems limit a stream to a fraction of the whole."""


_MAX_KEPT = 1 << 17
"""Extents of all files together, some 15 MB."""

_LIMIT_S = 2.0
"""How long a reader waits for what it can do without."""

Data = Sequence[Extent]


class SparseFiles:
    """Files with holes: where their data lies, for lseek(2) and for what they take of the cache that keeps large ones.

    The source is asked, since a count of blocks says too little: a file system that compresses has few, and one over
    FUSE may have none. Where it does not say, all is data: that is never wrong.

    Event loop only.
    """

    def __init__(self, source: Source, namespace: Namespace, nursery: trio.Nursery) -> None:
        self._source = source
        self._silence = namespace.silence
        self._flights: SingleFlight[Version, Data] = SingleFlight(nursery)
        self._kept: OrderedDict[Version, Data] = OrderedDict()
        """Of those that cannot have been changed unseen since."""
        self._kept_extents = 0

    async def room_bytes(
        self, file: StagedFile, place: tuple[bytes, bytes], attributes: Attributes, indexes: Collection[int]
    ) -> int:
        """What these chunks, which are not staged, would take. `place`: its directory and its name."""
        raw_bytes = sum(map(file.raw_room_bytes, indexes))
        if not indexes or not is_sparse(file.size, attributes.blocks, file.chunk_bytes):
            return raw_bytes
        wanted = frozenset(indexes)
        data = pieces_of(await self._data(file.version, lambda: self._source.files.data(*place, file.version)))
        pieces = (piece for extent in data for piece in split(extent, file.chunk_bytes))
        return min(raw_bytes, sum(piece.end - piece.start for piece in pieces if piece.index in wanted))

    async def empty_chunks(self, node: Node, file: StagedFile, indexes: Sequence[int]) -> list[int]:
        """Those of these chunks that certainly are zeros alone."""
        if not is_sparse(file.size, node.attributes.blocks, file.chunk_bytes):
            return []
        data = await self._data(file.version, lambda: self._ask_of(node, file.version))
        if file.version not in self._kept:
            return []
        has_data: set[int] = set()
        for extent in data:
            has_data.update(chunk_range(extent, file.chunk_bytes))
        return [index for index in indexes if index not in has_data]

    async def seek(self, node: Node, version: Version, offset: int, *, hole: bool) -> int | None:
        """What lseek(2) of this version of `node` gives, as `policies.cache.holes.seek`, in two seconds at most."""
        found: Data = [Extent(0, version.size)]
        if may_have_holes(version.size, node.attributes.blocks) and not self._silence.is_on():
            with trio.move_on_after(_LIMIT_S):
                found = await self._data(version, lambda: self._ask_of(node, version))
        return seek(found, version.size, offset, hole=hole)

    async def _ask_of(self, node: Node, version: Version) -> tuple[Data, bool]:
        return await self._source.files.data(node.directory, node.name, version=version)

    async def _data(self, version: Version, ask: Callable[[], Awaitable[tuple[Data, bool]]]) -> Data:
        kept = self._kept.get(version)
        if kept is not None:
            self._kept.move_to_end(version)
            return kept
        try:
            return await self._flights.run(version, lambda: self._ask(version, ask))
        except HfsError:
            return [Extent(0, version.size)]  # whoever fetches it is told

    async def _ask(self, version: Version, ask: Callable[[], Awaitable[tuple[Data, bool]]]) -> Data:
        data, is_over = await ask()
        if is_over:
            self._kept[version] = data
            self._kept_extents += 1 + len(data)
            while self._kept_extents > _MAX_KEPT:
                self._kept_extents -= 1 + len(self._kept.popitem(last=False)[1])
        return data


class Unsized:
    """Files that say that they have no bytes, and may have some: procfs and its like, documents made when read.

    Whether one has is tried once for each node, before its first open is answered. One that has is read from the source
    each time, as it is just then; nothing of it is kept. All raise SourceError and VersionChanged.
    """

    def __init__(self, source: Source, fetcher: Fetcher) -> None:
        self._files = source.files
        self._fetcher = fetcher

    async def gives_bytes(self, node: Node) -> bool:
        """Whether a file gives bytes though it says that it has none."""
        version = node.version
        if node.gives_bytes is None and version is not None:
            tried(node, await self._files.gives_bytes(node.directory, node.name, version))
        return bool(node.gives_bytes)

    async def read(self, node: Node, offset: int, size: int) -> bytes:
        """What such a file gives there just now; fewer bytes only at its end."""
        assert node.version is not None
        with self._fetcher.reader_waits():
            return await self._files.read_unsized(node.directory, node.name, node.version, offset, size)


class Resolved(NamedTuple):
    """Bytes, and where they come from: the cache disk, memory, a bypass read, or their chunk from the source."""

    tier: Literal["staged", "flight", "bypass", "source"]
    data: bytes | bytearray | memoryview


class Ensured(enum.Enum):
    """What `ensure` has done."""

    HERE = enum.auto()
    """Nothing: it is here, or on its way."""
    FETCHED = enum.auto()
    AT_OWNER = enum.auto()
    """The node that owns it has staged it."""
    REFUSED = enum.auto()
    """Nobody stages it: no room, or the cache disk is too slow, or the owner could not."""


class Resolver:
    """Event loop only."""

    def __init__(
        self,
        cache: Cache,
        held: ChunkMemory,
        fetcher: Fetcher,
        owners: Owners,
        misses: Misses,
        queue: PrefetchQueue,
        unsized: Unsized,
    ) -> None:
        self._cache = cache
        self._held = held
        self._fetcher = fetcher
        self._owners = owners
        self._misses = misses
        self._queue = queue
        self.unsized = unsized
        # For answers that are given before anything else happens.
        self._buffer = memoryview(bytearray(SMALL_BYTES))

    # -- for a reader -------------------------------------------------------------------------------------------------

    def peek(self, file: StagedFile, extent: Extent) -> Resolved | None:
        """The bytes of `extent` if they are in memory, good until the next call; else None. Not more than 1 MiB."""
        index = extent.start // file.chunk_bytes
        if extent.size > len(self._buffer):
            return None
        if (extent.end - 1) // file.chunk_bytes != index and not file.complete:
            return None
        if index in file.present:
            data = self._buffer[: extent.size]
            return Resolved("staged", data) if self._cache.reader.read_into_nowait(file, extent, data) else None
        return self._in_memory(file, index, extent)

    async def get(
        self, node: Node, file: StagedFile, extent: Extent, kind: Kind | None = None, *, patient: bool = True
    ) -> Resolved:
        """The bytes of `extent`, for a reader. `kind`: how the file is being read, as far as that is known.

        `patient`: it may be told to wait until the fill gets to its chunk. Raises SourceError, VersionChanged.
        """
        index = extent.start // file.chunk_bytes
        found = await self.get_here(file, extent)
        if found is not None:
            return found
        coming = self._fetcher.is_coming(file.version, index)
        wanted = bypass_extent(extent, file.size)
        peers_asked = not coming and self._is_part_of_owner(node, file, extent, kind)
        if peers_asked:
            part = await self._fetcher.from_owner(node, file, wanted)
            if part is not None:
                return Resolved("bypass", part[extent.start - wanted.start : extent.end - wanted.start])
        is_kept, sequential = self._owners.is_kept(node.path, index), kind is Kind.SEQUENTIAL
        decision = self._misses.decide(
            node, file, extent, sequential=sequential, coming=coming, patient=patient, is_kept=is_kept
        )
        if decision.fetch is Fetch.BYPASS:
            # Even if its chunk is on the way: that may be a fill, whose chunk takes a hundred times as long.
            part = await self._fetcher.bypass(node, file, wanted, peers_asked=peers_asked)
            self._misses.paid(file, wanted.size)
            self._misses.follow(node, file, index, decision.follow)  # behind it: not to share the bandwidth
            return Resolved("bypass", part[extent.start - wanted.start : extent.end - wanted.start])
        if decision.fetch is Fetch.CHUNK:
            return await self._with_its_chunk(node, file, extent, decision, kind, coming=coming)
        since_s = trio.current_time()
        await self._fetcher.wait_scheduled(
            file.version, index, lambda: self._misses.is_still_coming(node, file, index, decision.fetch, since_s)
        )
        return await self.get(node, file, extent, kind, patient=decision.fetch is Fetch.WAIT_FOR_SWEEP)

    async def get_here(self, file: StagedFile, extent: Extent) -> Resolved | None:
        """The bytes of `extent` if this node has them, on disk or in memory; else None."""
        index = extent.start // file.chunk_bytes
        if index in file.present:
            data = self._cache.reader.read_nowait(file, extent) if extent.size <= SMALL_BYTES else None
            try:
                if data is None and extent == file.chunk(index):
                    data = await self._cache.reader.read_chunk(file, index)
                elif data is None:
                    data = await self._cache.reader.read(file, extent)
                return Resolved("staged", data)
            except StagingError:
                pass  # counted there; the next has it
        return self._in_memory(file, index, extent)

    async def get_for_peer(self, node: Node, file: StagedFile, index: int) -> memoryview:
        """Chunk `index`, which this node owns: fetched once for here and there. Raises HfsError."""
        return await self._fetcher.chunk(node, file, index, push=Push.NEVER, in_turn=True)

    def _in_memory(self, file: StagedFile, index: int, extent: Extent) -> Resolved | None:
        held = self._held.chunk(file.version, index)
        if held is not None:
            begin = index * file.chunk_bytes
            return Resolved("flight", held[extent.start - begin : extent.end - begin])
        block = self._held.blocks.get(file.version, extent)
        return Resolved("flight", block) if block is not None else None

    def _is_part_of_owner(self, node: Node, file: StagedFile, extent: Extent, kind: Kind | None) -> bool:
        """Whether a read is a small part of a large file, as read at random: worth its own question to its owner."""
        if kind is Kind.SEQUENTIAL or file.size <= SMALL_BYTES or 2 * extent.size >= file.chunk_bytes:
            return False
        return not self._owners.caches_locally(node.path, extent.start // file.chunk_bytes)

    async def _with_its_chunk(
        self, node: Node, file: StagedFile, extent: Extent, decision: Decision, kind: Kind | None, *, coming: bool
    ) -> Resolved:
        index = extent.start // file.chunk_bytes
        random = kind is not None and kind is not Kind.SEQUENTIAL and file.size > file.chunk_bytes
        self._misses.follow(node, file, index, decision.follow)
        chunk = await self._fetcher.chunk(node, file, index, push=Push.WHOLE if random else Push.NOTHING)
        self._queue.demand_served_nowait()
        if not coming:
            self._misses.paid(file, len(chunk))
        begin = index * file.chunk_bytes
        return Resolved("flight" if coming else "source", chunk[extent.start - begin : extent.end - begin])

    # -- before anybody asks ------------------------------------------------------------------------------------------

    def is_here(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` is staged, in memory or on its way: a READ of it need not ask the source."""
        return self.has(file, index, Goal.HERE)

    def has(self, file: StagedFile, index: int, goal: Goal) -> bool:
        """Whether `ensure` of chunk `index` to this end has nothing to do."""
        if index in file.present or self._fetcher.is_coming(file.version, index):
            return True
        return goal is not Goal.STAGED and self._held.chunk(file.version, index) is not None

    def is_held(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` is in memory, and not on the disk yet."""
        return self._held.chunk(file.version, index) is not None

    def is_coming(self, file: StagedFile, index: int) -> bool:
        """Chunk `index` is being fetched, or waits for the disk."""
        return self._fetcher.is_coming(file.version, index)

    async def ensure_at_owner(self, node: Node, file: StagedFile, index: int) -> bool:
        """Have chunk `index` staged by another node if that owns it. False: this node is to stage it, or nobody can."""
        if self._owners.caches_locally(node.path, index):
            return False
        return await self._owners.have_staged(node, file, index)

    async def ensure(
        self,
        node: Node,
        file: StagedFile,
        index: int,
        goal: Goal,
        *,
        push: Push = Push.NOTHING,
        soon: bool = False,
        began: Callable[[], None] | None = None,
    ) -> Ensured:
        """Have chunk `index` where `goal` says, though nobody waits for it.

        `soon`: its reader comes in a moment, so that it is fetched here though another node owns it. `began` is called
        when nothing but the source, or another node, is waited for any more. Raises SourceError, VersionChanged.
        """
        if self.has(file, index, goal):
            return Ensured.HERE
        elsewhere = not self._owners.caches_locally(node.path, index)
        if elsewhere and not self._owners.is_kept(node.path, index):
            if goal is Goal.STAGED:
                return Ensured.REFUSED
        elif elsewhere and goal is not Goal.IN_MEMORY and not soon:
            if began is not None:
                began()
            return Ensured.AT_OWNER if await self._owners.have_staged(node, file, index) else Ensured.REFUSED
        if goal is Goal.STAGED and not self._cache.admission.admits_nowait(file, file.chunk(index).size):
            return Ensured.REFUSED
        fetched = await self._fetcher.ahead(node, file, index, push=push, goal=goal, began=began, soon=soon)
        if goal is Goal.STAGED and not self.has(file, index, goal):
            return Ensured.REFUSED
        return Ensured.FETCHED if fetched else Ensured.HERE

    async def ensure_file(self, node: Node, file: StagedFile) -> None:
        """Have every missing chunk of a file staged, some at a time.

        Raises SourceError, VersionChanged; StagingError when a chunk found no room or no place in the queue of the
        cache disk.
        """
        missing = file.present.missing()

        async def stream() -> None:
            for index in missing:
                # Who has it open reads it through the page cache, and soon.
                push = Push.WHOLE if node.opens else Push.NOTHING
                if await self.ensure(node, file, index, Goal.STAGED, push=push) is Ensured.REFUSED:
                    if not self._owners.caches_locally(node.path, index):
                        raise StagingError("another node, which owns it if one has room, could not stage all of it")
                    raise self._cache.admission.refusal(file.chunk(index).size)

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for _ in range(min(_WARM_STREAMS, file.present.count)):
                    nursery.start_soon(stream)
