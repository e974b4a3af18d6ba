"""Objects that were evicted and unlinked, until their unlinks are durable: only then may the index forget them.

What the index forgets may be on the disk before an unlink is, and an object that came back after a power failure would
be found by nobody. Such a sync costs a commit of the disk's journal, so it is one for many objects; until then they
stand among the doomed, and whoever starts after a crash unlinks them again. Their room is given back at once: that is
free on the disk, whatever comes back if the machine fails.

Part of the reclaimer, under its lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from hfs.mountd.cache.index import IndexFailed
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.disk import Disk

_AT_ONCE = 2048
"""So many are forgotten together: a sync every two seconds at a thousand evictions a second, and after a crash 2048
names are tried: 10 ms."""


class Unlinked:
    """Event loop only."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context
        self._numbers: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    async def add(self, numbers: Iterable[int]) -> None:
        """These are unlinked."""
        self._numbers.update(numbers)
        if len(self._numbers) >= _AT_ONCE:
            await self.forget()

    async def forget(self) -> None:
        """Have the index forget them. If the disk or the index refuses they stay, which is counted."""
        numbers = sorted(self._numbers)
        if not numbers:
            return
        try:
            await self._context.threads.sweep(sync_disk, self._context.disk)
            await self._context.threads.change_index(self._context.index.writer.removed, numbers)
        except OSError as error:
            self._context.health.failed(error, "making evictions durable")
        except IndexFailed as error:
            self._context.health.index_failed(error, "entering evictions")
        else:
            self._numbers.difference_update(numbers)


def sync_disk(disk: Disk) -> None:
    """In a thread: all that was unlinked before is gone for good."""
    disk.sync_all()
