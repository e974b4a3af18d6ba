"""What a warm has fetched and is not durable yet: looked at again until it is done, failed, or to be tried once more.

A file is done when all its chunks are in the index, and not before. What found no room, or what the cache disk did not
take, failed, with the reason; where only the queue of the disk was full, the file is late and tried again at the end.
Of small files that the data plane has stored nothing is known but the object, by which the index is asked; one that is
not there in the end is fetched by its node. Nothing is fetched here.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError, NotTaken, StagingError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import Become, Fetcher, Owners, Place, Small
from hfs.mountd.namespace import Node
from hfs.mountd.wire.protocol import PathFault, Progress, Result
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes

_LOOKED_UP_AT_ONCE = 512
_TRIES = 3
"""A queue that was full is empty after each, so a file of the size of the queue is whole after two."""
_LATE = 1000
"""Files that are tried again at the end; more of them means that the disk is not to be waited for."""


_MAX_FAULTS = 1000
"""Faults named in one command; more are only counted."""


class ProgressCounter:
    """The figures of one command while it runs: what `hfs cache` shows as progress and, at the end, as the result.

    Plain counting, no I/O; faults are named up to a bound and handed out once.

    Files and bytes done, skipped, failed and known of so far.
    """

    def __init__(self) -> None:
        self.files = self.bytes = self.failed = self.skipped = 0
        self.files_total = self.bytes_total = 0
        self.walking = False
        self.unseen = 0
        """Names of which it is not known yet what they are: counted as files of the mean size."""
        self.left = 0
        """Names that are gone through once more, later: what they are to take is not known either."""
        self.room_bytes: int | None = None
        """What it would take on the disk, where that is more than"""
        self.free_bytes: int | None = None
        """there is for it."""
        self._named = 0
        self._faults: list[PathFault] = []

    def found(self, size_bytes: int) -> None:
        """A file that will be worked on."""
        self.files_total += 1
        self.bytes_total += size_bytes

    def forget(self, size_bytes: int) -> None:
        """It will be found anew."""
        self.files_total -= 1
        self.bytes_total -= size_bytes

    def done(self, size_bytes: int) -> None:
        """A file is done."""
        self.files += 1
        self.bytes += size_bytes

    def skip(self, size_bytes: int) -> None:
        """Nothing was to be done for a file, which counts as done."""
        self.skipped += 1
        self.done(size_bytes)

    def fail(self, path: bytes, error: HfsError) -> None:
        """A path failed."""
        self.failed += 1
        if self._named < _MAX_FAULTS:
            self._named += 1
            self._faults.append(PathFault(path, str(error), isinstance(error, NotTaken)))

    def lost(self, files: int, size_bytes: int, why: str) -> None:
        """So many files that were done are so no longer; which, nobody knows."""
        self.files -= files
        self.bytes -= size_bytes
        self.fail(b"", StagingError(f"{files:,} files {why}"))
        self.failed += files - 1

    def progress(self) -> Progress:
        """How far it is; faults that were not told yet go with it."""
        unseen_bytes = self.unseen * self.bytes_total // max(1, self.files_total)
        return Progress(
            files=self.files,
            bytes=self.bytes,
            failed=self.failed,
            skipped=self.skipped,
            files_total=self.files_total + self.unseen,
            bytes_total=self.bytes_total + unseen_bytes,
            walking=self.walking or self.left > 0,
            faults=self._take_faults(),
            room_bytes=self.room_bytes,
            free_bytes=self.free_bytes,
        )

    def result(self) -> Result:
        """The last word."""
        return Result(
            files=self.files, bytes=self.bytes, failed=self.failed, skipped=self.skipped, faults=self._take_faults()
        )

    def _take_faults(self) -> list[PathFault]:
        faults, self._faults = self._faults, []
        return faults


@dataclass(slots=True, eq=False)
class PendingFile:
    """A file that is being fetched, was fetched, or was found to be here."""

    node: Node
    file: StagedFile
    was_here: bool
    tries: int = 1
    lacks_bytes: int = 0
    """What it lacked when it was begun, and what was accounted for it then."""
    room_bytes: int = 0
    staged_bytes: int = 0
    """Of it, when it was begun."""
    held_bytes: int = 0
    """What of it counts as held by this command: nothing, if it was pinned before."""

    @property
    def wanted_bytes(self) -> int:
        """What of that is not accounted for yet."""
        return max(0, self.lacks_bytes - (self.file.room_bytes - self.room_bytes))

    def fetched_bytes(self) -> int:
        """Since it was begun."""
        return max(0, self.file.staged_bytes() - self.staged_bytes)


@dataclass(frozen=True, slots=True)
class _PendingObject:
    place: Place
    size_bytes: int
    is_fetched: bool
    held_bytes: int
    """What of it counts as held by this command: nothing, if it was pinned before."""


class PendingFiles:
    """Those of one command, counted in `work` when it is known what has become of them."""

    def __init__(self, cache: Cache, fetcher: Fetcher, owners: Owners, metrics: Metrics, work: ProgressCounter) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._owners = owners
        self._metrics = metrics
        self._work = work
        self._pending: deque[PendingFile] = deque()
        self._late: list[PendingFile] = []
        self._pending_objects: dict[int, _PendingObject] = {}
        """By number."""
        self.seen = 0
        """Files of which nothing is known but the object,"""
        self.fetched_files = self.fetched_room_bytes = 0
        """and those of them that were fetched."""
        self._errors = metrics["staging_errors"]
        self.held_bytes = 0
        """What the files take that were fetched or found here."""
        self._objects = array("Q")
        """Of the files that are done, and the bytes of these: 8 bytes a file."""
        self._objects_bytes = 0
        self._looked_at_for_pins = 0
        self.pinned_files = 0
        """By `pin_done`."""

    def add(self, entry: PendingFile) -> None:
        """All of the file was fetched, or was here."""
        entry.held_bytes = self.held(entry.file.object_id, entry.file.room_bytes)
        self.held_bytes += entry.held_bytes
        self._pending.append(entry)

    def add_object(self, place: Place, small: Small) -> bool:
        """The data plane has this file. False: it says too little of it."""
        size_bytes, number = small.size, small.number
        if size_bytes is None or (size_bytes and not number):
            return False
        self._work.found(size_bytes)
        self.seen += 1
        if not number or number in self._pending_objects:  # another name of it is waited for
            self._work.skip(size_bytes)
            return True
        room_bytes = blocks_bytes(size_bytes) + object_overhead_bytes(1)
        is_fetched = small.become is Become.FETCHED
        if is_fetched:
            self.fetched_files += 1
            self.fetched_room_bytes += room_bytes
        held_bytes = self.held(number, room_bytes)
        self._pending_objects[number] = _PendingObject(place, size_bytes, is_fetched, held_bytes)
        self.held_bytes += held_bytes
        return True

    async def settle_objects(self) -> None:
        """Count those that are in the index by now. Never raises HfsError."""
        try:
            entered = await self._cache.listing.entered(list(self._pending_objects))
        except HfsError:
            return  # asked again
        for number in entered & self._pending_objects.keys():
            entry = self._pending_objects.pop(number)
            (self._work.done if entry.is_fetched else self._work.skip)(entry.size_bytes)
            self._staged(number, entry.size_bytes)

    async def settle_all_objects(self) -> Sequence[Place]:
        """Wait until it is known of each what has become of it. Those that did not get into the index."""
        if self._pending_objects:
            await self._cache.committer.wait_committed()
            await self.settle_objects()
        lost, self._pending_objects = self._pending_objects, {}
        for entry in lost.values():
            self._work.forget(entry.size_bytes)
            self.held_bytes -= entry.held_bytes
        return [entry.place for entry in lost.values()]

    def held(self, number: int | None, room_bytes: int) -> int:
        """What an object that takes so much holds of the room that there was for this command."""
        return 0 if number in self._cache.pinned else room_bytes

    def settle_some(self, count: int | None = None) -> None:
        """Look at so many of them, or at all, each in its turn: one that hangs does not keep the others."""
        for _ in range(len(self._pending) if count is None else min(count, len(self._pending))):
            entry = self._pending.popleft()
            if self._is_under_way(entry):
                self._pending.append(entry)
            else:
                self._settle(entry)

    async def settle_all(self) -> list[PendingFile]:
        """Wait until it is known of each what has become of it. Gives those that are to be tried again."""
        await self._cache.committer.wait_committed()
        while self._pending:
            entry = self._pending.popleft()
            if self._is_under_way(entry):
                await self._wait_for(entry)
            self._settle(entry)
        late, self._late = self._late, []
        for entry in late:
            entry.tries += 1
        return late

    def failed(self, entry: PendingFile, error: HfsError) -> None:
        """Counted, or, where only the queue of the disk was full, tried again at the end."""
        lost = isinstance(error, StagingError) and self._cache.admission.why_not(entry.file.size) is None
        if lost and entry.tries < _TRIES and len(self._late) < _LATE:
            self._late.append(entry)
        else:
            self._work.fail(entry.node.path, error)

    async def pin_done(self) -> None:
        """Have those pinned that became done since the last call. Raises StagingError."""
        numbers = list(self._objects[self._looked_at_for_pins :])
        pinned_files = await self._cache.pinned.pin(numbers)
        self._looked_at_for_pins += len(numbers)  # not before: whoever is cancelled there is asked again
        self.pinned_files += pinned_files

    async def count_again(self) -> None:
        """Some files were evicted: whether any of these."""
        files = size_bytes = 0
        for start in range(0, len(self._objects), _LOOKED_UP_AT_ONCE):
            there = await self._cache.listing.still_staged(list(self._objects[start : start + _LOOKED_UP_AT_ONCE]))
            files += there[0]
            size_bytes += there[1]
        if files < len(self._objects):
            why = f"were staged and evicted again: {self._cache.room.what_limits()}"
            self._work.lost(len(self._objects) - files, self._objects_bytes - size_bytes, why)

    async def _wait_for(self, entry: PendingFile) -> None:
        """A reader fetches it, what was damaged is being given up, or it is in doubt whether it is right."""
        for index in entry.file.present.missing():
            await self._fetcher.wait_flight(entry.file.version, index)
        await self._cache.committer.wait_confirmed(entry.file.version)
        await self._cache.committer.wait_committed()
        await self._cache.reclaimer.wait_idle()

    def _settle(self, entry: PendingFile) -> None:
        if self._is_durable(entry):
            self._done(entry)
        else:
            self.held_bytes -= entry.held_bytes
            self.failed(entry, NotTaken(self._why_lost(entry)))

    def _why_lost(self, entry: PendingFile) -> str:
        why = self._cache.admission.why_not(entry.file.size)
        if why is None and self._metrics["staging_errors"] != self._errors:
            why = f"the cache disk did not take it ({self._cache.statistics().last_error})"
        return why or str(self._cache.admission.refusal(entry.file.size))

    def _is_durable(self, entry: PendingFile) -> bool:
        file, path = entry.file, entry.node.path
        return file.committed.full or all(
            index in file.committed or not self._owners.caches_locally(path, index)
            for index in range(file.committed.count)
        )

    def _is_under_way(self, entry: PendingFile) -> bool:
        file = entry.file
        return file.unsettled > 0 or any(self._fetcher.is_coming(file.version, i) for i in file.present.missing())

    def _done(self, entry: PendingFile) -> None:
        (self._work.skip if entry.was_here else self._work.done)(entry.node.attributes.size)
        if entry.file.object_id is not None:
            self._staged(entry.file.object_id, entry.file.size)

    def _staged(self, number: int, size_bytes: int) -> None:
        """A file was counted as done that is this object."""
        self._objects.append(number)
        self._objects_bytes += size_bytes
