"""`Board`: what the daemons of a root tell each other while they run: how their readers wait.

For the source it concerns those that read from the same server; for the disk, on which the root lies, all of them.

Each writes a notice into its own record and reads those of the others, by read(2): who maps a file that another user
may cut short dies of it. Whoever keeps caches in the root may tell what he likes; what follows is bounded by who
reads (`policies/prefetch/yielding.py`). Everything blocks, for some 20 us a neighbour; one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from hfs.mountd.ledger.ledger import Ledger, Registration
from hfs.mountd.ledger.record import Notice, read_notice
from hfs.policies.prefetch.yielding import Waits

_LOOK_NS = 1_000_000_000
"""How often it is looked who is there, in a folder that may have many names."""

_GOOD_NS = 500_000_000
"""A notice that is older says nothing: its daemon has nothing to tell, has stopped or was killed. They are written
every twentieth of a second, by daemons that may be late."""

_MOST_HEARD = 64
"""A millisecond of a thread, twenty times a second."""


class NeighbourWaits(NamedTuple):
    """How the readers of one neighbour wait."""

    source: Waits | None
    """None: for another server than ours."""
    disk: Waits


class Board:
    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        device: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`device`: st_dev of the source. Those of one file system wait for the same server."""
        self._ledger = ledger
        self._registration = registration
        self._device = device
        self._clock_ns = clock_ns
        self._others: dict[str, bool] = {}
        """By name, whether they wait for the same server."""
        self._looked_ns: int | None = None
        self._told: tuple[Waits, Waits] | None = None

    def exchange(self, source: Waits, disk: Waits) -> dict[str, NeighbourWaits] | None:
        """Tell how ours wait, and hear of theirs, by name: what is fresh. None: there is nobody to tell.

        Raises OSError where our own record, or the folder, cannot be read or written.
        """
        now_ns = self._clock_ns()
        if self._looked_ns is None or now_ns >= self._looked_ns + _LOOK_NS:
            self._looked_ns = now_ns
            self._look()
        if not self._others:
            return None
        # Who only waits on says so again; who has nothing new to say becomes out of date.
        if source.waiting or disk.waiting or self._told != (source, disk):
            self._told = source, disk
            self._registration.tell(Notice(now_ns, source, disk))
        heard = {name: self._hear(name, now_ns) for name in self._others}
        return {name: waits for name, waits in heard.items() if waits is not None}

    def _hear(self, name: str, now_ns: int) -> NeighbourWaits | None:
        fd = self._ledger.open_record(name)
        if fd is None:
            return None
        try:
            notice = read_notice(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        if notice is None or not now_ns - _GOOD_NS <= notice.told_ns <= now_ns + _GOOD_NS:
            return None
        return NeighbourWaits(notice.source if self._others[name] else None, notice.disk)

    def _look(self) -> None:
        others = [entry for entry in self._registration.others() if entry.running]
        # Our user's first: others may keep as many records there as they like.
        others.sort(key=lambda entry: (not entry.is_ours, entry.name))
        self._others = {
            entry.name: entry.serving is not None and entry.serving.device == self._device
            for entry in others[:_MOST_HEARD]
        }
