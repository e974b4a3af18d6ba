"""A process that makes system calls at random on the files of a mount, as a plain user, and checks each byte it gets.

    calls.py FOLDER SEED BEAT

FOLDER has files NUMBER of any size, as scripts/benchmarks/trust_calls.py makes them. BEAT, a file of 16 bytes, says
what is under way for whoever looks in, since nothing here runs while a call hangs: when it began (nanoseconds of
CLOCK_MONOTONIC; 0: nothing is), and the number of the call in CALLS. One request: {"seconds": S}; the answer has
"calls", "wrong" (bytes), "failed" (errors but ESTALE), "stale", "ended" (children that a signal has ended which nobody
sent) and "said" (a few of the errors). Knows nothing of hfs.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import signal
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from barrier import serve
from pattern import wrong_bytes

NOBODY = 65534
PAGE = 4096
MOST_OPEN = 12
PIECE = 256 << 10
MAX_SAID = 5
CHILD_WRONG, CHILD_FAILED, CHILD_STALE = 1, 2, 3
CHILD_LIVES_S = 0.05
ADVICE = (os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_NORMAL, os.POSIX_FADV_WILLNEED)
FS_IOC_GETFLAGS = 0x80086601
XATTRS = ("user.any", "system.posix_acl_access", "security.capability")


class Caller:
    """One process."""

    def __init__(self, seed: int, beat: str) -> None:
        self.random = random.Random(seed)
        self.sizes = {int(entry.name): entry.stat().st_size for entry in os.scandir(".")}
        self.open: list[tuple[int, int]] = []
        """(number of the file, descriptor)"""
        self.counts: Counter[str] = Counter()
        self.said: list[str] = []
        self.beat = mmap.mmap(os.open(beat, os.O_RDWR), 16)

    def do(self, seconds: float) -> dict[str, Any]:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            number = self.random.choices(range(len(CALLS)), WEIGHTS)[0]
            struct.pack_into("qq", self.beat, 0, time.monotonic_ns(), number)
            self.counts["calls"] += 1
            try:
                CALLS[number](self)
            except OSError as error:
                self.counts["stale" if error.errno == errno.ESTALE else "failed"] += 1
                if error.errno != errno.ESTALE and len(self.said) < MAX_SAID:
                    self.said.append(f"{CALLS[number].__name__}: {error}")
            finally:
                struct.pack_into("q", self.beat, 0, 0)
        while self.open:
            self.close()
        return {**self.counts, "said": self.said}

    def any_open(self) -> tuple[int, int]:
        if not self.open:
            self.open_one()
        return self.random.choice(self.open)

    def any_part(self, number: int) -> tuple[int, int]:
        """Offset and size, now and then past the end."""
        size = self.sizes[number]
        offset = self.random.randrange(size + PAGE)
        if self.random.randrange(4):
            offset -= offset % PAGE
        return offset, self.random.choice((1, 100, PAGE, 5000, 64 << 10, PIECE))

    def check(self, number: int, offset: int, data: bytes, wanted: int) -> int:
        """How many bytes are wrong; those that are missing are."""
        there = max(0, min(wanted, self.sizes[number] - offset))
        return wrong_bytes(number, offset, data) + max(0, there - len(data)) + max(0, len(data) - there)

    # -- calls --------------------------------------------------------------------------------------------------------

    def open_one(self) -> None:
        number = self.random.choice(list(self.sizes))
        flags = os.O_RDONLY | (os.O_DIRECT if self.random.randrange(12) == 0 else 0)
        self.open.append((number, os.open(str(number), flags)))
        if len(self.open) > MOST_OPEN:
            self.close()

    def open_and_close(self) -> None:
        os.close(os.open(str(self.random.choice(self.open)[0] if self.open else 0), os.O_RDONLY))

    def close(self) -> None:
        if self.open:
            os.close(self.open.pop(self.random.randrange(len(self.open)))[1])

    def read(self) -> None:
        number, descriptor = self.any_open()
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            return
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        data = os.read(descriptor, PIECE)
        self.counts["wrong"] += wrong_bytes(number, at, data)
        if not data and at < self.sizes[number]:
            self.counts["wrong"] += 1
        if not data:
            os.lseek(descriptor, 0, os.SEEK_SET)

    def pread(self) -> None:
        number, descriptor = self.any_open()
        offset, size = self.any_part(number)
        with mmap.mmap(-1, PIECE) as pages:  # for those that were opened with O_DIRECT
            offset, size = offset - offset % PAGE, -(-size // PAGE) * PAGE
            with memoryview(pages)[:size] as room:
                got = os.preadv(descriptor, [room], offset)
            self.counts["wrong"] += self.check(number, offset, pages[:got], size)

    def pread_unaligned(self) -> None:
        number, descriptor = self.any_open()
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            return
        offset, size = self.any_part(number)
        self.counts["wrong"] += self.check(number, offset, os.pread(descriptor, size, offset), size)

    def whole(self) -> None:
        number = self.random.choice(list(self.sizes))
        with open(str(number), "rb", buffering=0) as file:
            data = file.readall()
        self.counts["wrong"] += self.check(number, 0, data, self.sizes[number])

    def drop(self) -> None:
        number, descriptor = self.any_open()
        offset, size = self.any_part(number) if self.random.randrange(2) else (0, 0)
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def advise(self) -> None:
        number, descriptor = self.any_open()
        os.posix_fadvise(descriptor, *self.any_part(number), self.random.choice(ADVICE))

    def ioctl(self) -> None:
        request = self.random.choice((termios.TCGETS, termios.FIONREAD, FS_IOC_GETFLAGS, self.random.getrandbits(32)))
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.any_open()[1], request, bytes(64))

    def xattr(self) -> None:
        where = self.random.choice((self.any_open()[1], str(self.random.choice(list(self.sizes))), "."))
        os.listxattr(where)
        with contextlib.suppress(OSError):
            os.getxattr(where, self.random.choice(XATTRS))

    def getdents(self) -> None:
        self.counts["wrong"] += {int(entry.name) for entry in os.scandir(".")} != set(self.sizes)

    def stat(self) -> None:
        number = self.random.choice(list(self.sizes))
        self.counts["wrong"] += os.stat(str(number)).st_size != self.sizes[number]

    def mapped(self) -> None:
        """In a child: a page that cannot be had ends it."""
        number = self.random.choice([number for number, size in self.sizes.items() if size])
        self.child(lambda: self.touch(number))

    def touch(self, number: int) -> int:
        descriptor, size = os.open(str(number), os.O_RDONLY), self.sizes[number]
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as view:
            wrong = 0
            for _ in range(8):
                begin = self.random.randrange(size)
                wrong += wrong_bytes(number, begin, view[begin : begin + PAGE])
                if self.random.randrange(3) == 0:
                    view.madvise(mmap.MADV_DONTNEED)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return wrong

    def forked(self) -> None:
        """A child that reads by the descriptors of its parent."""
        number, descriptor = self.any_open()
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            size = self.sizes[number]
            self.child(lambda: self.check(number, 0, os.pread(descriptor, size, 0), size))

    def killed(self) -> None:
        self.child(lambda: self.touch(max(self.sizes)) or self.read_on(), kills=True)

    def read_on(self) -> int:
        while True:
            self.whole()
            self.drop()

    def child(self, work: Callable[[], int], *, kills: bool = False) -> None:
        seed = self.random.random()
        pid = os.fork()
        if pid == 0:
            code = CHILD_FAILED
            try:
                self.random.seed(seed)
                code = CHILD_WRONG if work() else 0
            except OSError as error:
                code = CHILD_STALE if error.errno == errno.ESTALE else CHILD_FAILED
            finally:
                os._exit(code)
        if kills:
            time.sleep(self.random.uniform(0, CHILD_LIVES_S))
            os.kill(pid, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if ended < 0 and not kills:
            self.counts["ended"] += 1
        for name, code in (("wrong", CHILD_WRONG), ("failed", CHILD_FAILED), ("stale", CHILD_STALE)):
            self.counts[name] += ended == code


WEIGHTED = {
    Caller.open_one: 20, Caller.open_and_close: 20, Caller.close: 12, Caller.read: 10, Caller.pread: 20,
    Caller.pread_unaligned: 20, Caller.whole: 8, Caller.drop: 14, Caller.advise: 4, Caller.ioctl: 3, Caller.xattr: 3,
    Caller.getdents: 2, Caller.stat: 4, Caller.mapped: 3, Caller.forked: 1, Caller.killed: 1,
}  # fmt: skip
CALLS, WEIGHTS = list(WEIGHTED), list(WEIGHTED.values())


def main() -> None:
    folder, seed, beat = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    beat = os.path.abspath(beat)
    os.chdir(folder)
    caller = Caller(seed, beat)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    serve(caller.do)


if __name__ == "__main__":
    main()
