"""Extended attributes of one name of the source, and whether they are of the inode that is meant.

An ACL says who may read the bytes of a file: that of another file under the same name, or of another version, says
nothing of these. Blocks. Raises OSError.
"""

from __future__ import annotations

import os

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.native.statx import is_still


def value_of(directory_fd: int, name: bytes, attribute: bytes, of: Attributes | None = None) -> bytes:
    """The value of one. `of`: only if it is of the inode with these attributes, unchanged since; else VersionChanged,
    also where there is none."""
    if of is None:
        return os.getxattr(_path(directory_fd, name), attribute, follow_symlinks=False)
    fd = os.open(name or b".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        try:
            return os.getxattr(b"/proc/self/fd/%d" % fd, attribute)
        finally:  # afterwards: who gives it another one moves its ctime
            if not is_still(fd, of):
                raise VersionChanged("something else stands there now")
    finally:
        os.close(fd)


def names_of(directory_fd: int, name: bytes) -> list[bytes]:
    """The names of all."""
    return [os.fsencode(one) for one in os.listxattr(_path(directory_fd, name), follow_symlinks=False)]


def _path(directory_fd: int, name: bytes) -> bytes:
    """A path whose only link is the kernel's own to our descriptor; xattr calls take no dir_fd."""
    return b"/proc/self/fd/%d/%s" % (directory_fd, name or b".")
