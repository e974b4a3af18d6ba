"""Attributes of one source inode, as stat(2) gave them, and the version they stand for. Immutable; no I/O here."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hfs.mountd.core.version import Version, stored_ns


class Attributes(NamedTuple):
    """What lstat(2) says of one inode. Times in nanoseconds since the epoch, `blocks` in units of 512 bytes."""

    mode: int
    inode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    block_bytes: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    device: int = 0
    """st_dev, to tell inodes of file systems mounted below the source apart; good while they are mounted only."""
    file_system: str = ""
    """Its identity (see `mountd/source/identity.py`); empty for that of the source's root."""

    @classmethod
    def of(cls, result: os.stat_result, file_system: str = "") -> Attributes:
        """From what os.stat or os.fstat returned."""
        return cls(
            result.st_mode,
            result.st_ino,
            result.st_nlink,
            result.st_uid,
            result.st_gid,
            result.st_rdev,
            result.st_size,
            result.st_blocks,
            result.st_blksize,
            result.st_atime_ns,
            result.st_mtime_ns,
            result.st_ctime_ns,
            result.st_dev,
            file_system,
        )

    @property
    def is_file(self) -> bool:
        """A regular file: the only kind whose bytes are fetched and staged."""
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def system(self) -> tuple[str, int]:
        """What it lies on, as far as this daemon has to tell: a st_dev alone may be another's after an unmount."""
        return self.file_system, self.device

    def version(self, source_id: str) -> Version:
        """The version of the file in this state. `source_id`: the identity of the root's file system."""
        times_ns = stored_ns(self.mtime_ns), stored_ns(self.ctime_ns)
        return Version(self.file_system or source_id, self.inode, self.size, *times_ns)
