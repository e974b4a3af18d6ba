"""Checking what is staged: everything that the index vouches for is read again, its checksums compared.

Called by `Staging.check`, for `hfs cache check`. What is damaged is forgotten, as when a reader meets it; what could
not be looked at (no descriptor left, nothing here to decode it with) is told and kept. Reads from the disk only;
whether the source has the same bytes is asked elsewhere (`mountd/commands.py`).
"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from mountd.index import ChunkRow, Index, IndexFailed, StagedRow
from mountd.staging_disk import Disk
from mountd.staging_file import StagedFile
from mountd.staging_files import Files
from mountd.staging_ground import Ground
from mountd.staging_reading import OUR_LIMITS, read_object
from mountd.staging_sweeper import Sweeper
from mountd.version import Version
from policies.geometry import chunk_extent

__all__ = ["CheckedFile", "check_rows"]

_CHECK_BATCH = 64
_CHECK_BYTES = 32 << 20
"""Files checked in one hop to a thread."""

_SAY_NOTHING = {*OUR_LIMITS, errno.ENOSYS}
"""The last is what `decode` says where its library is missing: whoever has it finds the bytes as they were."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What `check` found of one file."""

    version: Version
    path: bytes
    chunks: int
    """Chunks that were read."""
    bytes: int
    """Bytes that were read."""
    broken: tuple[int, ...]
    """Indexes of damaged or unreadable chunks; they are forgotten."""
    unchecked: str = ""
    """Why some chunks could not be looked at, which says nothing about them; "": all were."""

    @property
    def fault(self) -> str | None:
        """What is wrong with it, in words; None: nothing."""
        if self.broken:
            return f"{len(self.broken)} of {self.chunks} chunks were damaged and are dropped"
        return f"not checked: {self.unchecked}" if self.unchecked else None


async def check_rows(
    ground: Ground, files: Files, sweeper: Sweeper, rows: Sequence[StagedRow]
) -> AsyncGenerator[CheckedFile, None]:
    """Check what these rows vouch for; forget what is damaged."""
    start = 0
    while start < len(rows):
        end, size = start, 0
        while end < len(rows) and (end == start or (end - start < _CHECK_BATCH and size < _CHECK_BYTES)):
            size += rows[end].version.size
            end += 1
        batch, start = rows[start:end], end
        try:
            chunks = await ground.threads.ask_index(_all_chunks, ground.index, batch)
        except IndexFailed as error:
            ground.health.index_failed(error, "checking staged files")
            return
        found = await ground.threads.read(_check_objects, ground.disk, batch, chunks)
        for row, listed, (broken, unchecked) in zip(batch, chunks, found, strict=True):
            if broken:
                file = await files.get(row.version)
                if file.object_id != row.object_id:
                    continue  # evicted meanwhile
                # One that was staged again since it was listed, perhaps in the other form, was not what was looked at.
                same = {c.number for c in listed if ChunkRow(c.number, *_stored(file, c.number)) == c}
                broken = [index for index in broken if index in file.vouched and index in same]
                ground.metrics.add("staged_checksum_failures", len(broken))
                sweeper.give_up(file, broken)
            sizes = [chunk_extent(chunk.number, row.version.size, row.chunk_bytes).size for chunk in listed]
            yield CheckedFile(row.version, row.path, len(listed), sum(sizes), tuple(broken), unchecked)


def _all_chunks(index: Index, rows: Sequence[StagedRow]) -> list[list[ChunkRow]]:
    return [
        ([] if row.checksum is None else [ChunkRow(0, row.checksum, row.stored_bytes)])
        if row.version.size <= row.chunk_bytes
        else index.chunks(row.object_id)
        for row in rows
    ]


def _stored(file: StagedFile, index: int) -> tuple[int, int]:
    return file.checksum(index), file.stored_bytes(index)


def _check_objects(
    disk: Disk, rows: Sequence[StagedRow], chunks: Sequence[list[ChunkRow]]
) -> list[tuple[list[int], str]]:
    """In a thread: the indexes of the damaged chunks of each row, and why others could not be looked at."""
    found = []
    for row, listed in zip(rows, chunks, strict=True):
        broken: list[int] = []
        unchecked = ""
        fd: int | None = None
        for index, checksum, stored_bytes in listed:
            extent = chunk_extent(index, row.version.size, row.chunk_bytes)
            answer = read_object(disk, row.object_id, fd, extent, checksum, stored_bytes)
            fd = answer.opened_fd if fd is None else fd
            if answer.error is not None and answer.error.errno in _SAY_NOTHING:
                unchecked = answer.error.strerror or str(answer.error)
            elif answer.data is None:
                broken.append(index)
        if fd is not None:
            disk.close_fd(fd)
        found.append((broken, unchecked))
    return found
