"""Telling the kernel to look names up again, by messages on the connection that libfuse has no words for yet.

Blocking: the kernel waits for the directory, which a look-up under way may hold, so whoever answers look-ups must not
wait for this.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable

_HEADER = struct.Struct("=IiQ")  # struct fuse_out_header
_INVAL_INODE, _INVAL_ENTRY, _INC_EPOCH = 2, 3, 8  # enum fuse_notify_code
_INODE = struct.Struct("=Qqq")  # struct fuse_notify_inval_inode_out; from a negative offset on no page goes
_EXPIRE_ONLY = 1  # FUSE_EXPIRE_ONLY
_ENTRY = struct.Struct("=QII")  # struct fuse_notify_inval_entry_out


def forget_all_names(connection_fd: int) -> bool:
    """The kernel looks up every name of the mount anew when it needs it. False: it cannot (before Linux 6.16)."""
    try:
        os.write(connection_fd, _HEADER.pack(_HEADER.size, _INC_EPOCH, 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def expire_names(connection_fd: int, directory_id: int, names: Iterable[bytes]) -> None:
    """The kernel looks these names in one directory up anew when it needs them, and keeps what is as it was: nobody's
    working directory loses its name. Before Linux 6.2 as `forget_names`."""
    _tell_of_names(connection_fd, directory_id, names, _EXPIRE_ONLY)


def forget_attributes(connection_fd: int, node_ids: Iterable[int]) -> None:
    """The kernel asks for the attributes of these nodes anew when it needs them; their pages stay. Those that it does
    not know are no error. Waits for nothing."""
    for node_id in node_ids:
        if not _told(connection_fd, _INVAL_INODE, _INODE.pack(node_id, -1, 0)):
            return


def let_go_of_pages(connection_fd: int, node_ids: Iterable[int]) -> None:
    """As `forget_attributes`, and no page of them stays. Waits for pages that READs have locked."""
    for node_id in node_ids:
        if not _told(connection_fd, _INVAL_INODE, _INODE.pack(node_id, 0, 0)):
            return


def forget_names(connection_fd: int, directory_id: int, names: Iterable[bytes]) -> None:
    """The same of these names in one directory and of everything below. Those that it does not know are no error."""
    _tell_of_names(connection_fd, directory_id, names, 0)


def _tell_of_names(connection_fd: int, directory_id: int, names: Iterable[bytes], flags: int) -> None:
    for name in names:
        if not _told(connection_fd, _INVAL_ENTRY, _ENTRY.pack(directory_id, len(name), flags) + name + b"\0"):
            return


def _told(connection_fd: int, code: int, body: bytes) -> bool:
    """False: the mount is gone."""
    try:
        os.write(connection_fd, _HEADER.pack(_HEADER.size + len(body), code, 0) + body)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ENODEV, errno.EBADF):
            return False
        if error.errno != errno.ENOENT:
            raise
    return True
