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

from hfs.mountd.core.waits import Waits
from hfs.mountd.ledger.ledger import Ledger, Registration
from hfs.mountd.ledger.notice import Notice, Notices, read_notices

_LOOK_NS = 1_000_000_000
"""How often it is looked who is there: a file is opened for each record."""

_GOOD_NS = 500_000_000
"""A notice that is older says nothing: its daemon has nothing to tell, has stopped or was killed. They are written
every twentieth of a second, by daemons that may be late."""

_MOST_HEARD = 64
"""Each keeps a descriptor open."""


class Board:
    """Until closed."""

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
        self._heard: dict[str, int] = {}
        """Descriptors of the others' records, by name."""
        self._same_source: set[str] = set()
        """Those of them that wait for the same server."""
        self._looked_ns: int | None = None
        self._told: tuple[Waits, Waits] | None = None

    @property
    def is_alone(self) -> bool:
        """There was nobody to tell when it was looked last."""
        return not self._heard

    def exchange(self, source: Waits, disk: Waits) -> dict[str, Notices]:
        """Tell how ours wait, if there is anybody to tell, and hear of theirs, by name: what is fresh, and concerns us.

        Raises OSError where our own record, or the folder, cannot be read or written.
        """
        now_ns = self._clock_ns()
        if self._looked_ns is None or now_ns >= self._looked_ns + _LOOK_NS:
            self._looked_ns = now_ns
            self._look()
        if not self._heard:
            return {}
        # Who only waits on says so again; who has nothing new to say becomes out of date.
        if source.waiting or disk.waiting or self._told != (source, disk):
            self._told = source, disk
            self._registration.tell(now_ns, source, disk)
        heard = {name: self._hear(name, now_ns) for name in self._heard}
        return {name: notices for name, notices in heard.items() if any(notices)}

    def _hear(self, name: str, now_ns: int) -> Notices:
        try:
            source, disk = read_notices(self._heard[name])
        except OSError:
            return Notices(None, None)
        return Notices(_fresh(source, now_ns) if name in self._same_source else None, _fresh(disk, now_ns))

    def _look(self) -> None:
        others = [entry for entry in self._ledger.listed() if entry.running and entry.name != self._registration.name]
        names = [entry.name for entry in others]
        self._same_source = {e.name for e in others if e.serving is not None and e.serving.device == self._device}
        # Our user's first: others may keep as many records there as they like.
        names.sort(key=lambda name: (name.partition("-")[0] != str(os.geteuid()), name))
        there = set(names[:_MOST_HEARD])
        for name in self._heard.keys() - there:
            os.close(self._heard.pop(name))
        for name in there - self._heard.keys():
            if (fd := self._ledger.open_record(name)) is not None:
                self._heard[name] = fd

    def close(self) -> None:
        """Hear nobody any more."""
        for fd in self._heard.values():
            os.close(fd)
        self._heard.clear()


def _fresh(notice: Notice | None, now_ns: int) -> Notice | None:
    return notice if notice is not None and now_ns - _GOOD_NS <= notice.told_ns <= now_ns + _GOOD_NS else None
