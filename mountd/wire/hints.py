"""What a learner says on its connection after it has joined, for both ends.

    learner                                daemon
      Join (mountd/wire/protocol.py)  ---->
                                 <----     Result {"layout": "known" | "wanted"}, or Failure and the end
      LayoutPart, one or more    ---->     only if it is wanted
                                 <----     Result, or Failure and the end
      Order, one or more parts   ---->
                                 <----     Result after the last part; Failure: this order is not followed
      At, Waited, Over           ---->     never answered

Frames are those of `mountd/wire/protocol.py`. Indices are little-endian int64 arrays as bytes: an epoch of 1.28 million
samples is one frame of 10 MB. Knows nothing of what it is good for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import xxhash

from hfs.mountd.wire.protocol import Message, ProtocolError

PART_BYTES = 1024**2
"""Bytes of a layout, or indices of an order, in one frame: a millisecond at either end."""

MAX_PART_FRAME_BYTES = 2 * PART_BYTES
"""A frame of a learner is never longer."""

MAX_LAYOUT_BYTES = 1024**3
"""A list of ten million files of a hundred bytes each."""

MAX_ORDER_SAMPLES = 1 << 28
"""2 GiB of indices: what one learner of a node may say of one epoch."""

if TYPE_CHECKING:
    Bytes: TypeAlias = bytes
else:
    Bytes = memoryview
"""Of a frame that was decoded: within its bytes, not a copy, which would take half a second."""


class LayoutFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layout: which bytes of which files each sample is.

    Unknown fields are refused: what is not understood is not followed, and passing over them may take seconds.

    With `extents` empty sample i is the whole of file i. Otherwise sample i is the extents `starts[i]` to
    `starts[i + 1]` (half-open), or the one extent i if `starts` is empty, and extent j is `sizes[j]` bytes at
    `offsets[j]` of file `extents[j]`.
    """

    files: Bytes
    """Paths relative to the root of the mount, no leading slash, joined by zero bytes."""
    extents: Bytes = b""
    """int32: the number of the file that each extent lies in."""
    offsets: Bytes = b""
    """int64."""
    sizes: Bytes = b""
    """int64, each at least 1."""
    starts: Bytes = b""
    """int64, one more than there are samples, from 0, ascending; a sample without bytes has no extent."""
    file_sizes: Bytes = b""
    """int64, bytes of each file when the layout was made; may be missing when there are no extents."""


class LayoutPart(Message, frozen=True):
    """Some bytes of the encoding of a layout (`encode_layout`), in order."""

    data: bytes
    last: bool


class Order(Message, frozen=True):
    """The samples that this learner will read in an epoch, in order; a sample may come more than once.

    A new order replaces the one before: the epoch has begun. With `following` it is that of the epoch after the one
    under way, which makes it known what is needed again and when.
    """

    epoch: int
    indices: bytes
    """int64."""
    start: int = 0
    """Position of the first of these in the order: 0, or where the part before ended."""
    last: bool = True
    following: bool = False
    first: int = 0
    """Position in the epoch of the first index of the order: it may be long, or not known further, and is then told by
    parts of it, each of which replaces the one before."""
    only_given: bool = False
    """The sampler has given all of it out already: nobody knows what it will give out next."""


class At(Message, frozen=True):
    """The sampler has given out so many samples of the epoch."""

    position: int


class Waited(Message, frozen=True):
    """Where the time of an epoch went so far, as the job has measured it. Totals of the epoch, in seconds."""

    epoch: int
    exposed_s: float
    """Waiting for data."""
    compute_s: float
    other_s: float
    batches: int = 0
    workers: int | None = None
    """Processes that the learner has started: at most so many of them load for it. None: it does not say."""
    cores: int = 0
    """Those that it may run on."""


class Over(Message, frozen=True):
    """The epoch has ended, at its end or before: nothing more of its order will be read."""

    epoch: int


LearnerMessage: TypeAlias = LayoutPart | Order | At | Waited | Over

_messages: msgspec.msgpack.Decoder[LearnerMessage] = msgspec.msgpack.Decoder(LearnerMessage)
_layouts: msgspec.msgpack.Decoder[LayoutFrame] = msgspec.msgpack.Decoder(LayoutFrame)


def decode_learner(body: bytes) -> LearnerMessage:
    """The message in a frame's body. Raises ProtocolError."""
    try:
        return _messages.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a learner's message that means nothing: {error}") from None


def encode_layout(layout: LayoutFrame) -> bytes:
    """The encoding that is sent in parts. Raises ProtocolError when it is longer than MAX_LAYOUT_BYTES."""
    blob = msgspec.msgpack.encode(layout)
    if len(blob) > MAX_LAYOUT_BYTES:
        raise ProtocolError(f"a layout of {len(blob)} bytes is longer than {MAX_LAYOUT_BYTES}")
    return blob


def encode_layout_pieces(fields: Mapping[str, tuple[int, Iterable[bytes]]]) -> Iterator[bytes]:
    """That encoding in pieces, none longer than PART_BYTES, made one by one: of each field of a LayoutFrame, in order,
    its length and its bytes, in pieces. Raises ProtocolError when it is longer than MAX_LAYOUT_BYTES."""
    heads = [msgspec.msgpack.encode(name) + _binary_head(size) for name, (size, _) in fields.items()]
    length = 1 + sum(map(len, heads)) + sum(size for size, _ in fields.values())
    if length > MAX_LAYOUT_BYTES:
        raise ProtocolError(f"a layout of {length} bytes is longer than {MAX_LAYOUT_BYTES}")
    waiting = bytearray([0x80 | len(fields)])
    for head, (_, pieces) in zip(heads, fields.values(), strict=True):
        waiting += head
        for piece in pieces:
            waiting += piece
            while len(waiting) > PART_BYTES:
                yield bytes(waiting[:PART_BYTES])
                del waiting[:PART_BYTES]
    yield bytes(waiting)


def _binary_head(size: int) -> bytes:
    """What stands before so many bytes, in msgpack."""
    for kind, width in ((b"\xc4", 1), (b"\xc5", 2)):
        if size < 1 << 8 * width:
            return kind + size.to_bytes(width, "big")
    return b"\xc6" + size.to_bytes(4, "big")


def decode_layout(blob: bytes | memoryview) -> LayoutFrame:
    """The inverse. Raises ProtocolError; the arrays in it are not looked at."""
    try:
        return _layouts.decode(blob)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"a layout that means nothing: {error}") from None


def new_layout_digest() -> xxhash.xxh3_128:
    """Of the pieces that it is updated with."""
    return xxhash.xxh3_128()


def layout_digest(blob: bytes | memoryview) -> str:
    """What a layout is recognised by: 32 hexadecimal digits."""
    digest = new_layout_digest()
    view = memoryview(blob)
    for first in range(0, len(blob), PART_BYTES):
        digest.update(view[first : first + PART_BYTES])
    return digest.hexdigest()
