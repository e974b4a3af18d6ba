"""POSIX semaphores that lie in shared memory: how the ranks of a node wait for each other.

A rank that waits sleeps in the kernel (a futex) and costs nothing, and a post wakes exactly whom it is for. They also
order memory: what was written before a post is seen after the wait that it ends, on every processor (POSIX.1-2017, base
definitions 4.12). MPI's windows ask for such a barrier by the processor's or the system's own means where they are used
by loads and stores (MPI-4.0, 12.7.1, unified model); no MPI call is needed, so a thread may use them that must not call
MPI.

By ctypes: the standard library has semaphores between processes only for those that one Python has forked.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

SEMAPHORE_BYTES = 64
"""A cache line of its own; sem_t is 32 bytes in glibc and at most 32 in musl."""

_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _function(name: str, *arguments: type) -> ctypes._NamedFuncPointer:
    found = getattr(ctypes.CDLL(None, use_errno=True), name)
    found.argtypes = arguments
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return] # getattr


_sem_init = _function("sem_init", ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
_sem_post = _function("sem_post", ctypes.c_void_p)
_sem_trywait = _function("sem_trywait", ctypes.c_void_p)
try:
    _sem_clockwait = _function("sem_clockwait", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
except AttributeError:  # glibc before 2.30, musl
    _sem_timedwait = _function("sem_timedwait", ctypes.c_void_p, ctypes.c_void_p)

    def _wait_until(address: int, timeout_s: float) -> int:
        return int(_sem_timedwait(address, ctypes.byref(_timespec(time.time() + timeout_s))))
else:

    def _wait_until(address: int, timeout_s: float) -> int:
        until = _timespec(time.monotonic() + timeout_s)
        return int(_sem_clockwait(address, _CLOCK_MONOTONIC, ctypes.byref(until)))


def _timespec(at_s: float) -> _Timespec:
    whole = int(at_s)
    return _Timespec(whole, int((at_s - whole) * 1e9))


class Semaphore:
    """The semaphore at an address of this process; the memory must stay mapped as long as it is used."""

    def __init__(self, address: int) -> None:
        self._address = address

    def init(self) -> None:
        """Make it, with the count 0. Once, by one process, before anybody uses it. Raises OSError."""
        self._check(_sem_init(self._address, 1, 0))

    def post(self) -> None:
        """Add one; wakes one that waits. Never waits. Raises OSError (EOVERFLOW past 2**31)."""
        self._check(_sem_post(self._address))

    def take_nowait(self) -> bool:
        """Take one if there is one."""
        while _sem_trywait(self._address):
            if (number := ctypes.get_errno()) == errno.EAGAIN:
                return False
            self._unless_interrupted(number)
        return True

    def take(self, timeout_s: float) -> bool:
        """Take one, if there is one within the time. Returns early, with False, after a signal."""
        if self.take_nowait():
            return True
        if not _wait_until(self._address, timeout_s):
            return True
        if (number := ctypes.get_errno()) != errno.ETIMEDOUT:
            self._unless_interrupted(number)
        return False

    @staticmethod
    def _check(answer: int) -> None:
        if answer:
            number = ctypes.get_errno()
            raise OSError(number, f"semaphore: {os.strerror(number)}")

    @staticmethod
    def _unless_interrupted(number: int) -> None:
        if number != errno.EINTR:
            raise OSError(number, f"semaphore: {os.strerror(number)}")
