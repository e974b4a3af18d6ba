"""Asking the source as another user: may it open this, list it, follow it, read its attributes?

For file systems whose mode bits do not say all (namespace/permissions.py). The whole way from SOURCE is walked as that
user, as a program of the user's would, and what it ends at must be the inode that the question is about, and the same
version of it: otherwise a name that somebody has swapped, or a file that was written anew and given to others, would
answer for the bytes that were there before. Opening is what really asks: an NFS server decides at OPEN, a FUSE one too,
and access(2) is not even sent to most of those.

The threads here become users and never the daemon again, so they do nothing else.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.native.statx import checked, is_still, libc, open_directory
from hfs.mountd.source.descriptors import OPEN_TO_READ, show
from hfs.mountd.source.metadata import xattr_of, xattrs_of
from hfs.mountd.source.threads import SourceThreads, become

_THREADS = 32
"""As many as a busy metadata server answers at once (see `MetadataReader.stats_at_once`)."""

_SYS_FACCESSAT2 = 439  # the same on every architecture (since Linux 5.8)
_AT_SYMLINK_NOFOLLOW, _AT_EACCESS, _AT_EMPTY_PATH = 0x100, 0x200, 0x1000  # <linux/fcntl.h>

_NO = {
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV),
    *(errno.EINVAL, errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR),
}
"""What says that a file cannot be read. Anything else says that the source could not be asked."""


class WantedAccess(enum.Enum):
    """What a user wants to do. What may be run but not read cannot be asked for, and is refused."""

    READ = "read"
    RUN = "run"
    LIST = "list"
    FOLLOW = "follow"


_FLAGS = {
    WantedAccess.LIST: OPEN_TO_READ | os.O_DIRECTORY,
    WantedAccess.FOLLOW: os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC,
}


class SourceAsUser:
    """`threads`: its own, used by nobody else, since they become users."""

    def __init__(self, root_fd: int, threads: SourceThreads) -> None:
        self._root_fd = root_fd
        self._threads = threads
        self._local = threading.local()

    async def ask(
        self,
        who: Credentials,
        directory: bytes,
        name: bytes,
        wanted: WantedAccess,
        of: Attributes,
        *,
        limit_s: float | None = None,
    ) -> None:
        """Returns if the source lets `who` do it. `of`: the attributes of what is meant.

        Raises SourceError (EACCES, EPERM: it does not), SourceTimeout, and VersionChanged if something else stands
        there, or another version of it, or nothing.
        """
        await self._call(who, directory, name, lambda at: _do(at, name, wanted, of), limit_s)

    async def readable(self, who: Credentials, places: Sequence[tuple[bytes, bytes, bool]]) -> list[bool | None]:
        """Which of these files `who` may read: the path of a directory, a name in it, and whether only opening tells.

        None: it is a link, or lies behind one, and may lead anywhere. What is not there may not be read. Raises
        SourceError, SourceTimeout where the source does not say.
        """
        what = f"{len(places)} files as user {who.uid}"
        directory = places[0][0] if places else b""
        return await self._threads.call("metadata", what, self._readable, who, places, directory=directory)

    async def may_go(self, who: Credentials, ways: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[bool]:
        """Which of these ways, links and `..` by their directories and names, `who` may go. Raises as `readable`."""
        what = f"{len(ways)} ways as user {who.uid}"
        directory = next((step[0] for way in ways for step in way), b"")
        return await self._threads.call("metadata", what, self._may_go, who, ways, directory=directory)

    async def ask_xattr(self, who: Credentials, directory: bytes, name: bytes, attribute: bytes | None) -> None:
        """Returns if the source lets `who` read one extended attribute, or (None) the names of all. Raises as `ask`."""

        def read(at: int) -> None:
            if attribute is None:
                xattrs_of(at, name)
            else:
                xattr_of(at, name, attribute)

        await self._call(who, directory, name, read, None)

    async def _call(
        self, who: Credentials, directory: bytes, name: bytes, function: Callable[[int], None], limit_s: float | None
    ) -> None:
        what = f"{show(directory, name)} as user {who.uid}"
        try:
            await self._threads.call(
                "metadata", what, self._as, who, directory, function, directory=directory, limit_s=limit_s
            )
        except SourceError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
                raise VersionChanged(f"{what}: {error}") from error
            raise

    def _as(self, who: Credentials, directory: bytes, function: Callable[[int], None]) -> None:
        """In a thread."""
        self._become(who)
        at = open_directory(self._root_fd, directory)
        try:
            function(at)
        finally:
            os.close(at)

    def _become(self, who: Credentials) -> None:
        if getattr(self._local, "who", None) != who:
            self._local.who = None
            become(who)
            self._local.who = who

    def _may_go(self, who: Credentials, ways: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[bool]:
        """In a thread."""
        self._become(who)
        return [all(self._may_pass(*step) for step in way) for way in ways]

    def _may_pass(self, directory: bytes, name: bytes) -> bool:
        try:
            at = open_directory(self._root_fd, directory)
            try:
                fd = os.open(name, _FLAGS[WantedAccess.FOLLOW], dir_fd=at)
                try:
                    if name != b"..":
                        os.readlink(b"", dir_fd=fd)
                finally:
                    os.close(fd)
            finally:
                os.close(at)
        except OSError as error:
            if error.errno not in _NO:
                raise
            return False
        return True

    def _readable(self, who: Credentials, places: Sequence[tuple[bytes, bytes, bool]]) -> list[bool | None]:
        """In a thread."""
        self._become(who)
        return [self._is_readable(*place) for place in places]

    def _is_readable(self, directory: bytes, name: bytes, by_opening: bool) -> bool | None:
        try:
            at = open_directory(self._root_fd, directory)
            try:
                if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                    return None
                if by_opening:
                    os.close(os.open(name, OPEN_TO_READ, dir_fd=at))
                else:
                    flags = _AT_EACCESS | _AT_SYMLINK_NOFOLLOW
                    checked(libc.syscall(_SYS_FACCESSAT2, at, name, os.R_OK, flags), "faccessat2")
            finally:
                os.close(at)
        except OSError as error:
            if error.errno == errno.ENOSYS and not by_opening:
                return self._is_readable(directory, name, True)
            if error.errno not in _NO:
                raise
            return None if error.errno == errno.ELOOP else False
        return True


@asynccontextmanager
async def open_as_user(root_fd: int, metrics: Metrics, *, time_limit_s: float) -> AsyncIterator[SourceAsUser]:
    """The asker of one mount, with threads of its own. `root_fd`: SOURCE, which stays the caller's."""
    workers = Workers()
    threads = SourceThreads(
        metrics, demand=1, prefetch=1, metadata=_THREADS, time_limit_s=time_limit_s, run_in_thread=workers.run_patient
    )
    async with workers.running():
        yield SourceAsUser(root_fd, threads)


def _do(at: int, name: bytes, wanted: WantedAccess, of: Attributes) -> None:
    fd = os.open(name or b".", _FLAGS.get(wanted, OPEN_TO_READ), dir_fd=at)
    try:
        if not is_still(fd, of):
            raise VersionChanged("something else stands there now")
        if wanted is WantedAccess.FOLLOW:
            os.readlink(b"", dir_fd=fd)
        if wanted is WantedAccess.RUN:  # glibc's own guesses from the mode bits where it does not know the call
            flags = _AT_EACCESS | _AT_EMPTY_PATH
            checked(libc.syscall(_SYS_FACCESSAT2, fd, b"", os.X_OK, flags), "faccessat2")
    finally:
        os.close(fd)
