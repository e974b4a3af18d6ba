"""StagedFile: what the running daemon knows of the local copy of one version.

Held by handles, by the read path between two awaits, and by staging. One object per version: whoever holds one holds
the same as everybody. A million of them may be loaded one after the other and tens of thousands at a time, so it is
small. Only this room changes it, on the event loop, except for `pins` (through `StagedFileTable.pin`), `passed`,
`delegation`, `last_use_ns` and `path`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfs.mountd.base.delegation import Delegation
from hfs.mountd.base.version import Version
from hfs.mountd.cache.index import Stamp
from hfs.mountd.cache.objects.chunk_records import ChunkRecords
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes, object_overhead_bytes
from hfs.policies.geometry import ChunkSet, Extent, chunk_count, chunk_extent, chunk_range

if TYPE_CHECKING:
    from hfs.mountd.cache.objects.stamps import Change


def recall(file: StagedFile) -> None:
    """Before bytes of it go, or are doubted, and before it is looked whether it is pinned."""
    if file.delegation is not None:
        file.delegation.recall()


def is_open(file: StagedFile) -> bool:
    """Whether somebody has it open now."""
    if file.delegation is None:
        return file.pins > 0
    return file.pins > file.delegation.pins or file.delegation.opens > 0


class StagedFile:
    """Which chunks of one version are on the local disk.

    `present`: written; reads use these. `committed`: also durable and in the index; restarts use these. A present chunk
    may stop being present at any await: it was evicted (never while pinned), or the disk failed.
    """

    __slots__ = (
        "__weakref__",
        "barred",
        "changes",
        "changing",
        "chunk_bytes",
        "chunks",
        "committed",
        "created",
        "delegation",
        "doubts",
        "element_bytes",
        "has_row",
        "last_use_ns",
        "object_id",
        "passed",
        "path",
        "pins",
        "present",
        "recorded",
        "room_bytes",
        "sound",
        "stamp",
        "stored_path",
        "stored_use_s",
        "stray",
        "superseded",
        "unsettled",
        "verified",
        "version",
    )

    def __init__(self, version: Version, chunk_bytes: int, path: bytes) -> None:
        count = chunk_count(version.size, chunk_bytes)
        self.version = version
        self.chunk_bytes = chunk_bytes
        """Fixed when the first chunk was staged; another `--chunk` later does not change it."""
        self.path = path
        """Last known, relative to the source."""
        self.chunks = ChunkRecords(count)
        """What is known of those that are present."""
        self.present = ChunkSet(count)
        self.committed = ChunkSet(count)
        self.pins = 0
        """Open handles; a pinned file is not evicted."""
        self.passed = 0
        """Handles that the kernel reads from the object by itself, and opens that may become such. While there are any,
        only the same bytes are written to it again, and no holes are made."""
        self.delegation: Delegation | None = None
        """Who answers requests for it without us."""
        self.last_use_ns = 0
        """Nanoseconds since the epoch, set by whoever opens the file."""

        # Who has changed it (see `stamps`):
        self.stamp: Stamp | None = None
        """How the object was left: what is known of its bytes holds as long as it has this stamp. None: not known."""
        self.sound = False
        """With that stamp all present chunks are right: an object that has it may be handed to the kernel."""
        self.verified = ChunkSet(count)
        """Chunks that this daemon has written, or whose checksum it has seen, with that stamp."""
        self.doubts = 0
        """Grows whenever nothing is known of the object any more: a read that was under way then says nothing of it."""
        self.recorded: Stamp | None = None
        """What the index holds."""
        self.changing: Change | None = None
        """A change of ours that is under way."""

        # For the staging files:
        self.object_id: int | None = None
        """Its object on the disk; None while nothing is staged."""
        self.created = False
        """The object is known to exist."""
        self.has_row = False
        """The index names it."""
        self.superseded = False
        """A newer version is known: goes as soon as nobody needs it."""
        self.unsettled = 0
        """Chunks being written or on their way to the index, or being given up. While there are any it is not
        evicted."""
        self.room_bytes = 0
        """Accounted for it."""
        self.changes = 0
        """Grows whenever a chunk stops being present: a read that was under way then may have seen a hole."""
        self.barred: set[int] | None = None
        """Chunks being written or being given up: not to be put now."""
        self.stray: dict[int, int] | None = None
        """Chunks whose blocks could not be given back, and the bytes that are still accounted for each."""
        self.element_bytes = 0
        """By what its chunks shrink (see `codec`): 0, not known yet; -1, they do not."""
        self.stored_use_s = 0
        self.stored_path: bytes | None = None
        """What the index holds; None: nothing yet."""

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

    def doubt(self) -> None:
        """The object may have been changed by others: nothing is known of its chunks any more."""
        recall(self)
        self.stamp = None
        self.sound = False
        self.verified.clear()
        self.doubts += 1

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
        self.doubt()
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
