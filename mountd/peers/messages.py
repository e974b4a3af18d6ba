"""What the daemons of a job say to each other: small messages, and one `NodeInfo` each when they join; and what they
need of a network for that: small messages in order, and bytes under a tag.

    asks                                     answers
      ChunkRequest(request, path, extent) ------->
                                 <-------    Patience(request), every few seconds as long as it takes
                                 <-------    Offer(request, checksum), and the bytes under the tag `request`
                                 <-------    or Refusal(request)
      Question(request) ---------------->
                                 <-------    Figures(request)
      SlotRequest, SlotDone                 <------>    SlotPending, SlotGranted: see `peers.read_slots`

A request's number is the tag that its bytes come under. Messages are msgpack of the structs below, behind a
checksum; whoever gets one that means nothing drops it and counts it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib import metadata
from typing import Protocol, TypeAlias

import msgspec
import xxhash

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import HfsError


class Listener(Protocol):
    """Who hears the other nodes. On the event loop; never waits."""

    def received(self, sender: int, data: bytes) -> None:
        """A small message has come."""

    def lost(self, node: int) -> None:
        """A node has left or failed, and answers nobody, unless it comes back."""

    def joined(self, node: int, info: NodeInfo) -> None:
        """A node has come that was not gathered, or is here again."""


class Transport(Protocol):
    """A network between this node and `count` - 1 others: `peers.mpi`, `peers.zeromq`, in tests a fake in virtual time.

    Event loop only; no method waits, every callback comes on the loop.
    """

    kind: str
    """For people."""
    number: int
    """Of this node, in [0, count)."""
    last_tag: int
    """Tags are in [1, last_tag]."""

    @property
    def count(self) -> int:
        """How many there are, those that have gone included. Grows where nodes may come."""

    def listen(self, listener: Listener) -> None:
        """From now on this one hears what comes, and before that what has come already. Called once."""

    def leave_nowait(self) -> None:
        """Tell all others that this node goes: they hear that it is lost."""

    def send_nowait(self, to: int, message: bytes) -> None:
        """Send a small message. To a node that has gone it is lost without a word."""

    def give_nowait(self, to: int, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        """Send bytes that a message has just told of; they are read until `done`, which may never be called."""

    def take_nowait(self, giver: int, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        """Receive all of `into`, called when the message comes that says that it is given; it may be written to until
        `done`, which says whether it is whole.

        For a node that hangs or has gone `done` may never be called, and `into` is never free.
        """


class MessageError(HfsError):
    """A message that means nothing."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


class ChunkRequest(_Message, frozen=True, tag=1):
    """Bytes [start, start + size) of a file, all in one chunk of it. With size 0: only have that chunk staged."""

    request: int
    path: bytes
    """Relative to the root of the mount."""
    version: Version
    chunk_bytes: int
    start: int
    size: int
    here_only: bool = False
    """Not if the source would have to be asked."""


class Offer(_Message, frozen=True, tag=2):
    """The bytes follow, unless none were asked for."""

    request: int
    size: int
    checksum: int
    """xxh3_64 of the bytes."""


class Refusal(_Message, frozen=True, tag=3):
    """Go to the source."""

    request: int
    busy: bool = False


class Patience(_Message, frozen=True, tag=4):
    """It takes longer, and will come."""

    request: int


class Question(_Message, frozen=True, tag=5):
    """How are you?"""

    request: int


class Figures(_Message, frozen=True, tag=6):
    """The answer to a Question."""

    request: int
    figures: dict[str, int]


class SlotRequest(_Message, frozen=True, tag=7):
    """Chunk `index` of a file is to be read from the source."""

    request: int
    """Of the read slots of the node that says it: they have numbers of their own."""
    path: bytes
    index: int
    urgent: bool
    """A reader waits for it."""


class SlotPending(_Message, frozen=True, tag=8):
    """Others read; your slot comes."""

    request: int


class SlotGranted(_Message, frozen=True, tag=9):
    """Read."""

    request: int


class SlotDone(_Message, frozen=True, tag=10):
    """It is read, or not wanted any more."""

    request: int


Message: TypeAlias = (
    ChunkRequest | Offer | Refusal | Patience | Question | Figures | SlotRequest | SlotPending | SlotGranted | SlotDone
)


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of itself when it joins."""

    host: str = msgspec.field(default_factory=socket.gethostname)
    hfs_version: str = msgspec.field(default_factory=lambda: metadata.version("hfs-cache"))
    source_id: str = ""
    root_inode: int = 0
    """Of the directory that is shown: paths are relative to it."""
    chunk_bytes: int = 0
    placement: str = ""
    """As it was configured."""
    stagger_job: int = 0
    peer_timeout_s: float = 0
    capacity_bytes: int = 0
    """0: nothing is staged there."""
    data_bytes: int | None = None
    """What all files take in a cache, as the first node has found; None: too many to tell."""
    encodes: bool = False
    """It keeps encoded what does not fit."""
    settled: str = ""
    """The placement of the job that this node is in already; empty: it is about to join one."""
    fault: str = ""
    """Why this daemon cannot start: then none does, and all else is not said."""
    reader: str = ""
    """The user as whom it reads the source, if that is another one, as the configuration has it."""


_DIGEST_BYTES = 8
"""A request with one wrong bit would be answered with wrong bytes, their checksum right."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """As it is sent."""
    body = _encoder.encode(message)
    return xxhash.xxh3_64_digest(body) + body


def decode(data: bytes | memoryview) -> Message:
    """The message that was sent. Raises MessageError."""
    if len(data) < _DIGEST_BYTES or xxhash.xxh3_64_digest(data[_DIGEST_BYTES:]) != data[:_DIGEST_BYTES]:
        raise MessageError("a message of a peer whose checksum is wrong")
    try:
        return _decoder.decode(data[_DIGEST_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"a message of a peer that means nothing: {error}") from None
