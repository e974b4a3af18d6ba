"""What stands between pyfuse3 and libfuse (mountd/native/_fastpath.c): what it is told, and what it says of a request.

Imported before pyfuse3, because importing loads the extension in front of libfuse. Event loop only, and never waits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from hfs.mountd.core.errors import MountError
from hfs.mountd.native.extension import EXTENSION

_BACKING_OPEN = 0x4010E501
"""_IOW(229, 1, struct fuse_backing_map { int32_t fd; uint32_t flags; uint64_t padding; }), <linux/fuse.h>."""
_BACKING_CLOSE = 0x4004E502
"""_IOW(229, 2, uint32_t)."""

_RESEND = struct.pack("=IiQ", 16, 7, 0)
"""struct fuse_out_header with FUSE_NOTIFY_RESEND."""

_BUILT_ANEW = "run scripts/setup again, and look at LD_PRELOAD"

SEEK = 1 << 30
"""A read of so many bytes and SEEK_DATA or SEEK_HOLE is an lseek(2) with that, answered with an `OFFSET`."""

OFFSET = struct.Struct("=Q")
"""struct fuse_lseek_out."""

_REASONS = {
    errno.EPERM: "it needs CAP_SYS_ADMIN: mount as root",
    errno.ELOOP: "the cache directory lies on a stacked file system (an overlay): put it on a disk of its own",
    errno.EOPNOTSUPP: "the file system of the cache directory cannot be read by the kernel for us",
    errno.ENOTTY: "the kernel has no FUSE passthrough: Linux 6.9 or newer is needed",
}


NAME_ONLY: int = EXTENSION.NAME_ONLY
"""As `generation` of a directory entry: it stands for the names of `answer_with_names`, which have inode number and
type and no node."""

LIBFUSE: str = EXTENSION.LIBFUSE
"""The version of libfuse."""

feed: Callable[[bytes], None] = EXTENSION.feed
"""Before the mount: the session is given this INIT request, which the keeper of the mount has read."""

go_on: Callable[[int], None] = EXTENSION.go_on
"""A request that was put off is handed to its handler, in a moment."""

give_up: Callable[[int, int], None] = EXTENSION.give_up
"""A request that was put off is answered with this errno."""

show_inode: Callable[[int, int], None] = EXTENSION.show
"""The answer that follows with the attributes of this node id shows that inode as its number."""

answer_with_backing: Callable[[int, int], None] = EXTENSION.back
"""The open whose handler is about to return this handle is passed through to this backing file."""

names_answered: Callable[[], int] = EXTENSION.taken
"""How many of the names of `answer_with_names` the reply has taken."""


_LONGEST_S = 86_400.0
LOOK_AT_MOST_S = 1.0
"""A cache disk that takes longer has perhaps failed: what lies there is said not to be staged."""


class XattrAnswers:
    """Extended attributes that the data plane answers (native/plane/answers.c, overlay.c): what it is told of them.

    Event loop only; never waits, but for answers under way.
    """

    def __init__(self) -> None:
        self._tells = self._holds = False

    def root_without_acl(self, valid_s: float) -> None:
        """So long the root of the mount has no ACL; 0: it is not known."""
        EXTENSION.plane_root_without_acl(int(min(valid_s, _LONGEST_S) * 1e9))

    @staticmethod
    def ask_for_opens(are: bool) -> None:
        """Whether opens of slots come to Python too, which asks the source as the user who opens."""
        EXTENSION.plane_slots_are_asked_for(are)

    def tell_overlays(self, on: bool) -> None:
        """Whether overlays over the mount are told where staged slots lie, from now on."""
        self._tells = on
        self._tell()

    def hold_overlays(self, on: bool) -> None:
        """Whether all that they ask for comes to Python for a moment."""
        self._holds = on
        self._tell()

    def _tell(self) -> None:
        EXTENSION.plane_overlay(self._tells and not self._holds)

    def stop_telling(self, numbers: Sequence[int]) -> tuple[Sequence[int], bool]:
        """No overlay is told of these objects any more when this returns. Those that were told since the last call,
        more than once perhaps; and whether some of them were lost."""
        return self._untold(numbers, on=True)

    def tell_again(self, numbers: Sequence[int]) -> None:
        """These may be told again. What was told meanwhile is told by the next `stop_telling`."""
        self._untold(numbers, on=False)

    def _untold(self, numbers: Sequence[int], *, on: bool) -> tuple[Sequence[int], bool]:
        told, some_are_lost = EXTENSION.plane_untold(array("Q", numbers).tobytes(), on)
        return array("Q", told), some_are_lost

    def tellable(self, nodes: Sequence[int]) -> Sequence[int]:
        """Those of these that are slots of which an overlay would be told."""
        return array("Q", EXTENSION.plane_tellable(array("Q", nodes).tobytes()))

    def give_up_looks(self) -> None:
        """To be called some times a second: whoever waits for the cache disk does so no longer."""
        EXTENSION.plane_give_up_looks(int(LOOK_AT_MOST_S * 1e9))


class Request(NamedTuple):
    """The request whose handler runs."""

    token: int
    thread_id: int
    """Of the caller; 0 if it is in a pid namespace that we do not see."""
    uid: int
    node_id: int
    """Of a READ or a seek."""
    unique: int
    """The kernel's number of it. One that the kernel sends again keeps its number, but for bit 63."""
    wants_names: bool
    """A readdir that wants names only: they take a quarter of the room.

    The kernel decides: attributes are for the start of a directory, and where the names shown before were looked up.
    """


def request() -> Request:
    """To be asked before the handler's first await."""
    return Request._make(EXTENSION.request())


_READ_AHEAD_KB = 1024
"""1 MiB, the largest FUSE request: a sequential read costs an eighth of the round trips of the default. Larger ones,
where root has raised `fs.fuse.max_pages_limit` (Linux 6.13), did not pay: docs/benchmarks.md."""

MAX_BACKGROUND = 512
"""Twelve readers hung in the source stopped all other cold reads of a mount; 512 is more than a node has readers."""

_FUSECTL = Path("/sys/fs/fuse/connections")


@dataclass
class KernelSettings:
    """What holds for this mount, and why what does not could not be had."""

    read_ahead_kb: int | None = None
    max_background: int | None = None
    notes: list[str] = field(default_factory=list)


def tune(device: str) -> KernelSettings:
    """Raise readahead and background requests of the FUSE mount `device`, "MAJOR:MINOR" as in mountinfo; empty: this
    kernel does not tell which mount it is.

    Neither is needed for correctness: what could not be raised is told with its reason. Blocks.
    """
    settings = KernelSettings()
    if not device:
        settings.notes.append("readahead and background requests stay: the kernel does not tell the mount's device")
        return settings
    bdi = Path(f"/sys/class/bdi/{device}/read_ahead_kb")
    settings.read_ahead_kb = _raise(bdi, _READ_AHEAD_KB, settings, "readahead stays at 128 KiB")
    if not any(_FUSECTL.glob("*")):
        _mount_fusectl(settings)
    connection = _FUSECTL / device.partition(":")[2] / "max_background"
    otherwise = f"{MAX_BACKGROUND} background requests were asked for"
    settings.max_background = _raise(connection, MAX_BACKGROUND, settings, otherwise)
    if settings.max_background:
        _raise(connection.with_name("congestion_threshold"), MAX_BACKGROUND * 3 // 4, settings, "congestion")
    return settings


def _raise(path: Path, value: int, settings: KernelSettings, otherwise: str) -> int | None:
    try:
        if int(path.read_text()) < value:
            path.write_text(str(value))
        return int(path.read_text())
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        settings.notes.append(f"{otherwise}: {path}: {reason}")
        return None


def _mount_fusectl(settings: KernelSettings) -> None:
    try:
        done = subprocess.run(
            ["mount", "-t", "fusectl", "none", str(_FUSECTL)], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        settings.notes.append(f"fusectl could not be mounted: {error}")
        return
    if done.returncode:
        settings.notes.append(f"fusectl could not be mounted: {done.stderr.strip() or done.returncode}")


def want(on_interrupt: Callable[[int], None], at_once: object, *, yield_fd: int, stack_depth: int) -> None:
    """Before the mount. `on_interrupt(token)` is called, on the event loop, when the kernel gives up a request.

    `at_once`: see mountd/fuse/fast_handlers.py. `yield_fd`: a descriptor; while it is readable the event loop has its
    turn before further requests are answered at once. `stack_depth`: 0, or 1 if the cache directory lies on an overlay;
    no overlay can then lie on the mount.
    """
    EXTENSION.want(MAX_BACKGROUND, stack_depth, on_interrupt, at_once, yield_fd)


def libfuse_in_use() -> str:
    """The file of libfuse that this process has loaded, once pyfuse3 was imported. Raises MountError if there are two.

    Requests of a session of the one would be swallowed by the other, or a structure be read past its end.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        paths = {f"/{line.rstrip().partition('/')[2]}" for line in lines if "/libfuse3" in line}
    if len(paths) > 1:
        raise MountError(f"pyfuse3 and the extension have two libfuses ({', '.join(sorted(paths))}): {_BUILT_ANEW}")
    return "".join(paths)


def check_in_front() -> None:
    """Once the session is made. Raises MountError where pyfuse3 has made it without the extension."""
    if not EXTENSION.found()[0]:
        raise MountError(f"pyfuse3 was built with another libfuse than the extension: {_BUILT_ANEW}")


def resend(connection_fd: int) -> None:
    """Have the kernel send again what was taken from the connection and not answered. Raises OSError before Linux
    6.9."""
    os.write(connection_fd, _RESEND)


def passthrough_missing() -> str | None:
    """Why the kernel cannot read staged files by itself in this mount; None if it can, as far as INIT tells."""
    _, kernel_has_it, agreed = EXTENSION.found()
    if not EXTENSION.HAS_PASSTHROUGH:
        return f"libfuse {LIBFUSE} is too old: 3.17 or newer is needed"
    if not kernel_has_it:
        return f"the kernel {os.uname().release} has no FUSE passthrough: Linux 6.9 or newer is needed"
    return None if agreed else "libfuse did not agree on passthrough"


class Entries(IntEnum):
    """What names of a directory go to the kernel as."""

    NAMES = 0
    """In a request that wants no more."""
    SLOTS_WHOLE = 1
    """Slots with their attributes, all others as names."""
    SLOTS_ONLY = 2
    """The same, and the first that is no slot is the end."""


def answer_with_names(
    records: bytes, starts: array[int], begin: int, end: int, next_id: int, *, directory_id: int, how: Entries
) -> None:
    """The directory entry that is added next stands for the names [begin, end) of `records` (see listing.Block).

    As many as fit are added, for the price of one: 100 000 one by one took 0.12 s. `next_id`: the offset behind the
    first of them; each further one is one more.
    """
    EXTENSION.names(records, starts, begin, end, next_id, directory_id, how)


def open_backing(connection_fd: int, fd: int) -> int:
    """Make the file behind `fd` known to the kernel as a backing file. Its id; `fd` is not needed any more.

    `connection_fd`: the mount's descriptor of /dev/fuse. Raises OSError (EPERM: needs CAP_SYS_ADMIN; ELOOP: the file
    lies on a stacked file system; EOPNOTSUPP: its file system cannot be read so).
    """
    # A mutable argument makes fcntl.ioctl return what the system call returned.
    backing_id: int = fcntl.ioctl(connection_fd, _BACKING_OPEN, bytearray(struct.pack("=iIQ", fd, 0, 0)))
    return backing_id


def why_refused(error: OSError) -> str:
    """Why the kernel did not take a backing file, for people."""
    return _REASONS.get(error.errno or 0) or os.strerror(error.errno or 0)


def close_backing(connection_fd: int, backing_id: int) -> None:
    """Undo `open_backing`. Opens that use it go on. Never raises: a connection that is gone has closed all."""
    try:
        fcntl.ioctl(connection_fd, _BACKING_CLOSE, bytearray(struct.pack("=I", backing_id)))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.EBADF, errno.ENODEV, errno.EPERM):
            raise
