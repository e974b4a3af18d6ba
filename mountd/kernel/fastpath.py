"""The extension mountd/native/_fastpath.c: is it there, what does it offer in this mount, and if it does not, why.

Imported before pyfuse3, because importing loads the extension in front of libfuse. Everything works without the
extension; each function says what it then answers. Event loop only, and never waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import struct
import sys
from array import array
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, cast

from hfs.mountd.kernel.tuning import MAX_BACKGROUND
from hfs.mountd.native import compiled
from hfs.mountd.native.linkage import libfuse_in_use, why_not_one_libfuse

_BACKING_OPEN = 0x4010E501
"""_IOW(229, 1, struct fuse_backing_map { int32_t fd; uint32_t flags; uint64_t padding; }), <linux/fuse.h>."""
_BACKING_CLOSE = 0x4004E502
"""_IOW(229, 2, uint32_t)."""

_RESEND = struct.pack("=IiQ", 16, 7, 0)
"""struct fuse_out_header with FUSE_NOTIFY_RESEND."""

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


class Extension(Protocol):
    HAS_PASSTHROUGH: int
    LIBFUSE: str
    NAME_ONLY: int

    def want(
        self,
        max_background: int,
        stack_depth: int,
        on_interrupt: Callable[[int], None],
        at_once: object,
        yield_fd: int,
        /,
    ) -> None: ...

    def found(self) -> tuple[int, int, int]: ...

    def feed(self, init: bytes, /) -> None: ...

    def fed(self) -> bool: ...

    def request(self) -> tuple[int, int]: ...

    def uid(self) -> int: ...

    def go_on(self, which: int, /) -> None: ...

    def give_up(self, which: int, number: int, /) -> None: ...

    def node(self) -> int: ...

    def unique(self) -> int: ...

    def show(self, node_id: int, inode: int, /) -> None: ...

    def back(self, handle: int, backing_id: int, /) -> None: ...

    def plain(self) -> bool: ...

    def names(
        self, records: bytes, starts: array[int], begin: int, end: int, next_id: int, directory: int, how: int, /
    ) -> None: ...

    def taken(self) -> int: ...


def _load() -> tuple[Extension | None, str]:
    if "pyfuse3" in sys.modules:
        return None, "pyfuse3 was loaded before the extension"
    compiled.prefer_bundled_pyfuse3()
    try:
        reason = _why_not_one_libfuse()
    except compiled.OtherRelease as error:
        reason = str(error)
    if reason is not None:
        return None, reason
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        extension = cast("Extension", compiled.load("_fastpath"))
        if not hasattr(extension, "give_up"):
            return None, "it was built before the rest of hfs: run scripts/setup again"
        return extension, ""
    except ModuleNotFoundError:
        return None, "it was not built: a C compiler or libfuse's headers were missing when hfs was installed"
    except ImportError as error:
        return None, f"it could not be loaded: {error}"
    finally:
        sys.setdlopenflags(flags)


def _why_not_one_libfuse() -> str | None:
    ours, theirs = compiled.find("_fastpath"), importlib.util.find_spec("pyfuse3")
    if ours is None or ours.origin is None:
        return None  # the import says what is missing
    if theirs is None or theirs.origin is None:
        return "pyfuse3 is not there"
    return why_not_one_libfuse(ours.origin, theirs.origin)


_extension, _not_loaded = _load()

NAME_ONLY: int | None = _extension.NAME_ONLY if _extension is not None else None
"""As `generation` of a directory entry: it stands for the names of `answer_with_names`, which have inode number and
type and no node. None: impossible here, every entry needs its attributes."""


def extension() -> object:
    """The module, or None; for the data plane (`kernel.plane`)."""
    return _extension


def extension_missing() -> str | None:
    """Why there is no extension; None if it is there and stands between pyfuse3 and libfuse (after the mount)."""
    if _extension is None:
        return _not_loaded
    if not _extension.found()[0]:
        return "pyfuse3 was built with another libfuse than the extension"
    return None


def two_libfuses() -> str | None:
    """What is wrong if the extension is loaded and there are two libfuses all the same, once pyfuse3 was imported."""
    found = libfuse_in_use() if _extension is not None else set()
    if len(found) <= 1:
        return None
    return f"two libfuses are loaded ({', '.join(sorted(found))}): run scripts/setup again, and look at LD_PRELOAD"


def libfuse_version() -> str:
    """Of the libfuse that the extension uses; empty without it."""
    return _extension.LIBFUSE if _extension is not None else ""


def want(on_interrupt: Callable[[int], None], at_once: object, *, yield_fd: int, stack_depth: int) -> None:
    """Before the mount. `on_interrupt(token)` is called, on the event loop, when the kernel gives up a request.

    `at_once`: see mountd/fuse/fast_handlers.py. `yield_fd`: a descriptor; while it is readable the event loop has its
    turn before further requests are answered at once. `stack_depth`: 0, or 1 if the cache directory lies on an overlay;
    no overlay can then lie on the mount.
    """
    if _extension is not None:
        _extension.want(MAX_BACKGROUND, stack_depth, on_interrupt, at_once, yield_fd)


def connections() -> set[int]:
    """Descriptors of this process that are connections to the kernel's FUSE; pyfuse3 does not tell its own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.add(int(name))
    return found


def is_loaded() -> bool:
    """Whether the extension is there; whether pyfuse3 has been built with the same libfuse the mount will show."""
    return _extension is not None


def feed(init: bytes) -> None:
    """Before the mount: the session is given this INIT request, which the keeper of the mount has read."""
    if _extension is not None:
        _extension.feed(init)


def was_fed() -> bool:
    """Whether the session has taken what `feed` gave; after the mount."""
    return _extension is not None and _extension.fed()


def resend(connection_fd: int) -> None:
    """Have the kernel send again what was taken from the connection and not answered. Raises OSError before Linux
    6.9."""
    os.write(connection_fd, _RESEND)


def request() -> tuple[int, int]:
    """(token, thread id of the caller) of the request whose handler runs; to be asked before its first await.

    The token is 0 without the extension, the id 0 if the caller is in a pid namespace that we do not see.
    """
    return _extension.request() if _extension is not None else (0, 0)


def uid_of_request() -> int:
    """The user whose request it is; to be asked before the handler's first await. 0 without the extension."""
    return _extension.uid() if _extension is not None else 0


def go_on(which: int) -> None:
    """A request that was put off is handed to its handler, in a moment."""
    assert _extension is not None
    _extension.go_on(which)


def give_up(which: int, number: int) -> None:
    """A request that was put off is answered with this errno."""
    assert _extension is not None
    _extension.give_up(which, number)


def node_of_request() -> int:
    """The node id of the READ or seek whose handler runs; good until its first await. Only with the extension."""
    assert _extension is not None
    return _extension.node()


def unique_of_request() -> int:
    """The kernel's number of the request whose handler runs; to be asked before its first await. 0 without the
    extension. One that the kernel sends again keeps its number, but for bit 63."""
    return _extension.unique() if _extension is not None else 0


def passthrough_missing() -> str | None:
    """Why the kernel cannot read staged files by itself in this mount; None if it can, as far as INIT tells."""
    reason = extension_missing()
    if _extension is None or reason is not None:
        return f"no extension: {reason}"
    _, kernel_has_it, agreed = _extension.found()
    if not _extension.HAS_PASSTHROUGH:
        return f"libfuse {_extension.LIBFUSE} is too old: 3.17 or newer is needed"
    if not kernel_has_it:
        return f"the kernel {os.uname().release} has no FUSE passthrough: Linux 6.9 or newer is needed"
    return None if agreed else "libfuse did not agree on passthrough"


def show_inode(node_id: int, inode: int) -> None:
    """The answer that follows with the attributes of `node_id` shows `inode` as its number; without the extension the
    node id."""
    if _extension is not None:
        _extension.show(node_id, inode)


def answer_with_backing(handle: int, backing_id: int) -> None:
    """The open whose handler is about to return `handle` is passed through to the backing file."""
    assert _extension is not None
    _extension.back(handle, backing_id)


def takes_names() -> bool:
    """Whether the entries of a directory may stand for names alone, in this mount."""
    return NAME_ONLY is not None and extension_missing() is None


def wants_names() -> bool:
    """The readdir whose handler runs wants names only: they take a quarter of the room. Ask before its first await.

    The kernel decides: attributes are for the start of a directory, and where the names shown before were looked up.
    """
    return _extension.plain() if _extension is not None else False


class Entries(IntEnum):
    """What names of a directory go to the kernel as."""

    NAMES = 0
    """In a request that wants no more."""
    LEAVES_WHOLE = 1
    """Leaves with their attributes, all others as names."""
    LEAVES_ONLY = 2
    """The same, and the first that is no leaf is the end."""


def answer_with_names(
    records: bytes, starts: array[int], begin: int, end: int, next_id: int, *, directory_id: int, how: Entries
) -> None:
    """The directory entry that is added next stands for the names [begin, end) of `records` (see listing.Block).

    As many as fit are added, for the price of one: 100 000 one by one took 0.12 s. `next_id`: the offset behind the
    first of them; each further one is one more.
    """
    assert _extension is not None
    _extension.names(records, starts, begin, end, next_id, directory_id, how)


def names_answered() -> int:
    """How many of the names of `answer_with_names` the reply has taken."""
    assert _extension is not None
    return _extension.taken()


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
