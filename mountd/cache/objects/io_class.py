"""The I/O class of the kernel, for one thread and a while: how a disk's scheduler chooses whom to serve.

    idle_io      when nobody else wants the disk: what nobody waits for, and may starve
    staging_io   behind readers, and not to starve: the last of the eight levels of the usual class

Only some schedulers heed them: bfq both, mq-deadline idle alone, and an NVMe drive mostly has none; there staging steps
back by itself (`cache.objects.pace`). Of what is written through the page cache the class says nothing: the kernel
writes it back in threads of its own. Called in threads. Where the system call is not known or refused nothing happens.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_SET_AND_GET = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""ioprio_set(2) and ioprio_get(2), which no C library has."""

_THIS_THREAD = (1, 0)  # IOPRIO_WHO_PROCESS, and nobody else
_CLASS_SHIFT = 13
_IDLE = 3 << _CLASS_SHIFT
_LAST_OF_BEST_EFFORT = 2 << _CLASS_SHIFT | 7

_libc = ctypes.CDLL(None, use_errno=True)
_calls = _SET_AND_GET.get(platform.machine())


@contextmanager
def idle_io() -> Iterator[None]:
    """What this thread reads inside is read when the disk has nothing else to do."""
    with _io_class(_IDLE):
        yield


@contextmanager
def staging_io() -> Iterator[None]:
    """What this thread writes and syncs inside goes behind what others read, and goes on."""
    with _io_class(_LAST_OF_BEST_EFFORT):
        yield


def io_class_here() -> int:
    """As ioprio_get(2) says of this thread: class << 13 | level; -1 where that is not known."""
    return int(_libc.syscall(_calls[1], *_THIS_THREAD)) if _calls is not None else -1


@contextmanager
def _io_class(wanted: int) -> Iterator[None]:
    before = io_class_here()
    # Whoever was put into the idle class from outside (ionice -c 3) stays there.
    lowers = before >= 0 and before >> _CLASS_SHIFT != _IDLE >> _CLASS_SHIFT
    changed = lowers and _calls is not None and _libc.syscall(_calls[0], *_THIS_THREAD, wanted) == 0
    try:
        yield
    finally:
        if changed and _calls is not None:
            _libc.syscall(_calls[0], *_THIS_THREAD, before)
