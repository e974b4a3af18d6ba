"""Page-cache residency: how much of the files in use the kernel holds, asked of the kernel (cachestat(2), Linux 6.5).

What lies in the page cache is answered without us, so no counter of ours shows it. A sample of the files in use is
opened through the mount, one sample at a time; `hfs status` waits a moment for it and otherwise shows the last one, so
that status answers while everything hangs.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.kernel import resident
from hfs.mountd.namespace import Namespace
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

    def __init__(self, namespace: Namespace, mountpoint: str | None, nursery: trio.Nursery) -> None:
        """`mountpoint` None: the mount is not seen from here."""
        self._namespace = namespace
        self._root = None if mountpoint is None else os.fsencode(mountpoint)
        self._nursery = nursery
        self._running: trio.Event | None = None
        self.looked_at_bytes = 0
        """Sizes of the small files that were opened for this, for each open: nobody has read them."""
        self._pids: deque[int] = deque(maxlen=_PIDS)
        self.figures: dict[str, object] = {"note": NOTE, "sampled_files": 0, "sampled_bytes": 0, "resident_bytes": None}

    def is_looking(self, pid: int) -> bool:
        """Whether this process opens, or has opened, files to look at them only: that is no use of them."""
        return pid in self._pids

    def _started(self, pid: int) -> None:
        self._pids.append(pid)  # in the thread; one step for the interpreter

    async def refresh(self) -> None:
        """Sample again; returns after 50 ms at the latest, with or without a new sample. Never a sample of a mount that
        is not seen."""
        if self._root is None:
            return
        if self._running is None:
            self._running = trio.Event()
            start_guarded(self._nursery, "residency sample", self._sample, self._running)
        with trio.move_on_after(_WAIT_S):
            await self._running.wait()

    async def _sample(self, done: trio.Event) -> None:
        paths: list[bytes] = []
        assert self._root is not None
        try:
            # Of a file that is passed through the mount has no pages; the name of a retired node leads to another.
            known = islice(self._namespace.nodes.files(), _LOOKED_AT)
            used = (n for n in known if (n.pushed or n.opens) and not n.passed and not n.retired)
            nodes = list(islice(used, _SAMPLE_FILES))
            paths = [os.path.join(self._root, node.path) for node in nodes]
            self.looked_at_bytes += sum(size for node in nodes if (size := node.attributes.size) <= WHOLE_BYTES)
            found: tuple[int, int] | None = (0, 0)
            if paths:  # else no process is needed
                found = await trio.to_thread.run_sync(resident, paths, self._started, abandon_on_cancel=True)
        except OSError:
            found = None
        finally:
            self._running = None
            done.set()
        if found is not None:
            cached, total = found
            self.figures = {"note": NOTE, "sampled_files": len(paths), "sampled_bytes": total, "resident_bytes": cached}
