"""Layouts of TFRecord files: where the data of each record lies, its framing and both checksums verified.

Never runs in a training job. Needs google-crc32c, not TensorFlow. A record is (TensorFlow's record_writer.h)

    length u64 · masked CRC-32C of the length u32 · data · masked CRC-32C of the data u32

and its sample is the data, a serialised tf.train.Example as a rule. Each file is read once from end to end, in blocks
that are read ahead, since the checksums are over all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile
from hfs.layouts.registry import Format
from hfs.layouts.shards import Shard, layout_of, shards_of
from hfs.mountd.wire.layout import LayoutError

_Crc = Callable[[int, bytes], int]

_HEAD_BYTES, _TAIL_BYTES = 12, 4
_MASK_DELTA = 0xA282EAD8
"""Added after a rotation by 15 bits (crc32c.h of TensorFlow)."""


def build_tfrecord(paths: str | Sequence[str], root: str) -> Layout:
    """The layout in which sample i is the data of record i of the files at `paths` below `root`, in their order.

    Raises LayoutError where a file is cut short, compressed, or its checksums are wrong; ConfigError for a path outside
    `root`.
    """
    return layout_of(shards_of(paths, _shard), root, "tfrecord")


def _shard(file: SourceFile) -> Shard:
    extend = _crc32c()
    offsets: list[int] = []
    sizes: list[int] = []
    at = begin = 0
    """Of the record that is looked at, and of `data`, in the file."""
    data = b""
    blocks = file.blocks(file.size)

    def more() -> None:
        nonlocal data, begin
        data, begin = data[at - begin :] + next(blocks), at

    while at < file.size:
        while len(data) - (at - begin) < _HEAD_BYTES and begin + len(data) < file.size:
            more()
        place = at - begin
        length = _length(file, at, data[place : place + _HEAD_BYTES], extend)
        end = at + _HEAD_BYTES + length
        if end + _TAIL_BYTES > file.size:
            raise LayoutError(
                f"{file.path}: cut short: the record at offset {at:,} ends at {end + _TAIL_BYTES:,}, the file at "
                f"{file.size:,}"
            )
        offsets.append(at + _HEAD_BYTES)
        sizes.append(length)
        # A record may be longer than memory: its checksum is made piece by piece.
        at += _HEAD_BYTES
        checksum = 0
        while at + _TAIL_BYTES - begin > len(data) or at < end:
            piece = data[at - begin : end - begin]
            checksum = extend(checksum, piece)
            at += len(piece)
            if at < end or at + _TAIL_BYTES - begin > len(data):
                more()
        place = at - begin
        if _masked(checksum) != struct.unpack_from("<I", data, place)[0]:
            raise LayoutError(
                f"{file.path}: damaged: wrong checksum of the {length:,} bytes at offset {end - length:,}"
            )
        at += _TAIL_BYTES
    return Shard(file.path, file.size, file.mtime_ns, np.array(offsets, np.int64), np.array(sizes, np.int64))


def _length(file: SourceFile, at: int, head: bytes, extend: _Crc) -> int:
    """Of the record at `at`, whose first bytes are `head`."""
    if len(head) < _HEAD_BYTES:
        raise LayoutError(f"{file.path}: cut short: the record at offset {at:,} has {len(head)} bytes")
    length, checksum = struct.unpack("<QI", head)
    if _masked(extend(0, head[:8])) != checksum:
        if not at and head[:2] in {b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda"}:
            raise LayoutError(f"{file.path}: compressed: its records have no place in the file; write it uncompressed")
        fault = "damaged: wrong checksum of the length" if at else "not a TFRecord file: no record"
        raise LayoutError(f"{file.path}: {fault} at offset {at:,}")
    return int(length)


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _crc32c() -> _Crc:
    try:
        import google_crc32c
    except ImportError:
        raise LayoutError("google-crc32c is missing: pip install google-crc32c") from None
    return google_crc32c.extend  # type: ignore[no-any-return] # it has no types


def _recognise(path: str, head: bytes) -> bool:
    if ".tfrecord" in path.rpartition("/")[2]:
        return True
    try:
        return len(head) >= _HEAD_BYTES and _masked(_crc32c()(0, head[:8])) == struct.unpack_from("<I", head, 8)[0]
    except LayoutError:
        return False


FORMAT = Format("tfrecord", _recognise, build_tfrecord)
