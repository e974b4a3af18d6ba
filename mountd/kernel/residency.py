"""Which pages of our files are in the page cache. For `hfs status`; blocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable

from hfs.mountd.native import cachestat


def resident(paths: Iterable[bytes], started: Callable[[int], object]) -> tuple[int, int] | None:
    """Of the files at `paths`, opened through the mount: (bytes in the page cache, bytes in all).

    `started` is told the process that opens them, before it does. None where the kernel cannot tell. Blocks as long as
    an open of the mount may. In a process of its own: a thread of the daemon that waits in the daemon's own mount
    cannot be killed, and a daemon killed meanwhile would keep its connection, and everybody who waits in the mount, for
    ever.
    """
    command = [sys.executable, "-I", "-S", cachestat.__file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        started(process.pid)
        out, _ = process.communicate(b"\0".join(paths))
    figures = out.split()
    return (int(figures[0]), int(figures[1])) if len(figures) == 2 else None
