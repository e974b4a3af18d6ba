"""Who asks: what /proc says of the thread behind a request. Is it being killed, which process does it belong to, who is
it for file systems?

For the event loop: it reads only what the kernel makes from memory. Never /proc/N/cmdline, which waits for the address
space of a process that may be in the middle of a page fault that waits for us.
"""

from __future__ import annotations

import os
from signal import Signals
from typing import NamedTuple

from hfs.mountd.core.limits import read_small

_KILL = 1 << (Signals.SIGKILL - 1)
_DUMPING = sum(
    1 << (number - 1)
    for number in (
        *(Signals.SIGQUIT, Signals.SIGILL, Signals.SIGTRAP, Signals.SIGABRT, Signals.SIGBUS),
        *(Signals.SIGFPE, Signals.SIGSEGV, Signals.SIGXCPU, Signals.SIGXFSZ, Signals.SIGSYS),
    )
)
"""Signals that end a process with a core dump. Any other deadly signal marks every thread with SIGKILL when it is sent;
these wait until a thread takes them, and the only thread may be the one that waits for us."""


UNSEEN = (0, "(another pid namespace)")


class _Sight:
    """Whether the numbers in requests are those of our /proc."""

    is_ours = True


def numbers_are_foreign() -> None:
    """From here on nothing is said of a thread: requests carry its number in the pid namespace of who has mounted. That
    is not ours, where another thread may have that number."""
    _Sight.is_ours = False


class Credentials(NamedTuple):
    """Who somebody is for file systems: fsuid, fsgid and supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def credentials_of(thread: int, uid: int, gid: int) -> Credentials | None:
    """Those of a thread whose request says `uid` and `gid`. None if they cannot be seen, or are not its own.

    A thread that waits for us cannot change them meanwhile. It may be gone, and its number another's: then what is
    found is what that one has, and an answer to the question of somebody who is dead.
    """
    if not _Sight.is_ours:
        return None
    try:
        status = _status(thread)
        found = Credentials(
            int(status[b"Uid"].split()[3]), int(status[b"Gid"].split()[3]), tuple(map(int, status[b"Groups"].split()))
        )
    except (OSError, KeyError, IndexError, ValueError):
        return None
    return found if (found.uid, found.gid) == (uid, gid) else None


def is_dying(thread: int) -> bool:
    """True if the thread will never see an answer: its process is being killed, or it is gone. False if in doubt."""
    if not _Sight.is_ours:
        return False
    try:
        status = _status(thread)
    except (FileNotFoundError, ProcessLookupError):
        return _is_gone(thread)
    except OSError:
        return False  # /proc is hidden from us
    pending = _mask(status, b"SigPnd") | _mask(status, b"ShdPnd")
    if pending & _KILL:
        return True
    spared = _mask(status, b"SigBlk") | _mask(status, b"SigIgn") | _mask(status, b"SigCgt")
    return bool(pending & _DUMPING & ~spared) and status.get(b"TracerPid") == b"0"  # a debugger may take it away


def has_ended(process: int) -> bool:
    """True if nothing of the process runs any more, reaped or not. False if in doubt."""
    try:
        status = _status(process)
        # The first thread may have ended before the others.
        return status[b"State"][:1] in {b"Z", b"X"} and int(status[b"Threads"]) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return _is_gone(process)
    except (OSError, KeyError, ValueError):
        return False


def process_of(thread: int) -> tuple[int, str] | None:
    """(process id, name) of the process that the thread belongs to; None if it cannot be seen. Process 0: it is in
    another pid namespace."""
    if not _Sight.is_ours:
        return UNSEEN
    try:
        pid = int(_status(thread)[b"Tgid"])
        return pid, read_small(f"/proc/{pid}/comm").rstrip(b"\n").decode("utf-8", "backslashreplace")
    except (OSError, KeyError):
        return None


def _status(thread: int) -> dict[bytes, bytes]:
    lines = read_small(f"/proc/{thread}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def _mask(status: dict[bytes, bytes], name: bytes) -> int:
    return int(status.get(name, b"0"), 16)


def _is_gone(thread: int) -> bool:
    """Not merely invisible to us, as with /proc mounted hidepid=2."""
    try:
        os.kill(thread, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
