"""Reading when nobody else wants the disk: the idle I/O class of the kernel, for one thread and a while.

Only some schedulers heed it (bfq, mq-deadline; an NVMe drive mostly has none), so whoever reads much also reads slowly.
Called in threads by `cache.objects.around`. Where the system call is not known or refused nothing happens.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_SET_AND_GET = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""ioprio_set(2) and ioprio_get(2), which no C library has."""

_THIS_THREAD = (1, 0)  # IOPRIO_WHO_PROCESS, and nobody else
_IDLE = 3 << 13

_libc = ctypes.CDLL(None, use_errno=True)
_calls = _SET_AND_GET.get(platform.machine())


@contextmanager
def idle_io() -> Iterator[None]:
    """What this thread reads inside is read when the disk has nothing else to do."""
    before = _libc.syscall(_calls[1], *_THIS_THREAD) if _calls is not None else -1
    changed = _calls is not None and before >= 0 and _libc.syscall(_calls[0], *_THIS_THREAD, _IDLE) == 0
    try:
        yield
    finally:
        if changed and _calls is not None:
            _libc.syscall(_calls[0], *_THIS_THREAD, before)
