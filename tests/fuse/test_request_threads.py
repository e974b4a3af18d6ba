"""Threads that read requests from the connection, traced: they ask nothing of the kernel that only they could answer.

Each of their system calls is one of those that are expected, and what they write on the connection are replies: the
kernel takes a notification (`unique` 0) only when nobody has the pages or the directory locked, and who has them locked
may wait for this very thread. The event loop answers requests too: it may call more, and notifies no more than they.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.fuse.harness import Hfs, HfsMount, run
from tests.fuse.injection import SETTLED
from tests.support.pattern import check, write_pattern

FILES, BYTES = 24, 300_000
TOGETHER = 3
"""Of these each reader has a descriptor."""

ON_THE_CONNECTION = {"read", "write", "writev", "splice"}
MUST = {"openat2": "RESOLVE_CACHED", "preadv2": "RWF_NOWAIT"}
OF_THE_CACHE = {"openat2", "preadv2", "fstat", "newfstatat", "statx", "cachestat", "syscall_0x1c3", "close"}
"""Of what lies in memory only. 0x1c3: cachestat, for an older strace."""
OWN = {
    "futex", "epoll_wait", "sched_yield", "clock_gettime", "restart_syscall",
    "mmap", "munmap", "mprotect", "madvise", "brk", "pipe2", "fcntl", "exit",
}  # fmt: skip
"""Of the thread's own memory, its rest, and its pipe for `splice`."""

CALL = re.compile(r"(\w+)\((.*)")
HEADER = re.compile(r'iov_base="((?:\\x[0-9a-f]{2})+)"')
CONNECTION = "".join(f"\\x{byte:02x}" for byte in b"/dev/fuse")


@dataclass
class Trace:
    calls: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, line: str, *, reads_requests: bool) -> None:
        call = CALL.match(line)
        if call is None:
            return  # the end of one that is known, or of strace
        name, arguments = call[1], call[2]
        self.calls[name] = self.calls.get(name, 0) + reads_requests
        if not reads_requests:
            self._written(arguments, line)
        elif name not in ON_THE_CONNECTION | OF_THE_CACHE | OWN:
            self.faults.append(f"not expected: {line}")
        elif MUST.get(name, "") not in arguments and "<detached" not in arguments:
            self.faults.append(f"may wait for a disk: {line}")
        elif name in ("write", "writev"):
            self._written(arguments, line)

    def _written(self, arguments: str, line: str) -> None:
        if CONNECTION not in arguments:
            return
        header = HEADER.search(arguments)
        said = bytes.fromhex(header[1].replace("\\x", "")) if header is not None else b""
        if len(said) < 16:
            self.faults.append(f"a header that is not seen: {line}")
        elif not int.from_bytes(said[8:16], "little"):
            self.faults.append(f"a notification: {line}")


def request_threads(pid: int) -> list[str]:
    """Those that read from the connection: the data plane's."""
    names = {task: Path(f"/proc/{pid}/task/{task}/comm").read_text() for task in os.listdir(f"/proc/{pid}/task")}
    return [task for task, name in names.items() if name.startswith("hfs-plane-")]


@contextlib.contextmanager
def traced(pid: int, tmp_path: Path) -> Iterator[Trace]:
    """What the threads that read requests call meanwhile."""
    strace = shutil.which("strace")
    if strace is None or run(strace, "-o", tmp_path / "try", "true").returncode:
        pytest.skip("strace is not installed, or may not watch")
    threads, trace = request_threads(pid), Trace()
    assert threads
    loop = str(pid)
    with contextlib.ExitStack() as ended:
        for thread in (*threads, loop):
            what = "trace=write,writev,pwrite64,pwritev" if thread == loop else "trace=all"
            command = [strace, "-y", "-xx", "-s", "24", "-e", what, "-o", str(tmp_path / thread), "-p", thread]
            process = ended.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            ended.callback(process.terminate)
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "attached" in line, line
        yield trace
    for thread in (*threads, loop):
        for line in (tmp_path / thread).read_text().splitlines():
            trace.add(line, reads_requests=thread != loop)


def tree(root: Path) -> Path:
    (root / "a").mkdir(parents=True)
    for number in range(FILES):
        write_pattern(root / "a" / str(number), number + 1, BYTES)
    return root


def use(hfs: Hfs, part: int) -> None:
    """Reads a few files again and again in pieces whose pages go in between, and opens them while others do so."""
    chosen = Random(part)
    kept = {number: os.open(hfs.path / "a" / str(number), os.O_RDONLY) for number in range(TOGETHER)}
    try:
        for descriptor in kept.values():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(100):
            number = chosen.randrange(TOGETHER)
            if chosen.randrange(3) == 0:
                os.posix_fadvise(kept[number], 0, 0, os.POSIX_FADV_DONTNEED)
            offset = chosen.randrange(BYTES // 4096) * 4096
            check(number + 1, offset, os.pread(kept[number], 4096, offset))
            os.close(os.open(hfs.path / "a" / str(chosen.randrange(TOGETHER)), os.O_RDONLY))
            if chosen.randrange(10) == 0:
                other = chosen.randrange(FILES)
                check(other + 1, 0, (hfs.path / "a" / str(other)).read_bytes())
    finally:
        for descriptor in kept.values():
            os.close(descriptor)


@pytest.mark.parametrize("cache", ["1MiB", "2G"])
def test_who_reads_requests_waits_for_nothing_of_the_mount(tmp_path: Path, hfs_mount: HfsMount, cache: str) -> None:
    """With bytes that only memory has, and with bytes of objects."""
    options = ("-o", "siblings=0", "--io-mode", "daemon")
    hfs = hfs_mount(tree(tmp_path / "source"), *options, chunk_bytes=1 << 20, cache_size=cache, env=SETTLED)
    if cache != "1MiB":
        assert hfs.cache_command("warm", hfs.path).returncode == 0
        hfs.umount()
        hfs.mount()
    with traced(hfs.pid, tmp_path) as trace, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: use(hfs, part), range(4)))
    assert trace.faults == []
    assert trace.calls["writev"] > 100
    assert int(hfs.status()["data_plane"]["opens_cached"]) > 0
