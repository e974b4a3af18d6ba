"""The cache: local copies of source files, byte for byte unless what shrinks is kept so, sparse until complete.

`open_cache` owns a cache directory and gives a `Cache`, which holds the parts; whoever needs one talks to it. `hfs
cache` uses the same parts, with or without a mount.

    files          version -> StagedFile            admission      what fits, and why not
    reader         reads of staged bytes            writer         queue, workers, O_DIRECT
    publisher         whole objects, for the kernel    committer      group sync, then the index
    verifying      is this file right?              evictor        what must go
    checker,       all of it, read again            evictions      what is said to go, by name or age
      scrub                                         reclaimer      carries it out
    listing        what is there                    reclaim_queue  what waits for that
    pinned         what stays                       telling        what overlays may have open

Below them lie `index`, the database, and `objects`: their numbers, system calls (`disk`), reads in threads (`reads`),
the codec, and who has changed one (`changes`).

A cache may fail, a read may not: nothing here raises for a broken disk or index but StagingError from the reading
methods, which means "go to the source". What happens is counted (staging_errors), told in `statistics`, and warned
about at most once a minute. Event loop only. Methods named `_nowait` wait for no disk: the reader's ask the page
cache, those of `files` the index, which lies in memory or is one read of a fast disk away. It never reads the source
and knows nothing of chunks being fetched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.completions import Completions
from hfs.mountd.cache.evictions import EvictionsByName, clean_up, drop_passing
from hfs.mountd.cache.evictor import Admission, Evictor
from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.grants import CacheQuota
from hfs.mountd.cache.kept_attributes import AttributesWanted, ObjectsAhead, StoredAttributes
from hfs.mountd.cache.objects.changes import ReclaimQueue
from hfs.mountd.cache.objects.codec import Shrinking
from hfs.mountd.cache.objects.context import CacheContext, State
from hfs.mountd.cache.objects.disk import Descriptors
from hfs.mountd.cache.objects.numbers import ObjectIdAllocator
from hfs.mountd.cache.publisher import Findings, ObjectPublisher
from hfs.mountd.cache.reader import StagedReader, Verifying
from hfs.mountd.cache.reclaimer import Reclaimer
from hfs.mountd.cache.rows import KnownObjects, Pins, RowUpdates, StagedListing
from hfs.mountd.cache.scrub import Checker, Scrub
from hfs.mountd.cache.told_objects import Departures, ExposedObjects
from hfs.mountd.cache.writer import StagedWriter
from hfs.mountd.core.background import guarded, start_for_life
from hfs.mountd.core.config import VerifyWanted
from hfs.policies.cache.admission import BLOCK_BYTES
from hfs.policies.cache.eviction import DEFAULT, POLICIES

_IN_FLIGHT_BYTES = 64 << 20
"""Eight chunks wait for the disk: enough that it never waits for the source, little beside the buffers of the
daemon."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What a cache is told to do."""

    capacity_bytes: int | None = None
    """None leaves max(10 %, 10 GB) of the disk free; a size leaves a twentieth, at most 1 GB."""
    keeps_floor: bool = True
    """False, for who stages nothing: the disk may be as full as it is."""
    chunk_bytes: int = 8 << 20
    """Of files that are staged from now on."""
    eviction: str = DEFAULT
    writers: int = 2
    """Threads that write."""
    in_flight_bytes: int = _IN_FLIGHT_BYTES
    """What may wait in memory until it is written."""
    verify: VerifyWanted = "first-use"
    expire_s: float = 0.0
    """What nobody has used for so long goes; 0: stays."""
    scrub_bytes_s: int = 0
    """What is staged is read again at this rate, to see what has rotted; 0 does not."""
    attributes: AttributesWanted = "left"
    """`kept` for later mounts, of a source that never changes; `forgotten`, where nobody believes that; `left` as they
    are."""
    kept_source: str = ""
    """An identity of a source that is good for one run only, and that this run shares with the one before."""


@dataclass(frozen=True, slots=True)
class StagingStatistics:
    """A moment of staging. Bytes unless the name says otherwise."""

    files: int
    """Staged files, complete or not."""
    bytes: int
    """Of staged chunks."""
    room_bytes: int
    """Accounted on the disk: staged, being staged, and evicted but not yet removed."""
    capacity_bytes: int
    """What may be used in all, as things stand: the size asked for, or what the disk's floor leaves."""
    pinned_files: int
    pinned_bytes: int
    """Of `room_bytes`, of files that go only by name."""
    shrunk_bytes: int
    """Of `bytes`, those of chunks that are stored in fewer bytes than they have."""
    shrunk_stored_bytes: int
    """How many stand for them on the disk."""
    queued_bytes: int
    """Held in memory until they are written."""
    uncommitted_bytes: int
    """Written, not yet durable."""
    state: State
    """ok; cleaning: what a crash has left is looked through, nothing is staged yet; resting: the disk failed when last
    written to, and is tried again later; full: the last chunk found no room; off: the index is damaged or the cache
    cannot be used, nothing is staged."""
    last_error: str | None
    full_because: str | None
    """Which limit leaves no room, while the state is full."""


class Cache:
    """`mountd.cache.opening.open_cache` makes it."""

    def __init__(
        self,
        context: CacheContext,
        settings: CacheSettings,
        nursery: trio.Nursery,
        telling: ExposedObjects,
        grants: CacheQuota | None = None,
    ) -> None:
        self._nursery = nursery
        self.context = context
        self.settings = settings
        self.eviction = POLICIES[settings.eviction]
        self.room = context.room
        self.ready = trio.Event()
        """What an earlier run left is gone. Before that nothing is put; reads and look-ups do not wait for it. Set at
        once after a clean end, a moment after a crash."""
        self.shrinking = Shrinking()
        self.object_ids = ObjectIdAllocator(context)
        self.descriptors = Descriptors(context.disk.io.close, context.disk.open_files.shares.staged)
        self.pinned = Pins(context)
        self.ahead = ahead = ObjectsAhead(context, context.others.answers)
        self.attributes = StoredAttributes(context, ahead, settings.attributes)
        self.reclaim_queue = queue = ReclaimQueue(self.descriptors, ahead.take)
        self.updates = RowUpdates(context, self.eviction.use_every_s)
        self.files = StagedFileTable(
            context, settings.chunk_bytes, queue, self.updates, nursery, trusts_stamps=settings.verify == "changed"
        )
        self.telling = telling
        self.reclaimer = Reclaimer(context, self.object_ids, self.files, queue, self.updates, self.pinned, telling)
        self._departures = Departures(self.reclaimer, self.updates)
        self.known = KnownObjects(context, settings.kept_source)
        self.committer = Committer(context, self.object_ids, queue, self.known, self.pinned, self.files)
        self.evictor = Evictor(context, self.files, self.reclaimer, self.committer, self.updates, self.eviction, grants)
        self.admission = Admission(context, self.evictor, self.ready)
        self.writer = StagedWriter(
            context, self.object_ids, self.admission, self.committer, queue, self.shrinking, settings.in_flight_bytes
        )
        self.completions = Completions(
            context,
            self.object_ids,
            self.admission,
            self.committer,
            self.files,
            queue,
            self.known,
            settings.chunk_bytes,
        )
        findings = Findings(context, self.descriptors, queue, telling)
        self.reader = StagedReader(context, self.descriptors, findings, nursery)
        self.publisher = ObjectPublisher(context, findings)
        self.verifying = Verifying(self.reader, nursery)
        self.listing = StagedListing(context)
        self.evictions = EvictionsByName(
            context, self.object_ids, self.files, self.committer, self.reclaimer, queue, self.pinned
        )
        self.checker = Checker(context, self.files, self.committer, queue, self.updates)
        self.scrub = Scrub(context, self.checker, settings.scrub_bytes_s)

    def start(self) -> None:
        """Begin to work; over when the nursery is cancelled."""
        nursery = self._nursery
        start_for_life(nursery, "staging: object ids", self.object_ids.run)
        start_for_life(nursery, "staging: reclaimer", self.reclaimer.run)
        start_for_life(nursery, "staging: committer", self.committer.run)
        start_for_life(nursery, "staging: evictor", self.evictor.run)
        start_for_life(nursery, "staging: expiry", self.evictions.expire, self.ready, self.settings.expire_s)
        start_for_life(nursery, "staging: what overlays let go of", self._departures.run)
        for _ in range(self.settings.writers):
            start_for_life(nursery, "staging: writer", self.writer.work)
        start_for_life(nursery, "staging: watch of the disk", self.evictor.watch)
        start_for_life(nursery, "staging: scrub", self.scrub.run)
        start_for_life(nursery, "staging: last uses", self.updates.run)
        start_for_life(nursery, "staging: attributes", self.attributes.run)
        start_for_life(nursery, "staging: objects ahead", self.ahead.run)
        start_for_life(nursery, "staging: clean-up", self._prepare)

    def is_in_place(self) -> bool:
        """In a thread: whether what is open is still what has its name: nobody has removed it, or mounted another disk
        there. Raises OSError where that cannot be told."""
        disk = self.context.disk
        try:
            named = os.stat(disk.objects_dir)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return disk.directory < 0 or os.path.samestat(named, os.fstat(disk.directory))

    async def drain(self, at_most_s: float) -> None:
        """The end: what was put becomes durable, and the index is told that nothing is left to clean up.

        After `at_most_s` seconds it ends without that: the next start then looks for what is left.
        """
        self.completions.close()
        self.writer.close()  # object numbers that are given back below must not be taken any more
        with trio.move_on_after(at_most_s, shield=True):
            await guarded("staging: end", self._settle)

    def statistics(self) -> StagingStatistics:
        """The state of this moment."""
        context, committer = self.context, self.committer
        # What a thread has entered in the index a moment ago counts as uncommitted, too, until we have noted it.
        indexed_bytes = context.index.counts.bytes
        twice_bytes = context.index.writer.entered_bytes - committer.entered_bytes
        state: State = "ok"
        if context.health.off:
            state = "off"
        elif context.health.failing:
            state = "resting"
        elif not self.ready.is_set():
            state = "cleaning"
        elif self.admission.refused:
            state = "full"
        return StagingStatistics(
            files=context.index.counts.files + self.object_ids.open_count,
            bytes=indexed_bytes + committer.uncommitted_bytes - twice_bytes,
            room_bytes=context.room.used_bytes - self.completions.granted_bytes,  # what is granted others may use
            capacity_bytes=context.room.limit_bytes(),
            pinned_files=len(self.pinned),
            pinned_bytes=context.room.pinned_bytes,
            shrunk_bytes=context.index.counts.shrunk_bytes,
            shrunk_stored_bytes=context.index.counts.shrunk_stored_bytes,
            queued_bytes=self.writer.queued_bytes,
            uncommitted_bytes=committer.uncommitted_bytes,
            state=state,
            last_error=context.health.last_error,
            full_because=context.room.what_limits() if state == "full" else None,
        )

    async def _prepare(self) -> None:
        """Remove what an earlier run left, then let staging begin."""
        await self.object_ids.wait_leased()
        await clean_up(self.context, self.object_ids, self.reclaimer)
        self.ready.set()
        self.evictor.woken()  # the size may have been lowered since
        await drop_passing(self.context, self.reclaimer, self.settings.kept_source)
        await self.known.load()

    async def _settle(self) -> None:
        context = self.context
        self.committer.disbelieve_all()
        with context.health.index_faults("closing the cache"):
            await self.committer.wait_committed()
            await self.reclaimer.wait_idle()
            for file in self.files.in_memory():
                self.updates.note(file)
            await self.updates.flush()
            await self.attributes.flush()
            async with self.reclaimer.lock:
                await self.reclaimer.forget_unlinked()
            state = await context.threads.ask_index(context.index.reader.state)
            # What could not be removed or punched is accounted in memory only: then the next start must look.
            if self._at_rest and state.counts.blocks * BLOCK_BYTES == context.room.used_bytes:
                unused = self.object_ids.unused_from
                await context.threads.change_index(context.index.writer.settle, unused, unused)

    @property
    def _at_rest(self) -> bool:
        is_idle = self.committer.idle and self.reclaimer.idle and not self.reclaimer.deferred
        return is_idle and self.ready.is_set() and self.object_ids.all_settled
