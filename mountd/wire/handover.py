"""What the keeper of a mount hands to each daemon that it starts on the mount's connection.

It comes on stdin beside the configuration, as the key `handover` of the same JSON object (`init` in base64, since JSON
has no bytes); the descriptors come as ancillary data of the same message, in the order of their fields. Only data:
opens, reads and closes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from hfs.mountd.core.errors import ConfigError

_DESCRIPTORS = 4
"""That come with it at least: connection, source, two of the journal. A keeper of a later release says how many."""


class Handover(msgspec.Struct, frozen=True):
    """One daemon's share of a mount that outlives it."""

    connection_fd: int
    """The descriptor of /dev/fuse that the mount answers on."""
    init: bytes
    """The kernel's INIT request as it was read. Answered once, by the first daemon; each later one is fed it again."""
    source_fd: int
    """SOURCE's directory, opened before the mount was made."""
    journal_fds: tuple[int, int]
    """Two memfds that live as long as the mount."""
    generation: int
    """0 for the first daemon of a mount, one more for each that follows."""
    resend: bool = True
    """Whether this kernel can be asked to send again what the daemon before had taken."""
    device: str = ""
    """"MAJOR:MINOR" of the mount, as in mountinfo; empty: of one that was given, by a kernel that does not tell."""
    keeper_pid: int = 0
    mounted_s: float = 0.0
    """When the mount was made, in seconds since the epoch."""
    restarts: int = 0
    """Daemons that ended without being asked to, since the mount was made."""
    last_end: str = ""
    """How the last of them ended, in words; empty if none has."""
    given: bool = False
    """Somebody else has made the mount, and takes it away; it may not be seen from here."""
    asked: bool = False
    """Somebody waits for this daemon, who has just said how it is to be: it fails where that cannot be. Every other one
    goes on as well as it can."""
    foreign_pids: bool = False
    """Requests carry the numbers of threads in another pid namespace than ours: that of who has mounted."""
    opens_fd: int = -1
    """A memfd as well: how many have the handles open that the data plane has given out. -1: the keeper has none."""
    beats_fd: int = -1
    """A memfd in which the event loop and the threads that read requests say that they go on
    (mountd/supervisor/pulse.py). -1: the keeper looks at none."""
    lingers: bool = False
    """A daemon before was killed and does not go: a thread of it sleeps in the kernel, and its locks stay."""
    hung: int = 0
    """Of `restarts` those that were ended since they did not answer."""


def descriptors_of(data: bytes) -> int:
    """How many of the descriptors that came with it belong to the handover."""
    try:
        return int((json.loads(data).get("handover") or {}).get("descriptors", _DESCRIPTORS))
    except (ValueError, TypeError, AttributeError):
        return _DESCRIPTORS  # `handed_over` says what is wrong


def handed_over(data: bytes, descriptors: Sequence[int]) -> Handover:
    """The handover in what a daemon got on stdin. Raises ConfigError for something else."""
    try:
        record = json.loads(data)["handover"]
        connection, source, first, second, *opens = descriptors
        numbers = {"connection_fd": connection, "source_fd": source, "journal_fds": (first, second)}
        numbers |= dict(zip(("opens_fd", "beats_fd"), opens, strict=False))
        return msgspec.convert({**record, **numbers}, Handover)
    except (LookupError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the handover cannot be read: {error}") from None
