"""What goes into the index and what comes out of it. Plain records, made and read by the index and the staging
files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hfs.mountd.base.version import Version


class Stamp(NamedTuple):
    """How an object was left: as long as it has its stamp and its length, nobody has changed it since."""

    inode: int
    """Another file under its name has another one."""
    ctime_ns: int
    """Time of its last change, by the clock of the file system that holds it."""


class ScrubRow(NamedTuple):
    """How far the scrub is. Times in seconds since the epoch, 0: never."""

    object_id: int
    """Objects up to this number were looked at in this round."""
    bytes: int
    """In this round so far."""
    began_s: int
    """This round, or the last."""
    ended_s: int
    """The last round that came to its end."""


class ChunkRow(NamedTuple):
    """One chunk of a file."""

    number: int
    checksum: int
    """xxh3_64 of its bytes, however they are stored."""
    stored_bytes: int = 0
    """How many bytes stand for it on the disk, if it shrinks; 0: it is stored as it is."""
    hole_blocks: int = 0
    """How many blocks of it, all zeros, are not there, if it is stored as it is. None of the only chunk of a file."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is known at start without looking at any row."""

    files: int
    size_bytes: int
    """Of the chunks committed."""
    used_bytes: int
    """Accounted room of everything in the index, evicted objects not yet removed included."""
    next_id: int
    """The first object number that was certainly never used."""
    settled_id: int
    """Objects from here to next_id without a row are garbage."""
    clean: bool
    """The last run left nothing on the disk that is not accounted."""
    shrunk_bytes: int
    """Of `size_bytes`, those of chunks that are stored in fewer bytes than they have."""
    shrunk_stored_bytes: int
    """How many stand for them on the disk."""


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One staged file as the index knows it."""

    object_id: int
    version: Version
    path: bytes
    """Last known, relative to the source."""
    chunk_bytes: int
    complete: bool
    staged_bytes: int
    """Of the chunks committed."""
    room_bytes: int
    """Accounted on the disk: whole blocks and overhead."""
    last_use_s: int
    """Seconds since the epoch; some hours behind at worst."""
    checksum: int | None
    """xxh3_64 of the only chunk of a file of one chunk; None if that is not committed, or there are more."""
    stored_bytes: int
    """As in ChunkRow, of that chunk; 0 if there are more."""
    stamp: Stamp | None = None
    """With which every chunk that is committed was right, and nothing else was in the object; None: not known."""
    proven: bool = True
    """It is the row that was written. If not, none of its chunks may be used."""
    pinned: bool = False
    """It goes only by name."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Chunks of one file that have become durable, for `IndexWriter.commit_chunks`."""

    object_id: int
    is_new: bool
    """No row yet."""
    version: Version
    path: bytes
    chunk_bytes: int
    complete: bool
    size_bytes: int
    """Of these chunks."""
    room_bytes: int
    """Of these chunks, and of the file itself when it is new."""
    last_use_s: int
    chunks: Sequence[ChunkRow]
    stamp: Stamp | None = None
    """As in StagedRow, with these chunks."""
