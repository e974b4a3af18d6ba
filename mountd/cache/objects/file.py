"""StagedFile: what the running daemon knows of the local copy of one version.

Held by handles, by the read path between two awaits, and by staging. One object per version: whoever holds one holds
the same as everybody. A million of them may be loaded one after the other and tens of thousands at a time, most of them
of one chunk, so it is small. Only this room changes it, on the event loop, except for `pins` (through
`StagedFileTable.pin`), `passed`, `delegation`, `last_use_ns` and `path`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hfs.mountd.cache.index import ChunkRow, Stamp
from hfs.mountd.core.attributes import Version
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes, object_overhead_bytes
from hfs.policies.geometry import ChunkSet, Extent, chunk_count, chunk_extent, chunk_range

if TYPE_CHECKING:
    from hfs.mountd.cache.objects.changes import Change


class ChunkRecords:
    """By the number of the chunk. What is not entered counts as stored as it is."""

    __slots__ = ("_checksums", "_count", "_shrunk", "_stored")

    def __init__(self, count: int) -> None:
        self._count = count
        self._checksums: array[int] | None = None
        self._stored: array[int] | None = None
        """As how many bytes, or less how many blocks, below 0."""
        self._shrunk = 0
        """How many in `_stored` are above 0."""

    @property
    def plain(self) -> bool:
        """Every chunk is stored as it is."""
        return not self._shrunk

    def checksum(self, number: int) -> int:
        """xxh3_64 of a chunk that was entered."""
        return self._checksums[number] if self._checksums is not None else 0

    def stored_bytes(self, number: int) -> int:
        """How many bytes stand on the disk for a chunk that shrinks; 0: it is there as it is."""
        return max(0, self._stored[number]) if self._stored is not None else 0

    def hole_blocks(self, number: int) -> int:
        """How many blocks of zeros of a chunk that does not are not on the disk."""
        return max(0, -self._stored[number]) if self._stored is not None else 0

    def row(self, number: int) -> ChunkRow:
        """The row of a chunk, for the index."""
        return ChunkRow(number, self.checksum(number), self.stored_bytes(number), self.hole_blocks(number))

    def enter(self, row: ChunkRow) -> None:
        """A chunk is on the disk."""
        if self._checksums is None:
            self._checksums = array("Q", bytes(8 * self._count))
        self._checksums[row.number] = row.checksum
        self._store(row.number, row.stored_bytes or -row.hole_blocks)

    def discard(self, number: int) -> None:
        """Nothing is left of the chunk: it is about to be written anew."""
        self._store(number, 0)

    def clear(self) -> None:
        """Nothing is left of any."""
        self._checksums = self._stored = None
        self._shrunk = 0

    def _store(self, number: int, stored: int) -> None:
        if self._stored is None:
            if not stored:
                return
            self._stored = array("q", bytes(8 * self._count))
        self._shrunk += (stored > 0) - (self._stored[number] > 0)
        self._stored[number] = stored


class Delegation(Protocol):
    """Opens and reads of one file that the data plane answers: until it is called back, requests for the file are
    answered, and opens counted, without us. Made in `files.delegations`, kept at the node and at the staged file, and
    called back before anything changes that requests are answered by."""

    pins: int
    """Of the staged file, for opens to come: 1 if opens are answered."""
    passes: bool
    """The kernel reads what they open from the staged file by itself."""

    @property
    def opens(self) -> int:
        """Handles that are open now, beside our own."""

    def recall(self) -> None:
        """Requests come to us again, and those handles are our own."""


def recall(file: StagedFile) -> None:
    """Before bytes of it go, or are doubted, and before it is looked whether it is pinned."""
    if file.delegation is not None:
        file.delegation.recall()


def is_open(file: StagedFile) -> bool:
    """Whether somebody has it open now."""
    if file.delegation is None:
        return file.pins > 0
    return file.pins > file.delegation.pins or file.delegation.opens > 0


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class StagedFile:
    """Which chunks of one version are on the local disk.

    `present`: written; reads use these. `committed`: also durable and in the index; restarts use these. A present chunk
    may stop being present at any await: it was evicted (never while pinned), or the disk failed.
    """

    version: Version
    chunk_bytes: int
    """Fixed when the first chunk was staged; another `--chunk` later does not change it."""
    path: bytes
    """Last known, relative to the source."""
    chunks: ChunkRecords = field(init=False)
    """What is known of those that are present."""
    present: ChunkSet = field(init=False)
    committed: ChunkSet = field(init=False)
    pins: int = 0
    """Open handles; a pinned file is not evicted."""
    passed: int = 0
    """Handles that the kernel reads from the object by itself, and opens that may become such. While there are any,
    only the same bytes are written to it again, and no holes are made."""
    delegation: Delegation | None = None
    """Who answers requests for it without us."""
    last_use_ns: int = 0
    """Nanoseconds since the epoch, set by whoever opens the file."""

    # Who has changed it (see `changes`):
    stamp: Stamp | None = None
    """How the object was left: what is known of its bytes holds as long as it has this stamp. None: not known."""
    sound: bool = False
    """With that stamp all present chunks are right: an object that has it may be handed to the kernel."""
    verified: ChunkSet = field(init=False)
    """Chunks that this daemon has written, or whose checksum it has seen, with that stamp."""
    suspicions: int = 0
    """Grows whenever nothing is known of the object any more: a read that was under way then says nothing of it."""
    recorded: Stamp | None = None
    """What the index holds."""
    changing: Change | None = None
    """A change of ours that is under way."""

    # For the staging files:
    object_id: int | None = None
    """Its object on the disk; None while nothing is staged."""
    created: bool = False
    """The object is known to exist."""
    has_row: bool = False
    """The index names it."""
    superseded: bool = False
    """A newer version is known: goes as soon as nobody needs it."""
    unsettled: int = 0
    """Chunks being written or on their way to the index, or being given up. While there are any it is not
    evicted."""
    room_bytes: int = 0
    """Accounted for it."""
    changes: int = 0
    """Grows whenever a chunk stops being present: a read that was under way then may have seen a hole."""
    barred: set[int] | None = None
    """Chunks being written or being given up: not to be put now."""
    stray: dict[int, int] | None = None
    """Chunks whose blocks could not be given back, and the bytes that are still accounted for each."""
    element_bytes: int = 0
    """By what its chunks shrink (see `codec`): 0, not known yet; -1, they do not."""
    stored_use_s: int = 0
    stored_path: bytes | None = None
    """What the index holds; None: nothing yet."""

    def __post_init__(self) -> None:
        count = chunk_count(self.version.size, self.chunk_bytes)
        self.chunks = ChunkRecords(count)
        self.present, self.committed, self.verified = ChunkSet(count), ChunkSet(count), ChunkSet(count)

    @property
    def size(self) -> int:
        """Bytes of the version."""
        return self.version.size

    @property
    def complete(self) -> bool:
        """Every chunk is present. True of an empty file, which has no object."""
        return self.present.full

    @property
    def durable(self) -> bool:
        """Complete, committed, and byte for byte the file: the object may be handed to the kernel. False of an empty
        file."""
        return self.object_id is not None and self.plain and self.committed.full

    @property
    def plain(self) -> bool:
        """The object has the very bytes of the file, as far as they are present: others can read it. False while what
        is stored otherwise may still lie there."""
        return self.chunks.plain

    @property
    def busy(self) -> bool:
        """Must not be evicted now."""
        return self.pins > 0 or self.unsettled > 0

    def has(self, extent: Extent) -> bool:
        """Whether all bytes of `extent` are present. An empty extent is."""
        return all(index in self.present for index in chunk_range(extent, self.chunk_bytes))

    def staged_bytes(self) -> int:
        """Bytes of the present chunks."""
        if self.present.full:
            return self.size
        held = len(self.present) * self.chunk_bytes
        last = self.present.count - 1
        return held - (self.chunk_bytes - self.chunk_size(last)) if last in self.present else held

    def chunk(self, index: int) -> Extent:
        """The bytes of chunk `index`, as offsets in the file. Raises ValueError if there is none."""
        return chunk_extent(index, self.version.size, self.chunk_bytes)

    def chunk_size(self, index: int) -> int:
        """How many bytes chunk `index` has. Raises ValueError if there is none. Asked five times of each small file."""
        size = min(self.chunk_bytes, self.version.size - index * self.chunk_bytes)
        return size if index >= 0 and size > 0 else self.chunk(index).size

    def chunk_room_bytes(self, index: int) -> int:
        """What chunk `index` takes on the disk, as it is stored."""
        size = self.chunks.stored_bytes(index) or self.chunk_size(index)
        return blocks_bytes(size) - self.chunks.hole_blocks(index) * BLOCK_BYTES

    def raw_room_bytes(self, index: int) -> int:
        """What chunk `index` takes on the disk at most: as it is."""
        return blocks_bytes(self.chunk_size(index))

    def overhead_bytes(self) -> int:
        """What the object takes besides its chunks."""
        return object_overhead_bytes(self.present.count)

    def verify(self, index: int) -> None:
        """A present chunk was found right, or written, with the stamp of the file."""
        self.verified.add(index)
        self.sound = self.sound or self.verified.includes(self.present)

    def suspect(self) -> None:
        """The object may have been changed by others: nothing is known of its chunks any more."""
        recall(self)
        self.stamp = None
        self.sound = False
        self.verified.clear()
        self.suspicions += 1

    def bar(self, index: int) -> None:
        """Chunk `index` is not to be put until `unbar`."""
        if self.barred is None:
            self.barred = set()
        self.barred.add(index)

    def unbar(self, index: int) -> None:
        """Undo `bar`."""
        if self.barred is not None:
            self.barred.discard(index)
            if not self.barred:
                self.barred = None

    def is_barred(self, index: int) -> bool:
        """Whether chunk `index` is being written or given up."""
        return self.barred is not None and index in self.barred

    def drop(self, index: int) -> None:
        """Chunk `index` is no longer present."""
        recall(self)
        self.present.discard(index)
        self.committed.discard(index)
        self.verified.discard(index)
        self.sound = self.stamp is not None and (self.sound or self.verified.includes(self.present))
        self.changes += 1

    def detach(self) -> tuple[int | None, int]:
        """Nothing of it is staged any more, and the next put makes a new object. Returns (object, accounted bytes)."""
        held = self.object_id, self.room_bytes
        self.present.clear()
        self.committed.clear()
        self.suspect()
        self.recorded = None
        self.object_id = None
        self.created = self.has_row = False
        self.room_bytes = 0
        self.changes += 1
        self.stray = None
        self.stored_path = None
        self.element_bytes = 0
        self.chunks.clear()
        return held
