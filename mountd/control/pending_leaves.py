"""Small files that the data plane has stored for a warm, and that are not in the index yet.

Counted in `work` once they are. Nothing is fetched here, and nothing is known of a file but its object.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from hfs.mountd.cache import Cache
from hfs.mountd.control.pending_files import PendingFiles
from hfs.mountd.control.progress import ProgressCounter
from hfs.mountd.core.errors import HfsError
from hfs.mountd.fetch import Place, Staged
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes


class PendingLeaves:
    """Those of one command."""

    def __init__(self, cache: Cache, work: ProgressCounter, files: PendingFiles) -> None:
        self._cache = cache
        self._work = work
        self._files = files
        self._pending: dict[int, tuple[Place, int, bool, int]] = {}
        """By number of the object: the place, the size, whether it was fetched, and what counts as held of it."""
        self.seen = 0
        """Files that it said enough of,"""
        self.fetched_files = self.fetched_room_bytes = 0
        """and those of them that were fetched."""

    def add(self, place: Place, one: Staged) -> bool:
        """The data plane has this one. False: it says too little of it."""
        if one.size is None or (one.size and not one.number):
            return False
        self._work.found(one.size)
        self.seen += 1
        if one.number:
            room_bytes = blocks_bytes(one.size) + object_overhead_bytes(1)
            if one.fetched:
                self.fetched_files += 1
                self.fetched_room_bytes += room_bytes
            held_bytes = self._files.held(one.number, room_bytes)
            self._pending[one.number] = place, one.size, one.fetched, held_bytes
            self._files.held_bytes += held_bytes
        else:
            self._work.skip(0)
        return True

    async def settle(self) -> None:
        """Count those that are in the index by now. Never raises."""
        numbers = list(self._pending)
        try:
            entered = await self._cache.listing.entered(numbers)
        except HfsError:
            return  # asked again
        for number in entered & self._pending.keys():
            _, size_bytes, is_fetched, _ = self._pending.pop(number)
            (self._work.done if is_fetched else self._work.skip)(size_bytes)
            self._files.staged(number, size_bytes)

    async def settle_all(self) -> Sequence[Place]:
        """Wait until it is known of each what has become of it. Those that did not get into the index."""
        if self._pending:
            await self._cache.committer.wait_committed()
            await self.settle()
        lost, self._pending = self._pending, {}
        for _, size_bytes, _, held_bytes in lost.values():
            self._work.forget(size_bytes)
            self._files.held_bytes -= held_bytes
        return [place for place, *_ in lost.values()]
