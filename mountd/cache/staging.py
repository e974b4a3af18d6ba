"""Staging: local copies of source files, byte for byte unless they are encoded, sparse until complete.

`open_staging` owns a cache directory and gives a `Staging`: the read path asks it for files, reads from it and hands it
what it fetched; `hfs cache` lists, evicts and checks through the same class, with or without a mount. The parts:

    files      version -> StagedFile            objects.room      account and health
    writing    queue, workers, O_DIRECT         evictor           what must go
    committer  group sync, then the index       reclaimer         evict, repair, retire
    reading    reads of staged bytes            cleanup           after a crash
    verifying  is this file right?              checking, scrub   all of it, read again

Below them lie `index`, the database, and `objects`: their numbers (`ids`), system calls (`disk`), reads in threads
(`objects`), encoding, and who has changed one (`stamps`).

A cache may fail, a read may not: nothing here raises for a broken disk or index but StagingError from the reading
methods, which means "go to the source". What happens is counted (staging_errors), told in `statistics`, and warned
about at most once a minute. Event loop only. Methods named `_nowait` wait for no disk: `read_nowait` asks the page
cache, `file_nowait` the index, which lies in memory or is one read of a fast disk away. It never reads the source and
knows nothing of chunks being fetched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

import trio
import xxhash

from mountd.base.errors import StagingError
from mountd.base.version import Version
from mountd.cache.checking import CheckedFile, check_rows
from mountd.cache.cleanup import clean_up, drop_passing
from mountd.cache.committer import Committer
from mountd.cache.ending import end_well
from mountd.cache.evictor import Evictor
from mountd.cache.files import StagedFileTable
from mountd.cache.index import IndexFailed, StagedRow
from mountd.cache.objects import UNDECIDED, CacheContext, Descriptors, Encoder, ObjectIdAllocator, StagedFile, pages_of
from mountd.cache.reading import StagedReading, foreseen
from mountd.cache.reclaimer import Reclaimer
from mountd.cache.scrub import Scrub
from mountd.cache.statistics import StagingStatistics, statistics_of
from mountd.cache.verifying import Verifying
from mountd.cache.writing import WriteJob, Writing
from mountd.core.config import VerifyWanted
from policies.cache.admission import blocks_bytes, object_overhead_bytes
from policies.cache.encoding import EncodingChoice
from policies.cache.eviction import Policy
from policies.geometry import Extent
from policies.prefetch.path_filter import PathFilter

__all__ = ["CheckedFile", "StagedFile", "StagedRow", "Staging", "StagingStatistics"]

Value = TypeVar("Value")

_MAX_UNCOMMITTED_BYTES = 1 << 30
"""Written but not durable. More is not taken on: a disk whose sync takes so long should not be given more."""

_USE_EVERY_S = {"lru": 60, "fill-once": 3600}
"""How exactly the index knows last uses. fill-once only asks whether a file was used today; each note costs a write."""


class Staging:
    """See the file's story. `mountd.cache.opening.open_staging` makes it and runs its tasks."""

    def __init__(
        self,
        context: CacheContext,
        chunk_bytes: int,
        policy: Policy,
        in_flight_bytes: int,
        verify: VerifyWanted,
        scrub_bytes_s: int,
    ) -> None:
        self.chunk_bytes = chunk_bytes
        """Of files that are staged from now on."""
        self._context = context
        self.names = ObjectIdAllocator(context)
        believes = verify == "changed"
        self.files = StagedFileTable(
            context, chunk_bytes, _USE_EVERY_S[policy], self._row_superseded, believes=believes
        )
        self._descriptors = Descriptors(context.disk.close_fd, context.disk.open_files.shares.staged)
        self.reclaimer = Reclaimer(context, self.names, self.files, self._descriptors)
        self.committer = Committer(context, self.names, self)
        self.writing = Writing(context, in_flight_bytes, self._written)
        self.evictor = Evictor(context, self.files, self.reclaimer, self.committer, policy)
        self._reading = StagedReading(context, self._descriptors, self.reclaimer)
        self.verifying = Verifying(self._reading)
        self.verifying_ahead = self._reading.verifying_ahead
        self.scrub = Scrub(context, self.files, self.reclaimer, scrub_bytes_s)
        self._ready = trio.Event()
        self._refused = False
        self._closing = False
        self._put_paths = PathFilter()
        self.encoding = EncodingChoice(False, "not asked for")
        """Whether what is staged from now on may be encoded, and why; see `encode`."""

    def let_go(self) -> None:
        """Close descriptors that are only kept: the system has none to give."""
        self._descriptors.let_go()

    # -- find --------------------------------------------------------------------------------------------------------

    @property
    def may_have_more(self) -> bool:
        """Files that are in memory nowhere may be staged: by an earlier run, or long ago."""
        return not self.files.all_in_memory

    def was_put(self, path: bytes) -> bool:
        """Whether the file of one chunk at this path may have been staged by this run. Seldom yes of one that was not.

        For whoever knows a path and not what it stands for: names are forgotten a minute after they were looked up.
        """
        return xxhash.xxh3_64_intdigest(path) in self._put_paths

    def file_nowait(self, version: Version, path: bytes = b"") -> StagedFile | None:
        """The staged file if that needs no long look at the index, else None: use `file`. `path`: last known."""
        return self.files.get_nowait(version, path)

    async def file(self, version: Version, path: bytes = b"") -> StagedFile:
        """The staged file of a version; one with nothing present if nothing is staged. Never fails."""
        return await self.files.get(version, path)

    async def prefetch_lookups(self, versions: Iterable[Version]) -> None:
        """Have these files in memory, so that `file_nowait` can tell. At most some ten thousand at a time are kept."""
        await self.files.load(versions)

    def pin(self, file: StagedFile) -> None:
        """The file is open: it is not evicted until `unpin`."""
        file.pins += 1
        file.last_use_ns = int(self._context.clock() * 1e9)

    def unpin(self, file: StagedFile) -> None:
        """Undo one `pin`."""
        file.pins -= 1
        self.files.note_use(file)
        self.reclaimer.settled(file)

    # -- read --------------------------------------------------------------------------------------------------------

    def read_nowait(self, file: StagedFile, extent: Extent) -> bytearray | None:
        """The bytes of `extent` if its chunks are present and the page cache has all of it, else None."""
        return self._reading.read_nowait(file, extent)

    def read_into_nowait(self, file: StagedFile, extent: Extent, buffer: memoryview) -> bool:
        """As `read_nowait`, into the first bytes of `buffer`, which is large enough. False if that is not possible."""
        return self._reading.read_into_nowait(file, extent, buffer)

    async def read(self, file: StagedFile, extent: Extent) -> bytearray:
        """The bytes of `extent`, which lies in present chunks; all of them. Raises StagingError."""
        return await foreseen(self._reading.read(file, extent))

    async def read_chunk(self, file: StagedFile, index: int) -> bytearray:
        """A whole present chunk, its checksum verified. Raises StagingError; a damaged chunk is forgotten."""
        return await foreseen(self._reading.read_chunk(file, index))

    async def will_need(self, extents: Sequence[tuple[StagedFile, Extent]]) -> None:
        """Have staged bytes read into the page cache, for who reads the staged files by himself. Never fails."""
        await self._reading.will_need(extents)

    async def lend(self, file: StagedFile, use: Callable[[int], Value]) -> Value:
        """`use(descriptor)`, which does not wait, of the complete, durable and sound object of `file`, which is pinned.

        The descriptor is closed afterwards. Raises StagingError if there is no such object, and what `use` raises.
        """
        return await self._reading.lend(file, use)

    def lend_nowait(self, file: StagedFile, use: Callable[[int], Value]) -> Value | None:
        """As `lend`, if the object can be opened without waiting for the disk; else None."""
        return self._reading.lend_nowait(file, use)

    def is_in_memory_nowait(self, file: StagedFile, offset: int) -> bool:
        """Whether the page cache has the byte at `offset`, which is staged as it is. Says nothing about that byte."""
        return self._reading.is_in_memory_nowait(file, offset)

    @property
    def on_overlay(self) -> bool:
        """The cache directory lies on an overlay file system."""
        return self._context.disk.on_overlay()

    async def lend_empty(self, use: Callable[[int], Value]) -> Value:
        """`use(descriptor)`, in a thread, of an empty file on the cache's disk: to see whether it would work.

        Raises StagingError if there can be none, and what `use` raises.
        """
        return await self._reading.lend_empty(use)

    @property
    def ready(self) -> bool:
        """What an earlier run left is gone. Before that nothing is put; reads and look-ups do not wait for it."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Until things may be put: at once after a clean end, a moment after a crash."""
        await self._ready.wait()

    def shortfall_bytes(self, size_bytes: int) -> int:
        """How much must go before so many bytes more could be staged; 0 if they fit now."""
        return self._context.room.shortfall_bytes(size_bytes)

    def limit_bytes(self) -> int:
        """What may be used in all, as things stand."""
        return self._context.room.limit_bytes()

    # -- put ---------------------------------------------------------------------------------------------------------

    def encode(self, choice: EncodingChoice, encoder: Encoder | None) -> None:
        """Encode what is staged from now on, if `choice` says so. What is encoded already can be read in any case."""
        self.encoding = choice
        self.writing.encoder = encoder if choice.on else None

    def admits_nowait(self, file: StagedFile, size_bytes: int) -> bool:
        """Whether a chunk of so many bytes of this file would be staged now, as far as disk and room go."""
        return self._fits(blocks_bytes(size_bytes) + (file.overhead_bytes() if file.object_id is None else 0))

    def fits_nowait(self, size_bytes: int) -> bool:
        """The same of a file of one chunk that is not known yet."""
        return self._fits(blocks_bytes(size_bytes) + object_overhead_bytes(1))

    def why_not(self, size_bytes: int) -> str | None:
        """Why so many bytes of one file would not be staged now, for people; None: they would, if the disk keeps up."""
        fits = self._fits(blocks_bytes(size_bytes) + object_overhead_bytes(1))
        return None if fits else self._context.health.why_resting() or self.what_limits()

    def refusal(self, size_bytes: int) -> StagingError:
        """What to raise for so many bytes that were not taken."""
        return StagingError(self.why_not(size_bytes) or "the cache disk does not keep up")

    def what_limits(self) -> str:
        """Which limit of the cache is the nearest, for people."""
        return self._context.room.what_limits()

    def _fits(self, needed_bytes: int) -> bool:
        if not self.ready or self._context.health.resting:
            return False
        if self._context.room.fits(needed_bytes):
            return True
        self._refused = True
        self.evictor.refused(needed_bytes)
        return False

    def put_nowait(
        self, file: StagedFile, index: int, data: memoryview, on_done: Callable[[], object] | None = None
    ) -> bool:
        """Stage a whole chunk. True: it is present, or will be unless the disk fails. False: dropped, and counted.

        Keeps `data` until it is written. `on_done` is called later, once the chunk can be read from here or was given
        up; not at all if nothing was queued. Raises ValueError if `data` is not as long as the chunk.
        """
        size = file.chunk_size(index)
        if len(data) != size:
            raise ValueError(f"chunk {index} has {size} bytes, not {len(data)}")
        if index in file.present:
            return True
        if file.is_barred(index) or not self._take_on(file, index, size):
            self._context.metrics.add("staging_dropped")
            return False
        # No checkpoint from the tests above to the queue: what is accounted is what was found free.
        charge_bytes = self._charge_bytes(file, index)
        if file.object_id is None:
            file.object_id = self.names.take_nowait()
        assert file.object_id is not None
        # Never while the kernel reads the object by itself, nor over what may still lie there.
        encodable = not file.passed and (file.stray is None or index not in file.stray)
        if file.stray is not None:
            file.stray.pop(index, None)
        file.set_stored(index, 0)
        self._context.room.charge(charge_bytes)
        file.room_bytes += charge_bytes
        file.unsettled += 1
        file.bar(index)
        job = WriteJob(file, index, data, self.committer.number(), charge_bytes, on_done, encodable=encodable)
        self.writing.put_nowait(job)
        self._refused = False
        self.evictor.charged()
        if file.present.count == 1:
            self._put_paths.add(xxhash.xxh3_64_intdigest(file.path))
        return True

    def _charge_bytes(self, file: StagedFile, index: int) -> int:
        charged_bytes = file.stray.get(index, 0) if file.stray is not None else 0
        overhead_bytes = file.overhead_bytes() if file.object_id is None else 0
        return file.raw_room_bytes(index) - charged_bytes + overhead_bytes

    def _take_on(self, file: StagedFile, index: int, size: int) -> bool:
        if self._closing or not self.ready or self._context.health.resting:
            return False
        charge_bytes = self._charge_bytes(file, index)
        if not self._context.room.fits(charge_bytes):
            self._refused = True
            self.evictor.refused(charge_bytes)
            return False
        if not self.writing.has_place(size) or self.committer.uncommitted_bytes > _MAX_UNCOMMITTED_BYTES:
            return False
        return file.object_id is not None or self.names.ready_nowait()

    def _written(self, job: WriteJob) -> None:
        """A chunk left the queue: it is on the disk, or it failed."""
        self._account(job)
        if job.on_done is not None:
            job.on_done()

    def _account(self, job: WriteJob) -> None:
        file, index = job.file, job.index
        self._context.room.written(job.charged_bytes)
        file.unbar(index)
        if job.error is None:
            file.created = True
            file.present.add(index)
            file.set_checksum(index, job.checksum)
            if file.stamp is not None:
                file.verify(index)
            self._note_encoding(job)
            self._context.metrics.add("staging_put_chunks")
            self._context.metrics.add("staging_put_bytes", job.size_bytes)
            self.committer.written_nowait(job)
            return
        if isinstance(job.error, FileNotFoundError) and not job.create:
            self.reclaimer.lost(file)  # somebody else removed it
            self._context.health.broken(f"a staged file is gone from the cache: object {job.object_id}")
        else:
            self._context.health.failed(job.error, "staging a chunk")
        self._context.metrics.add("staging_dropped")
        if job.stray:
            file.stray = {**(file.stray or {}), index: file.raw_room_bytes(index)}
        else:
            self._give_back(file, file.raw_room_bytes(index))
        file.unsettled -= 1
        self.committer.dropped(job.number)
        self.settled(file)

    def _note_encoding(self, job: WriteJob) -> None:
        """What was charged for the chunk as it is and was not needed goes back."""
        file = job.file
        if file.element_bytes == UNDECIDED:
            file.element_bytes = job.element_bytes
        if job.stored_bytes:
            file.set_stored(job.index, job.stored_bytes)
            self._give_back(file, file.raw_room_bytes(job.index) - file.chunk_room_bytes(job.index))
            self._context.metrics.add("staging_encoded_chunks")

    def _give_back(self, file: StagedFile, room_bytes: int) -> None:
        file.room_bytes -= room_bytes
        self._context.room.release(room_bytes)

    async def wait_committed(self) -> None:
        """Everything put so far is durable and in the index, or was dropped."""
        await self.committer.wait_committed()

    # -- what follows from a group of chunks (see `committer`) --------------------------------------------------

    def chunks_lost(self, file: StagedFile, indexes: list[int]) -> None:
        """These chunks could not be made durable."""
        self.reclaimer.give_up(file, indexes)

    def settled(self, file: StagedFile) -> None:
        """A chunk of the file is settled, one way or the other."""
        self.reclaimer.settled(file)

    # -- evict, list, check ------------------------------------------------------------------------------------------

    async def supersede(self, version: Version) -> None:
        """A newer version of this file exists: what is staged of this one goes as soon as it is not open."""
        file = await self.files.get(version)
        file.superseded = True
        self.reclaimer.settled(file)

    async def evict(self, versions: Iterable[Version] | None = None) -> tuple[int, int]:
        """Evict these versions, or everything, except what is open. Returns (files, bytes of room given back)."""
        await self.wait_committed()
        if versions is None:
            return await self.evict_paths([b""])
        await self.files.load(versions := list(versions))
        targets = []
        for version in versions:
            file = await self.files.get(version)
            if file.object_id is not None:
                targets.append((file.object_id, version))
        return await self.reclaimer.evict(targets)

    async def evict_objects(self, numbers: Sequence[int]) -> dict[int, int]:
        """Evict these objects, except what is open or not durable yet. Returns the room of each that is gone."""
        try:
            rows = await self._context.threads.ask_index(self._context.index.rows, list(numbers))
        except IndexFailed as error:
            self._context.health.index_failed(error, "looking up what to evict")
            return {}
        room = {row.object_id: row.room_bytes for row in rows}
        gone = await self.reclaimer.evict_objects([(row.object_id, row.version) for row in rows])
        return {number: room[number] for number in gone}

    async def evict_chunk(self, file: StagedFile, index: int) -> int:
        """Give one chunk of a file back to the disk. Returns its room; 0: it is not there, or the kernel reads the file
        by itself."""
        if index not in file.present or index not in file.committed or file.passed:
            return 0
        room_bytes = file.chunk_room_bytes(index)
        self.reclaimer.give_up(file, [index])
        await self.reclaimer.wait_idle()
        return room_bytes

    async def evict_paths(
        self, prefixes: Collection[bytes], source_ids: Collection[str] | None = None
    ) -> tuple[int, int]:
        """Evict the files at or below these paths, except what is open; b"" is everything. See `rows` for paths."""
        await self.wait_committed()
        files = freed_bytes = 0
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                batch_files, batch_bytes = await self.reclaimer.evict([(row.object_id, row.version) for row in rows])
                files += batch_files
                freed_bytes += batch_bytes
        return files, freed_bytes

    async def rows(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[StagedRow, None]:
        """What is committed, in the order in which it was staged. Bounded memory, however much there is.

        `prefixes`: paths relative to the source, of files or directories; b"" is the source itself. `source_ids`:
        of these file systems only. Ends early, counted, if the index fails.
        """
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                for row in rows:
                    yield row

    async def still_staged(self, numbers: Sequence[int]) -> tuple[int, int]:
        """How many of these objects the index has, and the bytes of their files. Raises StagingError."""
        rows = await self._context.threads.ask_index(self._context.index.rows, numbers)
        return len(rows), sum(row.version.size for row in rows)

    async def check(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[CheckedFile, None]:
        """Read everything committed from the disk and compare the checksums; what is damaged is forgotten.

        One record a file, as it is done.
        """
        await self.wait_committed()
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                async with aclosing(check_rows(self._context, self.files, self.reclaimer, rows)) as checks:
                    async for checked in checks:
                        yield checked

    def _row_superseded(self, row: StagedRow) -> None:
        file = self.files.peek(row.version)
        if file is not None and file.object_id == row.object_id:
            file.superseded = True
            self.reclaimer.settled(file)
        else:
            self.reclaimer.request(row.object_id, row.version)

    async def prepare(self, kept_source: str = "") -> None:
        """For `open_staging`: remove what an earlier run left, then let staging begin. `kept_source`: see there."""
        await self.names.wait_leased()
        await clean_up(self._context, self.names, self.reclaimer)
        self._ready.set()
        self.evictor.woken()  # the size may have been lowered since
        await drop_passing(self._context, self.reclaimer, kept_source)
        await self.files.preload()

    # -- state -------------------------------------------------------------------------------------------------------

    def statistics(self) -> StagingStatistics:
        """The state of this moment."""
        return statistics_of(
            self._context, self.names, self.committer, self.writing, is_ready=self.ready, refused=self._refused
        )

    async def drain(self) -> None:
        """The end: everything put becomes durable, and the index is told that nothing is left to clean up."""
        self._closing = True  # object numbers that are given back below must not be taken any more
        await end_well(
            self._context, self.files, self.names, self.committer, self.reclaimer, was_ready=self._ready.is_set()
        )

    def close(self) -> None:
        """Close what is open of staged files."""
        self._descriptors.close()
