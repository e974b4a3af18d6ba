"""Attributes of one source inode, as stat(2) gave them, and the version they stand for. Immutable; no I/O here."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from typing import NamedTuple

_LAST_NS = (1 << 63) - 1
"""2262-04-11. Broken headers and careless copies bring later times, which no database column and no kernel interface in
nanoseconds can hold."""

_PASSING = "~"


_SEEN = struct.Struct("=iIIIIIQQQQQqqqIIIxxxx")
SEEN_BYTES = _SEEN.size
"""Of one name."""

_VERSION = struct.Struct("=24xQQ32xqq4xIIxxxx")
"""Of the same: inode, size, mtime and ctime."""
assert _VERSION.size == SEEN_BYTES

_FLAGS = struct.Struct("=100xI")
assert _FLAGS.size == SEEN_BYTES

_NAMES = struct.Struct("=iII92x")
assert _NAMES.size == SEEN_BYTES

_NO_ACL = 1


def attributes_of(seen: bytes, index: int) -> Attributes | None:
    """What stats of many names of one directory have said, as one run of bytes: see mountd/native/seen.h. No I/O here.

    Of the name at `index`; None: there is no such name. Raises OSError as its stat did.
    """
    failed, mode, nlink, uid, gid, block_bytes, inode, size, blocks, rdev, device, *times = _SEEN.unpack_from(
        seen, index * SEEN_BYTES
    )
    if failed == errno.ENOENT:
        return None
    if failed:
        raise OSError(failed, "stat")
    atime_ns, mtime_ns, ctime_ns = (seconds * 10**9 + part for seconds, part in zip(times[:3], times[3:], strict=True))
    return Attributes(
        mode, inode, nlink, uid, gid, rdev, size, blocks, block_bytes, atime_ns, mtime_ns, ctime_ns, device
    )


def has_no_acl(seen: bytes) -> bool:
    """Whether it was seen that this file has no ACL of its own."""
    (flags,) = _FLAGS.unpack(seen)
    return bool(flags & _NO_ACL)


def version_of(seen: bytes, source_id: str) -> Version:
    """Of the regular file that was seen, on the file system of the source's root."""
    inode, size, mtime_s, ctime_s, mtime_ns, ctime_ns = _VERSION.unpack(seen)
    return Version(source_id, inode, size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns)


def seen_as(attributes: Attributes) -> bytes:
    """The same of one name."""
    times_ns = attributes.atime_ns, attributes.mtime_ns, attributes.ctime_ns
    return _SEEN.pack(
        0,
        attributes.mode,
        attributes.nlink,
        attributes.uid,
        attributes.gid,
        attributes.block_bytes,
        attributes.inode,
        attributes.size,
        attributes.blocks,
        attributes.rdev,
        attributes.device,
        *(ns // 10**9 for ns in times_ns),
        *(ns % 10**9 for ns in times_ns),
    )


class SeenNames(NamedTuple):
    """An answer about many names."""

    names: list[bytes]
    seen: bytes
    """SEEN_BYTES for each of them."""
    plain: bytearray
    """1 for each that is a regular file on the file system of the source's root."""
    others: dict[int, Attributes | None]
    """What all the others are, by index; None: there is no such name."""

    def attributes(self, index: int) -> Attributes | None:
        """Of one of them."""
        return attributes_of(self.seen, index) if self.plain[index] else self.others[index]


def has_one_name(seen: bytes) -> bool:
    """Whether this is a regular file without hard links."""
    _, mode, names = _NAMES.unpack(seen)
    return stat.S_ISREG(mode) and names == 1


def is_plain(attributes: Attributes | None) -> bool:
    """Whether it is a regular file."""
    return attributes is not None and stat.S_ISREG(attributes.mode)


def seen_names(names: Sequence[bytes], found: Sequence[Attributes | None], device: int) -> SeenNames:
    """The same of what was asked for by itself. `device`: that of the source's root."""
    plain = bytearray(
        one is not None and is_plain(one) and one.device == device and not one.file_system for one in found
    )
    seen = b"".join(seen_as(one) if one is not None else bytes(SEEN_BYTES) for one in found)
    return SeenNames(list(names), seen, plain, {i: one for i, one in enumerate(found) if not plain[i]})


def stored_ns(time_ns: int) -> int:
    """A time as a version has it: nanoseconds since the epoch, at most what 64 bits hold."""
    return time_ns if -_LAST_NS <= time_ns <= _LAST_NS else max(-_LAST_NS, min(time_ns, _LAST_NS))


def passing_id() -> str:
    """An identity that nobody else has, nor will have: for what cannot be told from others for longer than we look."""
    return _PASSING + os.urandom(8).hex()


def is_lasting(source_id: str) -> bool:
    """Whether a later daemon, and those of other nodes, call the same file system so."""
    return not source_id.startswith(_PASSING)


class Version(NamedTuple):
    """Which bytes of which file. Two equal versions have equal bytes; all bytes of one handle belong to one version.

    The source id is the identity of the file system that the file lies on, SOURCE's own or one mounted below it (see
    `mountd/source/identity.py`); st_dev is never part of it, because it changes at every remount and differs between
    nodes. ctime is: a rewrite of the same size with the mtime put back shows only there.
    """

    source_id: str
    """16 hexadecimal digits; a ~ before them if they are good for one daemon's life only."""
    inode: int
    """st_ino at the source: hard links share it, and so share what is staged."""
    size: int
    """Bytes."""
    mtime_ns: int
    ctime_ns: int


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
