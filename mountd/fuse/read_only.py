"""What would change something is answered EROFS, where the kernel does not do so by itself.

A mount that is made here is `ro`, and its kernel never asks. Whoever has made one for us may have left that out, as
container runtimes do; without an answer programs would be told that the system call does not exist (ENOSYS), and those
that take a read-only file system for what it is, such as LMDB, would fail.
"""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from hfs.mountd.kernel import fastpath  # noqa: F401 - imported for its effect

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3


async def _erofs(*_: object) -> NoReturn:
    raise pyfuse3.FUSEError(errno.EROFS)


_refuse: Any = _erofs
"""Takes whatever each of them is given."""


class ReadOnly(pyfuse3.Operations):
    """Refuses each of them. Opens are looked at by who answers opens."""

    create = link = mkdir = mknod = rename = rmdir = symlink = unlink = _refuse
    removexattr = setattr = setxattr = write = _refuse
