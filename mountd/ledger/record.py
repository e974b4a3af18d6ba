"""What the ledger keeps of one cache, as bytes: its grant and its pins in a block of their own, what it is and serves
behind that.

A grant is written by one write of 40 bytes, which a kill does not cut in two; what follows may be cut, and is then not
known. Both have a checksum.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import msgspec
import xxhash

_MAGIC = b"hfs-room"
_GRANT = struct.Struct("<8sQQQQ")  # magic, granted, used, last use, checksum of what is before
_PINNED = struct.Struct("<QQ")  # bytes, checksum
_PINNED_AT = 512
"""Of its own sector."""
_DETAIL_AT = 4096
"""Of its own block."""
_HEAD = struct.Struct("<QQ")  # length, checksum
_MAX_DETAIL_BYTES = 1 << 16
"""A dozen paths at most."""


class Grant(NamedTuple):
    """What a cache may hold, and holds."""

    granted_bytes: int
    used_bytes: int = 0
    """As of the last time that its daemon wrote it down."""
    used_s: int = 0
    """Seconds since the epoch of the same."""


class ServedSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache is of, and the daemon that has it. Paths are bytes: they need not be text."""

    source: bytes
    device: int
    """st_dev of SOURCE, as this machine sees it while it is mounted."""
    inode: int
    mountpoint: bytes = b""
    control: bytes = b""
    """The socket of its daemon."""
    pid: int = 0


def write_grant(fd: int, grant: Grant) -> None:
    """Raises OSError."""
    body = _GRANT.pack(_MAGIC, *grant, 0)[:-8]
    os.pwrite(fd, body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"), 0)


def read_grant(fd: int) -> Grant | None:
    """None: there is none, or it is damaged. Raises OSError."""
    data = os.pread(fd, _GRANT.size, 0)
    if len(data) < _GRANT.size or xxhash.xxh3_64_intdigest(data[:-8]).to_bytes(8, "little") != data[-8:]:
        return None
    magic, *figures, _ = _GRANT.unpack(data)
    return Grant(*figures) if magic == _MAGIC else None


def write_pinned(fd: int, pinned_bytes: int) -> None:
    """How much of what the cache holds is not to be asked for. Raises OSError."""
    body = pinned_bytes.to_bytes(8, "little")
    os.pwrite(fd, _PINNED.pack(pinned_bytes, xxhash.xxh3_64_intdigest(body)), _PINNED_AT)


def read_pinned(fd: int) -> int:
    """0 where nobody has said, or that is damaged. Raises OSError."""
    data = os.pread(fd, _PINNED.size, _PINNED_AT)
    if len(data) < _PINNED.size:
        return 0
    pinned_bytes, checksum = _PINNED.unpack(data)
    return int(pinned_bytes) if xxhash.xxh3_64_intdigest(data[:8]) == checksum else 0


def write_serving(fd: int, serving: ServedSource) -> None:
    """Raises OSError."""
    body = msgspec.msgpack.encode(serving)
    os.pwrite(fd, _HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body, _DETAIL_AT)


def read_serving(fd: int) -> ServedSource | None:
    """None: there is none, or it is cut short. Raises OSError."""
    head = os.pread(fd, _HEAD.size, _DETAIL_AT)
    if len(head) < _HEAD.size:
        return None
    size, checksum = _HEAD.unpack(head)
    body = os.pread(fd, min(size, _MAX_DETAIL_BYTES), _DETAIL_AT + _HEAD.size)
    if xxhash.xxh3_64_intdigest(body) != checksum:
        return None
    try:
        return msgspec.msgpack.decode(body, type=ServedSource)
    except msgspec.MsgspecError:
        return None
