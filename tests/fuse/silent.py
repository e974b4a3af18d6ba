"""A file system that never answers, as any plain user can make one of FUSE, on a directory of its own.

Its server reads no request at all: who looks at it waits, and can be killed; not so if it reads, and says nothing.
"""

import ctypes
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fuse.users import MEMBER

_LIMIT_S = 20.0
"""On a machine that has much else to do. What does not hang takes milliseconds."""
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def silent_mount(place: str | os.PathLike[str], uid: int = MEMBER.uid, kind: str = "fuse.silent") -> Iterator[None]:
    """On this directory or file, which is made that user's, for all users."""
    is_directory = os.path.isdir(place)
    os.chown(place, uid, uid)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        mode = 0o40000 if is_directory else 0o100000
        options = f"fd={fd},rootmode={mode:o},user_id={uid},group_id={uid},allow_other"
        if _libc.mount(b"user_id=0", os.fsencode(place), kind.encode(), ctypes.c_ulong(6), options.encode()):
            raise OSError(ctypes.get_errno(), "mount", os.fspath(place))
        try:
            yield
        finally:
            _libc.umount2(os.fsencode(place), 2)
    finally:
        os.close(fd)


def told_in_time(question: Callable[[], object]) -> str:
    """What it gives, or raises, as text, in a process of its own; `no answer` where that hangs."""
    answer, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr(question()).encode())
        except BaseException as error:  # noqa: BLE001 - it is told
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(answer, "rb") as file:
        is_told = bool(select.select([file], [], [], _LIMIT_S)[0])
        text = file.read().decode() if is_told else "no answer"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return text
