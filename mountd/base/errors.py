"""The exceptions of the daemon, and the one table that says which errno a reader gets.

    HfsError
     |- ConfigError            a key, a value or a place that cannot be: said before anything is mounted
     |- MountError             the mount was refused
     |   |- CacheInUse         another daemon owns the cache directory
     |   `- CacheFormatError   the cache directory was written by a newer hfs
     |- SourceError            the source answered with an errno: it reaches the reader as it is
     |   `- SourceTimeout      it did not answer within its time limit
     |- VersionChanged         the bytes asked for belong to a version that the source no longer has
     |- StagingError           the cache disk or its index failed: never reaches a reader
     `- Interrupted            the reader was killed while it waited: nobody hears the answer

Only `mountd/fuse/boundary.py` turns an exception into an errno, by `errno_of`.
"""

from __future__ import annotations

import errno
import os


class HfsError(Exception):
    """Base of all that the daemon raises on purpose. The message says what, where and the remedy."""


class ConfigError(HfsError):
    """A configuration that cannot be; the message has one line a fault."""


class MountError(HfsError):
    """The mount was refused; nothing is left mounted."""


class CacheInUse(MountError):
    """Another daemon owns the cache directory; the message names its pid."""


class CacheFormatError(MountError):
    """The cache directory has a format that this release does not know."""


class SourceError(HfsError):
    """The source refused an operation with `errno`."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{what}: {os.strerror(number)}")
        self.errno = number


class SourceTimeout(SourceError):
    """The source did not answer within its time limit. The reader gets EIO, as from a hard network mount."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EIO, what)


class VersionChanged(HfsError):
    """The file was replaced or rewritten at the source; the old version's missing bytes cannot be had any more."""


class StagingError(HfsError):
    """The cache disk failed. The caller goes on with the next tier."""


class Interrupted(HfsError):
    """The process that asked is being killed; the kernel keeps it until it gets an answer."""


def errno_of(error: BaseException) -> int | None:
    """The errno that a reader gets for `error`; None for an exception that no rule foresees.

    Debatable rows: VersionChanged is ESTALE, as NFS answers it: the kernel then looks the name up again, so an open
    succeeds with the new version, and only a handle of the old one sees the error. StagingError is EIO: it should have
    ended in a fallback, and an error is better than a wrong byte.
    """
    if isinstance(error, SourceError):
        return error.errno
    if isinstance(error, VersionChanged):
        return errno.ESTALE
    if isinstance(error, StagingError):
        return errno.EIO
    if isinstance(error, Interrupted):
        return errno.EINTR
    return None
