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

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.limits import Memory
from hfs.mountd.fetch import PagePusher
from hfs.mountd.files.delegations import Delegations
from hfs.mountd.kernel import DataPlane
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.native import cachestat
from hfs.mountd.native.cachestat import resident_of
from hfs.policies.geometry import Extent
from hfs.policies.traffic import WHOLE_BYTES

_SAMPLE_FILES = 64
"""An open and a cachestat each: some 10 ms in all when nothing hangs."""

_LOOKED_AT = 20_000
"""Files that the kernel knows, among which those in use are looked for: 3 ms of the event loop."""

_WAIT_S = 0.05

_PIDS = 8
"""Processes that have looked: what the data plane has answered is told a moment later (`delegations`)."""

NOTE = "reads answered by the kernel's page cache never reach the daemon and are in no counter here"


_LOOK_S = 0.02
"""How often it is looked how much was read: two hundred READs."""

_LEAST_BYTES = 4 << 20
_PART = 16
"""Of a file must have been read. To push it all for nobody costs some five times what reading this part took."""

_STEP_BYTES = 4 << 20
"""Pushed at a time: some 2 ms of a thread."""


class PageFill:
    """Large staged files that are read in no order through the page cache of the mount: brought into it as a whole.

    A READ costs two wake-ups, 100 us, whoever answers it; what is put into the page cache in steps of megabytes costs a
    quarter of that a byte, and its readers do not ask at all. So once somebody has read a fair part of a file in no
    order, the rest is pushed: from where the last read ended on, around the end of the file, one file at a time, if
    memory has room for twice as much. Random reads of 128 KiB were 1.5 to 2 times as fast the first time; who reads in
    order has the kernel's readahead, and was slower by a third with pushes beside. Where the kernel reads files by
    itself (passthrough) nothing is done here. Decides when; the bytes are the reader's (`cache.reader`), the pushes the
    pusher's. Event loop only.

    `run` is a task of the service.
    """

    def __init__(
        self, plane: DataPlane, delegations: Delegations, cache: Cache, pusher: PagePusher, memory: Memory
    ) -> None:
        self._plane = plane
        self._delegations = delegations
        self._cache = cache
        self._pusher = pusher
        self._memory = memory
        self._at_bytes: dict[Node, int] = {}
        """Of files that were filled: when so much has been read, they are again."""

    async def run(self) -> None:
        """Never returns."""
        if not self._pusher.on:
            await trio.sleep_forever()
        while True:
            await self._delegations.wait_large_reads()
            files = self._delegations.large_reads()
            self._at_bytes = {node: self._at_bytes[node] for node, _ in files if node in self._at_bytes}
            for node, file in files:
                begin = self._where_to_begin(node, file)
                if begin is not None:
                    await self._fill(node, file, begin)
            await trio.sleep(_LOOK_S)

    def _where_to_begin(self, node: Node, file: StagedFile) -> int | None:
        progress = self._plane.progress(node.id)
        if progress is None:
            return None
        wanted = max(_LEAST_BYTES, file.size // _PART)
        if progress.size_bytes < self._at_bytes.get(node, wanted) or not self._memory.has_room(file.size):
            return None
        self._at_bytes[node] = progress.size_bytes + file.size  # the kernel has let go of most of it by then
        return progress.end

    async def _fill(self, node: Node, file: StagedFile, begin: int) -> None:
        begin -= begin % _STEP_BYTES
        for start in [*range(begin, file.size, _STEP_BYTES), *range(0, begin, _STEP_BYTES)]:
            extent = Extent(start, min(start + _STEP_BYTES, file.size))
            try:
                data = await self._cache.reader.read(file, extent)
            except StagingError:
                return  # counted there
            if not self._delegations.is_read(node, file) or not self._memory.has_room(file.size):
                return
            if not await self._pusher.push(node, start, memoryview(data)):
                return


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
