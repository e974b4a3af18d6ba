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
_INVAL_ENTRY, _INC_EPOCH = 3, 8  # enum fuse_notify_code
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


def forget_names(connection_fd: int, directory_id: int, names: Iterable[bytes]) -> None:
    """The same of these names in one directory and of everything below. Those that it does not know are no error."""
    for name in names:
        body = _ENTRY.pack(directory_id, len(name), 0) + name + b"\0"
        try:
            os.write(connection_fd, _HEADER.pack(_HEADER.size + len(body), _INVAL_ENTRY, 0) + body)
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            if error.errno in (errno.ENOTCONN, errno.ENODEV, errno.EBADF):
                return  # the mount is gone
            raise
