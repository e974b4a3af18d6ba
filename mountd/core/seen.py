"""What stats of many names of one directory have said, as one run of bytes: see mountd/native/seen.h. No I/O here."""

from __future__ import annotations

import errno
import stat
import struct
from collections.abc import Sequence
from typing import NamedTuple

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.version import Version

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
    """Of the name at `index`; None: there is no such name. Raises OSError as its stat did."""
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
