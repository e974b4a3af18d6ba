"""libc by ctypes: system calls that Python has no function for. A call gives the interpreter's lock away."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a call, which is `what` for people. Raises OSError, with the errno of this thread, if it is
    negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
