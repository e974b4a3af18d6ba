"""What whoever makes overlays over the mount (a *maker*) says of them: a file of its own each, in one directory.

    maker-PID-RANDOM    16 bytes: the numbers of the oldest of its generations that has not gone, and of the one shown

It is locked as long as its maker lives (mountd/supervisor/generations.py). One without a lock is a killed maker's, of
whose generations nobody tells when they go. What says nothing yet counts as the oldest that there can be. All here
waits for the disk: in threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

_NAME = re.compile(r"maker-[0-9]{1,10}-[0-9a-f]{8}")
_NUMBERS = struct.Struct("<QQ")
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_MOST_NAMES = 4096
"""Looked at: a node has some dozens of commands at a time."""


class Makers(NamedTuple):
    """All of them together."""

    files: int = 0
    oldest: int | None = None
    """Of the generations that may be in use; None: there is nobody."""
    shown: int | None = None
    """All that live show this one, or a later one; None: nobody lives."""
    newest: int = 0
    """That any of them names."""


UNKNOWN = Makers(1, 0)
"""Somebody may have anything open."""


def read_makers(directory: int) -> Makers:
    """What their files in this directory say. Raises OSError."""
    files = newest = 0
    oldest: int | None = None
    shown: int | None = None
    for maker in _told(directory):
        if maker is None:
            return UNKNOWN
        files += 1
        oldest = maker.oldest if oldest is None else min(oldest, maker.oldest)
        newest = max(newest, maker.shown)
        if maker.lives:
            shown = maker.shown if shown is None else min(shown, maker.shown)
    return Makers(files, oldest, shown, newest)


def read_holders(directory: int, number: int) -> list[int]:
    """The processes of those that have a generation older than this one in use, or had. Raises OSError."""
    return sorted({maker.pid for maker in _told(directory) if maker is not None and maker.oldest < number})


class _Told(NamedTuple):
    """What one of them says."""

    pid: int
    oldest: int
    shown: int
    lives: bool


def _told(directory: int) -> Iterator[_Told | None]:
    """None at last, as of `_names`."""
    for name in _names(directory):
        if name is None:
            yield None
            return
        with _opened(directory, name) as fd:
            if fd is None:
                continue
            data = os.pread(fd, _NUMBERS.size, 0)
            oldest, shown = _NUMBERS.unpack(data) if len(data) == _NUMBERS.size else (0, 0)
            lives = not _lock(fd, fcntl.LOCK_SH)
        yield _Told(int(name.split("-")[1]), oldest, shown, lives)


def remove_left(directory: int) -> None:
    """Nothing of what killed makers have made is in use any more. Raises OSError."""
    for name in _names(directory):
        if name is None:
            return
        with _opened(directory, name) as fd:
            if fd is not None and _lock(fd, fcntl.LOCK_EX):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)


def _names(directory: int) -> Iterator[str | None]:
    """Those of makers; None at last: there are more than anybody looks at."""
    with os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield entry.name
        if next(entries, None) is not None:
            yield None


@contextlib.contextmanager
def _opened(directory: int, name: str) -> Iterator[int | None]:
    """None: it has gone."""
    try:
        fd = os.open(name, os.O_RDONLY | _SAFELY, dir_fd=directory)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, how: int) -> bool:
    """Whether nobody else has it; ours goes with the descriptor."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
