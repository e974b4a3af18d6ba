"""What the ledger keeps of one cache, as bytes, each part with a checksum.

In a block of its own its grant, its claims, and how its readers wait; behind that what it is and serves. A grant is
written by one write of 40 bytes, which a kill does not cut in two; what follows may be cut, and is then not known.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import msgspec
import xxhash

from hfs.policies.prefetch.yielding import Waits

_GRANT_MAGIC, _NOTICE_MAGIC = b"hfs-room", b"hfs-wait"
_GRANT = struct.Struct("<8sQQQ")  # magic, granted, used, last use
_CLAIMS = struct.Struct("<QQ")
_CLAIMS_AT = 512
"""Of their own sector."""
_NOTICE = struct.Struct("<8sQQQQQQQ")  # magic, told, then waits, waited, waiting for the source and for the disk
_NOTICE_AT = 1024
_CHECKSUM_BYTES = 8
_DETAIL_AT = 4096
"""Of its own block."""
_HEAD = struct.Struct("<QQ")  # length, checksum
_MAX_DETAIL_BYTES = 1 << 16
"""A dozen paths at most."""
_MOST = (1 << 64) - 1


class Quota(NamedTuple):
    """What a cache may hold, and holds."""

    granted_bytes: int
    used_bytes: int = 0
    """As of the last time that its daemon wrote it down."""
    used_s: int = 0
    """Seconds since the epoch of the same."""


class QuotaRequest(NamedTuple):
    """What a cache claims of the room."""

    pinned_bytes: int
    """Of what it holds, what it gives up for nobody."""
    lacks_bytes: int
    """What it waits for that others hold beyond a fair share."""


class Notice(NamedTuple):
    """How the readers of a daemon wait."""

    told_ns: int
    """When it was written."""
    source: Waits
    disk: Waits
    """For the disk of the cache."""


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


def write_grant(fd: int, grant: Quota) -> None:
    """Raises OSError."""
    os.pwrite(fd, _sealed(_GRANT.pack(_GRANT_MAGIC, *grant)), 0)


def read_grant(fd: int) -> Quota | None:
    """None: there is none, or it is damaged. Raises OSError."""
    body = _unsealed(os.pread(fd, _GRANT.size + _CHECKSUM_BYTES, 0), _GRANT.size)
    magic, *figures = _GRANT.unpack(body) if body is not None else (b"",)
    return Quota(*figures) if magic == _GRANT_MAGIC else None


def write_claims(fd: int, claims: QuotaRequest) -> None:
    """Raises OSError."""
    os.pwrite(fd, _sealed(_CLAIMS.pack(*claims)), _CLAIMS_AT)


def read_claims(fd: int) -> QuotaRequest:
    """0 where nobody has said, or that is damaged. Raises OSError."""
    body = _unsealed(os.pread(fd, _CLAIMS.size + _CHECKSUM_BYTES, _CLAIMS_AT), _CLAIMS.size)
    return QuotaRequest(0, 0) if body is None else QuotaRequest(*_CLAIMS.unpack(body))


def write_notice(fd: int, notice: Notice) -> None:
    """Raises OSError."""
    figures = (min(max(0, figure), _MOST) for figure in (notice.told_ns, *notice.source, *notice.disk))
    os.pwrite(fd, _sealed(_NOTICE.pack(_NOTICE_MAGIC, *figures)), _NOTICE_AT)


def read_notice(fd: int) -> Notice | None:
    """None: there is none, or it is being written. Raises OSError."""
    body = _unsealed(os.pread(fd, _NOTICE.size + _CHECKSUM_BYTES, _NOTICE_AT), _NOTICE.size)
    magic, *figures = _NOTICE.unpack(body) if body is not None else (b"",)
    return Notice(figures[0], Waits(*figures[1:4]), Waits(*figures[4:])) if magic == _NOTICE_MAGIC else None


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


def _sealed(body: bytes) -> bytes:
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(_CHECKSUM_BYTES, "little")


def _unsealed(data: bytes, size: int) -> bytes | None:
    """The body of so many bytes; None: it is cut short or damaged."""
    return data[:size] if _sealed(data[:size]) == data and len(data) == size + _CHECKSUM_BYTES else None
