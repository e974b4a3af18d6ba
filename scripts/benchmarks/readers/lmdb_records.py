"""Records of the LMDB of `scripts/bench lmdbio`: pictures in the framing of Caffe's Datum, which prove themselves.

Nothing is read here.

A Datum is a protocol buffer: channels, height, width, data, label (fields 1 to 5). Before them stands a field that
Caffe does not know and skips, with the record's number and a checksum of all that follows.
"""

import struct
import zlib
from functools import cache

import numpy as np

PIXELS = 3 * 32 * 32
"""Bytes of a picture of CIFAR-10."""

_HEAD = struct.Struct("<2sQI")
"""Field 15, twelve bytes: the number, and the CRC-32 of what follows."""
_FIELD_15 = bytes((15 << 3 | 2, 12))
_SHAPE = bytes((1 << 3, 3, 2 << 3, 32, 3 << 3, 32, 4 << 3 | 2, PIXELS & 127 | 128, PIXELS >> 7))
_LABEL = 5 << 3

FIRST_PIXEL = _HEAD.size + len(_SHAPE)
RECORD_BYTES = FIRST_PIXEL + PIXELS + 2

_NOISE_BYTES = 65_521
"""A prime: pictures repeat after so many records, and then with another number and checksum."""


@cache
def _noise() -> bytes:
    return np.random.default_rng(1).bytes(_NOISE_BYTES + PIXELS)


def key(number: int) -> bytes:
    """As Caffe's tools write it: ascending with the number up to 99 999 999."""
    return b"%08d" % number


def record(number: int) -> bytes:
    start = number * 4001 % _NOISE_BYTES
    rest = _SHAPE + _noise()[start : start + PIXELS] + bytes((_LABEL, number % 10))
    return _HEAD.pack(_FIELD_15, number, zlib.crc32(rest)) + rest


def check(number: int, found: bytes | memoryview) -> None:
    """Raise ValueError unless these are the bytes of record `number`, all of them."""
    if len(found) != RECORD_BYTES:
        raise ValueError(f"record {number} has {len(found)} bytes of {RECORD_BYTES}")
    field, has, checksum = _HEAD.unpack_from(found)
    if field != _FIELD_15 or has != number or zlib.crc32(found[_HEAD.size :]) != checksum:
        raise ValueError(f"record {number} holds other bytes, of record {has} by its head")
