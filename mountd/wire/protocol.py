"""The words and frames of the control socket, for both of its ends.

    client                          daemon
      one request  ------------->
                   <-------------   Progress or Rows, any number
                   <-------------   Result or Failure, then the daemon closes

A frame is a length (4 bytes, big-endian) and that many bytes of msgpack: a map whose "type" names one of the structs
below. One connection carries one request; a client that wants to stop one closes the connection. Neither end believes
the other: a frame that is too long, means nothing or has a number out of its range is a ProtocolError. After a Join the
connection stays open and speaks the words of `mountd/wire/hints.py`.

`mountd/control/connection.py` (trio) and `hfs/client/client.py` (plain sockets, inside training jobs) use it. It
imports no event loop and touches no socket itself.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from hfs.mountd.core.errors import HfsError

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024**2
"""A million paths of 60 bytes fit one request; a hostile length cannot make the daemon allocate more."""


class ProtocolError(HfsError):
    """The other end sent something that is not this protocol."""


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Unknown fields are passed over, so that an older client can talk to a newer daemon."""


class Status(Message, frozen=True):
    """How is the daemon? The answer is one Result whose `detail` is the object of `hfs status --json`."""

    page_cache: bool = True
    """Look at the page cache anew, for 50 ms at most; False: what is told of it is of the last look, or nothing."""
    makes_overlay: bool = False
    """Whoever asks is about to make an overlay over the mount."""


class Warm(Message, frozen=True):
    """Stage these files, and all files below these directories."""

    paths: list[bytes]
    """Relative to the root of the mount, no leading slash; b"" is the root."""
    jobs: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Files at a time; 0: the daemon chooses."""
    pin: bool = False
    """What is staged in the end goes only by name from then on. The Result's `detail` then has "pinned_files"."""


class Unpin(Message, frozen=True):
    """What is staged of these files and directories may go for room again. The answer is a Result: `files` that were
    pinned, `bytes` of their room."""

    paths: list[bytes]
    """Empty: all that is pinned, whatever source it belongs to."""


class Refresh(Message, frozen=True):
    """These files and directories, and all below them, may have changed at the source: look at them anew. The answer is
    a Result: `files` are names that were known, `failed` directories of which the kernel could not be told."""

    paths: list[bytes]


class Estimate(Message, frozen=True):
    """What would a Warm of these paths read and keep? The answer is Progress, any number, then a Result: `files` and
    `bytes` of all, `skipped` that are staged, and in `detail` "missing_bytes" to be read, "room_bytes" that they take
    on the disk, "free_bytes" that there is for them, and "seconds" that it would take as fast as the daemon has warmed
    so far, or None where it has not."""

    paths: list[bytes]


class Evict(Message, frozen=True):
    """Drop what is staged of these files and directories; open files stay."""

    paths: list[bytes]
    all: bool = False
    """Everything in the cache, whatever source it belongs to; `paths` is then empty."""
    older_than_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Only what was last used longer ago than this."""


class Check(Message, frozen=True):
    """Read what is staged again and compare with its checksums."""

    paths: list[bytes]
    """Empty: all that is staged."""
    against_source: bool = False
    """Compare the bytes with those of the source as well."""


class List(Message, frozen=True):
    """What is staged? The answer is Rows, any number, then a Result with the sums."""

    paths: list[bytes]
    """Empty: all."""


class Record(Message, frozen=True):
    """What is read from now on? The answer is Touches, any number, until the client closes the connection."""


class Directory(Message, frozen=True):
    """Which node has what? The answer is one Result whose `detail` tells how to compute it, the same on all nodes:

    {"nodes": names, "hashes": 64-bit hashes of them, "weights", "data": of `policies.cluster.placement.Nodes`, "node":
    the number of the one that answers, "placement": "partition" or "replicate", "chunk_bytes": int, "gone": numbers of
    nodes that the one that answers has lost: only these may differ, and where nodes come and go they are left out}. A
    daemon without peers names itself alone; if it was to have some, "alone" says why it has none."""


class Cluster(Message, frozen=True):
    """How are all nodes of the job? The answer is one Result whose `detail` is {"nodes": a list of {"node": name,
    "figures": of `mountd.control.control`, and of `JobView.said`} or, of one that does not answer, {"node": name,
    "error": text}}.
    """


class Join(Message, frozen=True):
    """A learner (or a command that speaks for one) will say in which order it reads.

    The answer is a Result whose `detail` is {"layout": "known"} or {"layout": "wanted"}, or a Failure. Then the
    connection carries the messages of `mountd/wire/hints.py`, and the learner leaves when it is closed.
    """

    layout: str
    """Digest of the layout: 32 hexadecimal digits, xxh3_128 of its encoding."""
    name: str = ""
    """For people: "train", "val"."""
    job: str = ""
    """Learners of one job have ranks of their own; two jobs may have the same."""
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    world: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1
    process: str = ""
    """A random text of the process that joins. Two connections of one process never stand in each other's way; those of
    two processes with the same job, layout and rank do."""


class Touch(msgspec.Struct, frozen=True, array_like=True):
    """A read that reached the daemon, or the open of a small file: then the whole of it."""

    path: bytes
    offset: int
    size: int
    at_us: int
    """Microseconds of a clock of the daemon that never goes back."""
    thread: int = 0
    """Which thread reads, by its id for the kernel; 0: not known."""


class Touches(Message, frozen=True):
    """Part of the answer to Record. Opens of small files may come some milliseconds behind what happened after them."""

    touches: list[Touch]
    lost: int = 0
    """How many more there were, which the client was too slow to take."""


class PathFault(msgspec.Struct, frozen=True):
    """One path that failed, and why."""

    path: bytes
    message: str
    of_cache: bool = False
    """The cache is the reason, such as a full one, and whichever path was next would have failed."""


class Progress(Message, frozen=True):
    """How far a Warm, Check or Evict is. Figures are totals since its start, except `faults`: new ones only."""

    files: int = 0
    """Done, `skipped` among them."""
    bytes: int = 0
    """Done; of a skipped file, its size."""
    failed: int = 0
    skipped: int = 0
    """Files where nothing was to be done, being staged already (warm); or could be, being open (evict). The latter are
    not among `files`."""
    files_total: int | None = None
    """Known so far; None: not known yet."""
    bytes_total: int | None = None
    walking: bool = False
    """Directories are still being listed, so the totals grow."""
    faults: list[PathFault] = []
    room_bytes: int | None = None
    """Of a Warm that does not fit, once that is known: what it would take on the disk, as far as is known,"""
    free_bytes: int | None = None
    """and what there is for it."""


class Row(msgspec.Struct, frozen=True):
    """One staged file."""

    path: bytes
    """Relative to the root of the mount; empty where the daemon has not seen the file's name since it started."""
    size: int
    staged_bytes: int
    complete: bool
    source_id: str = ""
    inode: int = 0
    opened: bool = False
    last_use_ns: int = 0
    """Nanoseconds since the epoch; 0: not known."""
    pinned: bool = False


class Rows(Message, frozen=True):
    """Part of the answer to List."""

    rows: list[Row]


class Result(Message, frozen=True):
    """Done; the last word. Figures mean what they mean in Progress; `faults` holds those not yet sent."""

    files: int = 0
    bytes: int = 0
    failed: int = 0
    skipped: int = 0
    faults: list[PathFault] = []
    detail: dict[str, Any] = {}


class Failure(Message, frozen=True):
    """Nothing was done, or it could not go on. `code` is the exit code that a command should end with."""

    message: str
    code: int = 1


Request: TypeAlias = (
    Status | Warm | Estimate | Evict | Unpin | Refresh | Check | List | Record | Directory | Cluster | Join
)
Reply: TypeAlias = Progress | Rows | Touches | Result | Failure

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_encoder = msgspec.msgpack.Encoder()


def packed(value: object) -> msgspec.Raw:
    """What a message may have in the place of `value`, whose texts are UTF-8: of many, each in a step of its own."""
    return msgspec.Raw(_encoder.encode(value))


def encode(message: Message) -> bytes:
    """The frame of a message, header included. Raises ProtocolError when it is longer than MAX_FRAME_BYTES."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:  # a path that is not UTF-8 went into a text field, for example of status
        body = _encoder.encode(_printable(msgspec.to_builtins(message, builtin_types=(bytes, msgspec.Raw))))
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is longer than {MAX_FRAME_BYTES}; send it in parts")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def frame_bytes(header: bytes) -> int:
    """The length that a header announces. Raises ProtocolError for one that no frame may have."""
    size = int.from_bytes(header, "big")
    if len(header) != HEADER_BYTES or not 0 < size <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {size} bytes is not allowed (1 to {MAX_FRAME_BYTES})")
    return size


def decode_request(body: bytes) -> Request:
    """The request in a frame's body. Raises ProtocolError."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a request that means nothing: {error}") from None


def decode_reply(body: bytes) -> Reply:
    """The reply in a frame's body. Raises ProtocolError."""
    try:
        return _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a reply that means nothing: {error}") from None


def _printable(value: Any) -> Any:  # noqa: ANN401 - any tree of builtins
    """The tree with every text made UTF-8: a surrogate becomes its escape, as repr shows it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    return value
