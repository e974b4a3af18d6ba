"""The optional extension for small files, `_small_files.c`: many system calls for one release of the interpreter lock.

Whoever reads or writes with it can do without. Knows nothing of what the files are.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from hfs.mountd.base.errors import MountError
from hfs.mountd.native import extension

Found = tuple[int, tuple[int, ...] | None, int]
"""0: read; -1: attributes only, since it is no regular file or too large; -2: it changed meanwhile; else an errno. Its
attributes up to the device, and the kernel's number of the mount or 0. Where its bytes begin."""


class SmallNative(Protocol):
    """What it has."""

    def read(
        self,
        directories: list[int],
        names: list[bytes],
        into: memoryview,
        limit_bytes: int,
        careful: bool,
        progress: bytearray,
        /,
    ) -> list[Found]:
        """Read files, one after the other, into one buffer; as many as it comes to."""

    def hurry(self, progress: bytearray, /) -> int:
        """Have `read` end after the file it is at, and say which; -1: none."""

    def write(self, directory: int, paths: list[bytes], contents: list[memoryview], /) -> list[tuple[int, int, int]]:
        """Make new files; 0 or an errno for each, then inode number and time of change in nanoseconds."""


def load() -> SmallNative | None:
    """The extension; None where it was not built."""
    try:
        return cast("SmallNative", importlib.import_module(extension.find("_small_files").name))
    except (ImportError, MountError):
        return None
