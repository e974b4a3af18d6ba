"""How many requests of one user wait at once, so that whoever has very many that hang keeps nobody else out.

pyfuse3 has a task for each request that it serves, and `MAX_REQUESTS` of them. A user has as many as are left for all
others: half where nobody else waits, a third where another does the same. What he asks beyond that is put off
(mountd/native/_fastpath_kept.c) until one of those under way has ended; whoever is killed meanwhile is let go at once.
Root and the owner of the mount have no bound.

Event loop only.
"""

from __future__ import annotations

import errno
from collections import Counter, OrderedDict
from dataclasses import dataclass

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse.interrupts import Interrupts
from hfs.mountd.kernel import fastpath

MAX_REQUESTS = 2000
"""Requests served at once. With pyfuse3's 99 as many readers hung in the source stopped every other read."""

_MOST_PUT_OFF = 65_536
"""More wait as others do: 300 bytes each."""


@dataclass(eq=False, slots=True)
class _PutOff:
    quota: RequestQuota
    which: int
    uid: int
    token: int
    thread: int

    def end(self) -> None:
        """The caller is being killed."""
        self.quota.give_up(self, errno.EINTR)


class RequestQuota:
    """The requests that are served, and those that are put off, the oldest of each user first."""

    def __init__(self, interrupts: Interrupts, metrics: Metrics) -> None:
        self._interrupts = interrupts
        self._metrics = metrics
        self._served = 0
        self._of: Counter[int] = Counter()
        self._put_off: dict[int, OrderedDict[int, _PutOff]] = {}
        self._count = 0
        """Of those that are put off."""
        self._stopped = False

    def begin(self, uid: int) -> None:
        """A request of this user is served. It needs an `end`."""
        self._served += 1
        self._of[uid] += 1

    def end(self, uid: int) -> None:
        """It is not any more: of each user who has room again two go on, so that it is used up."""
        self._served -= 1
        self._of[uid] -= 1
        if not self._of[uid]:
            del self._of[uid]
        for other in () if self._stopped else list(self._put_off):
            for _ in range(2):
                if other in self._put_off and self._has_room(other):
                    self._go_on(other)

    def puts_off(self, which: int, uid: int, token: int, thread: int) -> bool:
        """Whether a request waits until its user has room. `which`: the extension's; `token`, `thread`: as
        `fastpath.request` says."""
        if (uid not in self._put_off and self._has_room(uid)) or self._count >= _MOST_PUT_OFF:
            return False
        off = _PutOff(self, which, uid, token, thread)
        self._put_off.setdefault(uid, OrderedDict())[which] = off
        self._count += 1
        self._metrics.add("requests_put_off")
        self._interrupts.add(token, off)
        return True

    def stop(self) -> None:
        """No more requests are begun: what is put off stays so."""
        self._stopped = True

    def give_up_all(self) -> None:
        """Nobody serves the mount any more: an error for all. Unanswered, a READ would keep its page locked."""
        for offs in list(self._put_off.values()):
            for off in list(offs.values()):
                self.give_up(off, errno.EIO)

    def _has_room(self, uid: int) -> bool:
        return self._of[uid] < MAX_REQUESTS - self._served

    def _go_on(self, uid: int) -> None:
        _, off = self._put_off[uid].popitem(last=False)
        self._forget(off)
        fastpath.go_on(off.which)

    def give_up(self, off: _PutOff, number: int) -> None:
        """It is answered with this errno."""
        del self._put_off[off.uid][off.which]
        self._forget(off)
        fastpath.give_up(off.which, number)

    def _forget(self, off: _PutOff) -> None:
        if not self._put_off[off.uid]:
            del self._put_off[off.uid]
        self._count -= 1
        self._interrupts.remove(off.token)
