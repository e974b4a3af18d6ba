"""Page-cache residency: how much of the files in use the kernel holds, asked of the kernel (cachestat(2), Linux 6.5).

What lies in the page cache is answered without us, so no counter of ours shows it. A sample of the files in use is
opened through the mount, and where the kernel reads staged files by itself one of these in the cache; one sample at a
time. `hfs status` waits a moment for it and otherwise shows the last one, so that status answers while everything
hangs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.background import start_guarded
from hfs.mountd.namespace import Namespace
from hfs.mountd.native import cachestat
from hfs.mountd.native.cachestat import resident_of
from hfs.policies.traffic import WHOLE_BYTES

_SAMPLE_FILES = 64
"""An open and a cachestat each: some 10 ms in all when nothing hangs."""

_LOOKED_AT = 20_000
"""Files that the kernel knows, among which those in use are looked for: 3 ms of the event loop."""

_WAIT_S = 0.05

_PIDS = 8
"""Processes that have looked: what the data plane has answered is told a moment later (`delegations`)."""

NOTE = "reads answered by the kernel's page cache never reach the daemon and are in no counter here"


class Residency:
    """The last sample. Event loop only; the sampling runs in a thread."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        mountpoint: str | None,
        nursery: trio.Nursery,
        kernel_reads_objects: Callable[[], bool],
    ) -> None:
        """`mountpoint` None: the mount is not seen from here. `kernel_reads_objects`: it may, by itself."""
        self._namespace = namespace
        self._cache = cache
        self._kernel_reads_objects = kernel_reads_objects
        self._root = None if mountpoint is None else os.fsencode(mountpoint)
        self._nursery = nursery
        self._running: trio.Event | None = None
        self.looked_at_bytes = 0
        """Sizes of the small files that were opened for this, for each open: nobody has read them."""
        self._pids: deque[int] = deque(maxlen=_PIDS)
        self._of_mount: dict[str, object] = _NOTHING
        self._of_objects: dict[str, object] = _NOTHING

    @property
    def figures(self) -> dict[str, object]:
        """The key `page_cache` of the status."""
        return {"note": NOTE, **self._of_mount, "staged": self._of_objects}

    def is_looking(self, pid: int) -> bool:
        """Whether this process opens, or has opened, files to look at them only: that is no use of them."""
        return pid in self._pids

    def _started(self, pid: int) -> None:
        self._pids.append(pid)  # in the thread; one step for the interpreter

    async def refresh(self) -> None:
        """Sample again; returns after 50 ms at the latest, with or without a new sample. Never a sample of a mount that
        is not seen."""
        if self._running is None:
            self._running = trio.Event()
            start_guarded(self._nursery, "residency sample", self._sample, self._running)
        with trio.move_on_after(_WAIT_S):
            await self._running.wait()

    async def _sample(self, done: trio.Event) -> None:
        try:
            await self._sample_objects()
            if self._root is not None:
                await self._sample_mount(self._root)
        finally:
            self._running = None
            done.set()

    async def _sample_objects(self) -> None:
        self._of_objects = _NOTHING
        if self._kernel_reads_objects():
            with contextlib.suppress(OSError):
                looks = await self._cache.publisher.publish_some(_SAMPLE_FILES, resident_of)
                found = [look for look in looks if look is not None]
                if len(found) == len(looks):
                    cached, total = (sum(each[i] for each in found) for i in (0, 1))
                    self._of_objects = _figures(len(found), total, cached)

    async def _sample_mount(self, root: bytes) -> None:
        # Of a file that is passed through the mount has no pages; the name of a retired node leads to another.
        known = islice(self._namespace.nodes.files(), _LOOKED_AT)
        used = (n for n in known if (n.pushed or n.opens) and not n.passed and not n.retired)
        nodes = list(islice(used, _SAMPLE_FILES))
        paths = [os.path.join(root, node.path) for node in nodes]
        self.looked_at_bytes += sum(size for node in nodes if (size := node.attributes.size) <= WHOLE_BYTES)
        found: tuple[int, int] | None = (0, 0)
        if paths:  # else no process is needed
            try:
                found = await trio.to_thread.run_sync(resident, paths, self._started, abandon_on_cancel=True)
            except OSError:
                return
        if found is not None:
            self._of_mount = _figures(len(paths), found[1], found[0])


def _figures(files: int, total_bytes: int, resident_bytes: int | None) -> dict[str, object]:
    return {"sampled_files": files, "sampled_bytes": total_bytes, "resident_bytes": resident_bytes}


_NOTHING = _figures(0, 0, None)


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
