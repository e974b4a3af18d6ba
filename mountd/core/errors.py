"""The exceptions of the daemon, and the one table that says which errno a reader gets.

    HfsError
     |- ConfigError            a key, a value or a place that cannot be: said before anything is mounted
     |- MountError             the mount was refused
     |   |- CacheInUse         another daemon owns the cache directory
     |   `- CacheFormatError   the cache directory was written by a newer hfs
     |- SourceError            the source answered with an errno: it reaches the reader as it is
     |   `- SourceTimeout      it did not answer within its time limit
     |       `- SourceAway     it answered that it is not there: what is known of it goes on being served
     |- VersionChanged         the bytes asked for belong to a version that the source no longer has
     |- StagingError           the cache disk or its index failed: never reaches a reader
     `- Interrupted            the reader was killed while it waited: nobody hears the answer

Only `mountd/fuse/boundary.py` turns an exception into an errno, by `errno_of`.

What tasks side by side have raised comes out of their nursery as a group, which no `except SourceError` finds: whoever
waits for them puts `ungrouped` around it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls: escapes, and what ends a line
    "\u2028\u2029"  # what some take for the end of a line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # what shows the rest in another order
)


def printable(text: str) -> str:
    """Somebody else's words as one line that any terminal takes and none obeys: controls, ends of lines and marks of
    direction are escapes, and what is not UTF-8 too.

    Names of files, mounts and learners, and whatever a daemon, a keeper or a record says, are other users' words. All
    that prints one, or puts one into a line or an error, has it go through here.
    """
    text = _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return text.encode("utf-8", "backslashreplace").decode()


def shown_path(path: bytes) -> str:
    """A path relative to the root of SOURCE, for messages: in quotes, since it may have blanks in it."""
    return repr(os.fsdecode(path)) if path else "the root of SOURCE"


def show_size(size_bytes: float) -> str:
    """Bytes with three digits, as disks are sold: 999 B, 12.3 MB, 1.00 GB."""
    count, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 999.5:
            break
        count, unit = count / 1000, larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.{max(0, 3 - len(f'{abs(count):.0f}'))}f} {unit}"


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


class SourceAway(SourceTimeout):
    """The source says by `number` that it cannot be reached, or not in full: as good as no answer, and at once."""

    def __init__(self, number: int, what: str) -> None:
        SourceError.__init__(self, number, what)


class VersionChanged(HfsError):
    """The file was replaced or rewritten at the source; the old version's missing bytes cannot be had any more."""


class StagingError(HfsError):
    """The cache disk failed. The caller goes on with the next tier."""


class NotTaken(StagingError):
    """The cache is full, or its disk rests: whatever else came now would not be taken either."""


class Interrupted(HfsError):
    """The process that asked is being killed; the kernel keeps it until it gets an answer."""


def sole(error: BaseException) -> BaseException:
    """What a group means to who waited for it: one of ours, if it has nothing else. A defect, and that the waiter is
    given up, count more; a group stays one where several of these are in it.
    """
    errors = list(_leaves(error))
    others = [one for one in errors if not isinstance(one, HfsError)]
    given_up = len({type(one) for one in others}) == 1 and not isinstance(others[0], Exception)
    if len(others) > 1 and not given_up:
        return error
    return (others or errors)[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)


class ungrouped:  # noqa: N801 - used as a function
    """Around a nursery: what leaves it is one error, see `sole`.

    Never `except*` for that: what is raised inside of it comes out as a group again up to Python 3.11.3. And the error
    keeps no way back to its group, a circle that would hold the buffers of all its frames until it is collected.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        found = sole(error)
        if found is error:
            return
        context = found.__context__
        try:
            raise found
        finally:
            found.__context__ = context
            del found, error


def errno_of(error: BaseException) -> int | None:
    """The errno that a reader gets for `error`; None for an exception that no rule foresees.

    Debatable rows: VersionChanged is ESTALE, as NFS answers it: the kernel then looks the name up again, so an open
    succeeds with the new version, and only a handle of the old one sees the error. StagingError is EIO: it should have
    ended in a fallback, and an error is better than a wrong byte.
    """
    error = sole(error)
    if isinstance(error, SourceError):
        return error.errno
    if isinstance(error, VersionChanged):
        return errno.ESTALE
    if isinstance(error, StagingError):
        return errno.EIO
    if isinstance(error, Interrupted):
        return errno.EINTR
    return None
