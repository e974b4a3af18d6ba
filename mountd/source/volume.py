"""How much data there is in the source, if that is quickly told: for `--placement auto`, once, when a job starts.

Called by the daemon in a thread.
"""

from __future__ import annotations

import os
import time

__all__ = ["data_bytes"]


def data_bytes(root_fd: int, at_most: int, limit_s: float) -> int | None:
    """Bytes of all files below the open directory `root_fd`; None if more than `at_most`, or not told in `limit_s`."""
    end_s = time.monotonic() + limit_s
    total = 0
    for _, _, files, directory_fd in os.fwalk(".", dir_fd=root_fd):
        for name in files:
            try:
                total += os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_size
            except OSError:
                continue  # gone meanwhile
            if total > at_most or time.monotonic() > end_s:
                return None
    return total
