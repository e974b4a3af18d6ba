"""Room: whether a chunk would be staged now, and if not, why; and making it, by evicting what the policy gives up.

`Admission` is asked before bytes are fetched in order to be staged, and by the writer before it takes them; what finds
no room wakes the evictor. The evictor also looks every second while anything is written, since others write to the disk
too; and it tries a disk that has failed, once the pause is over. Under a policy that makes room it keeps some free
ahead of the puts, which cannot wait for it. It chooses among pages of the oldest rows of the index, corrected by what
memory knows better; it never looks at all rows. The choice itself is policies/cache/eviction.py.
"""

from __future__ import annotations

from math import inf

import trio

from hfs.mountd.cache.committer import Committer
from hfs.mountd.cache.files import StagedFileTable
from hfs.mountd.cache.grants import CacheQuota
from hfs.mountd.cache.index import IndexFailed, StagedRow
from hfs.mountd.cache.objects.context import CacheContext
from hfs.mountd.cache.objects.file import StagedFile, recall
from hfs.mountd.cache.reclaimer import Reclaimer
from hfs.mountd.cache.rows import RowUpdates
from hfs.mountd.cache.told_objects import LATE_S
from hfs.mountd.core.errors import NotTaken
from hfs.policies.cache.admission import blocks_bytes, object_overhead_bytes
from hfs.policies.cache.eviction import (
    FRUITLESS_S,
    IDLE_S,
    PAGE_ENTRIES,
    RENEWAL_SHARE,
    Entry,
    EvictionPolicy,
    ahead_bytes,
    idle_before_s,
    victims,
)

_LOOK_EVERY_S = 1.0
_LOOK_IDLE_EVERY_S = 10.0
"""How often the disk is asked for its free space, while we write and while we do not."""

_AWAITED_S = 0.02
_USES_EVERY_S = 1.0


class Evictor:
    """`run` and `watch` are tasks of the cache's nursery. Event loop only."""

    def __init__(
        self,
        context: CacheContext,
        files: StagedFileTable,
        reclaimer: Reclaimer,
        committer: Committer,
        updates: RowUpdates,
        policy: EvictionPolicy,
        grants: CacheQuota | None = None,
    ) -> None:
        """`grants`: of a root that several caches share."""
        self._context = context
        self._grants = grants
        self._committer = committer
        self._files = files
        self._reclaimer = reclaimer
        self._telling = reclaimer.telling
        self._updates = updates
        self._uses_heard_s = -inf
        self._policy = policy
        self._wanted_bytes = 0
        self._more = trio.Event()
        self._fruitless_until = -1.0
        self._idle_s = IDLE_S

    def refused(self, wanted_bytes: int, idle_s: int = IDLE_S) -> None:
        """A put of so many bytes found no room; what was not used for `idle_s` may go for it."""
        self._idle_s = min(self._idle_s, idle_s)
        if trio.current_time() >= self._fruitless_until:
            self._wanted_bytes = max(self._wanted_bytes, wanted_bytes)
            self._more.set()

    async def wait_room(self, wanted_bytes: int) -> bool:
        """Evict what may go until so much fits. Whether it does."""
        room = self._context.room
        if room.fits(wanted_bytes):
            return True
        await self.look()  # others may have come or gone
        if self._grants is not None and not room.fits(wanted_bytes):
            await self._grants.want(wanted_bytes)
        if room.fits(wanted_bytes) or (not room.over_bytes() and trio.current_time() < self._fruitless_until):
            return room.fits(wanted_bytes)
        freed_bytes = await self._make_room_for_good(wanted_bytes)
        if not freed_bytes and self._policy.makes_room and self._committer.uncommitted_bytes:
            await self._committer.wait_committed()  # as in `run`
            freed_bytes = await self._make_room_for_good(wanted_bytes)
        if freed_bytes:
            await self.look()
        else:
            self._fruitless_until = trio.current_time() + FRUITLESS_S
        return room.fits(wanted_bytes)

    async def _make_room_for_good(self, wanted_bytes: int = 0) -> int:
        """Evict as `make_room` does, and wait for what overlays are about to let go of."""
        room_bytes = self._context.room.used_bytes
        freed_bytes = await self.make_room(wanted_bytes)
        with trio.move_on_after(LATE_S):
            while self._telling.leavers.awaited_bytes and not self._context.room.fits(wanted_bytes):  # noqa: ASYNC110 - as below
                await trio.sleep(_AWAITED_S)
        return max(freed_bytes, room_bytes - self._context.room.used_bytes)

    async def wait_ahead(self) -> None:
        """Until what would go by itself is gone: what is there then stays, unless more is put or others write."""
        await self.look()
        await self.make_room()

    def need_bytes(self, wanted_bytes: int = 0) -> tuple[int, bool]:
        """(how much is to go so that this fits and what puts want, whether it must go whatever the policy protects)."""
        room, awaited_bytes = self._context.room, self._telling.leavers.awaited_bytes
        over_bytes = room.over_bytes()
        if over_bytes:
            return max(0, over_bytes - awaited_bytes), True
        kept_free_bytes = self._ahead_bytes() if self._policy.makes_room else 0
        wanted_bytes = max(wanted_bytes, self._wanted_bytes, kept_free_bytes)
        return max(0, min(room.shortfall_bytes(wanted_bytes), room.used_bytes) - awaited_bytes), False

    def _ahead_bytes(self) -> int:
        """With makers twice a batch: what goes now is there a second later."""
        limit_bytes = self._context.room.limit_bytes()
        return max(ahead_bytes(limit_bytes), self._batch_bytes())

    def _batch_bytes(self) -> int:
        """So much goes together at least, since a generation ends for it."""
        return self._context.room.limit_bytes() // RENEWAL_SHARE if self._telling.makers.files else 0

    def woken(self) -> None:
        """Look whether something must go."""
        self._more.set()

    def charged(self) -> None:
        """Room was taken: see that some is ahead, of a shared size by asking for more, else by evicting."""
        grants_lack = self._grants is not None and self._grants.lacks(self._ahead_bytes())
        by_evicting = self._policy.makes_room and trio.current_time() >= self._fruitless_until
        if grants_lack or (by_evicting and self.need_bytes()[0]):
            self._more.set()

    async def watch(self) -> None:
        """Ask the disk what it has free, and other caches what they lack; after a pause try it. Never returns."""
        looked_at_bytes, looked_at_s = -1, 0.0
        while True:
            await trio.sleep(_LOOK_EVERY_S)
            if self._context.health.failing and not self._context.health.resting:
                await self._try_out()
            now = trio.current_time()
            put_bytes = self._context.metrics["staging_put_bytes"]
            is_asked = self._grants is not None and await self._grants.is_asked()
            if put_bytes == looked_at_bytes and now - looked_at_s < _LOOK_IDLE_EVERY_S and not is_asked:
                continue
            looked_at_bytes, looked_at_s = put_bytes, now
            await self.look()
            if self._grants is not None:
                await self._grants.keep(self._make_room_for_good)
            if self._context.room.over_bytes():
                self._more.set()

    async def _try_out(self) -> None:
        """The disk was at rest, and perhaps nothing will be staged for hours: whether it takes anything."""
        context = self._context
        try:
            await context.threads.sync(context.disk.try_out)
            await context.threads.change_index(context.index.writer.try_out)
        except OSError as error:
            context.health.failed(error, "trying the cache disk")
        except IndexFailed as error:
            context.health.index_failed(error, "trying the index")
        else:
            context.health.answered()

    async def look(self) -> None:
        """Ask the disk now."""
        try:
            self._context.room.measured(await self._context.threads.sweep(self._context.disk.space))
        except OSError as error:
            self._context.health.failed(error, "asking the cache disk for its free space")

    async def run(self) -> None:
        """Evict when asked. Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            if self._grants is not None:
                await self._grants.want(max(self._wanted_bytes, self._ahead_bytes()), again=True)
            if await self.make_room():
                await self.look()
            elif self.need_bytes()[0] and self._policy.makes_room and self._committer.uncommitted_bytes:
                # A small cache may be full of what is too new to go: only what is durable has a row to be chosen by.
                await self._committer.wait_committed()
                self._more.set()
                continue
            elif self._telling.leavers.awaited_bytes:
                pass  # what wants room finds it in a moment
            elif self.need_bytes()[0]:
                self._fruitless_until = trio.current_time() + FRUITLESS_S
            self._wanted_bytes, self._idle_s = 0, IDLE_S

    async def make_room(self, wanted_bytes: int = 0) -> int:
        """Evict as much as is needed now, as far as the policy allows. Returns the bytes given back."""
        freed_bytes = 0
        after = (-1, -1)
        await self._hear_uses()
        least_bytes = self._batch_bytes() if self.need_bytes(wanted_bytes)[0] else 0
        with self._context.health.index_faults("choosing what to evict"):
            while True:
                need_bytes, forced = self.need_bytes(wanted_bytes)
                need_bytes = max(need_bytes, least_bytes - freed_bytes - self._telling.leavers.awaited_bytes)
                if need_bytes <= 0:
                    break
                now_s = int(self._context.clock())
                rows = await self._context.threads.ask_index(self._context.index.reader.oldest, after, PAGE_ENTRIES)
                if not rows:
                    break
                before_s = idle_before_s(self._policy, now_s, forced=forced, idle_s=self._idle_s)
                if before_s is not None and rows[0].last_use_s >= before_s:
                    break  # and all after it were used later still
                after = (rows[-1].last_use_s, rows[-1].object_id)
                hinted = set(await self._context.others.planned([row.object_id for row in rows]))
                entries = [self._entry(row, row.object_id in hinted) for row in rows]
                chosen = victims(entries, need_bytes, self._policy, now_s=now_s, forced=forced, idle_s=self._idle_s)
                versions = {row.object_id: row.version for row in rows}
                targets = [(entry.key, versions[entry.key]) for entry in chosen]
                _, batch_bytes = await self._reclaimer.evict(targets, by_name=False)
                freed_bytes += batch_bytes
                if len(rows) < PAGE_ENTRIES:
                    break
        return freed_bytes

    async def _hear_uses(self) -> None:
        """Of what is used through overlays only the index knows, in a moment."""
        now_s = trio.current_time()
        if self._telling.makers.files and now_s >= self._uses_heard_s + _USES_EVERY_S:
            self._uses_heard_s = now_s
            self._telling.hear()
            self._updates.told(self._telling.take_used())
            await self._updates.flush()

    def _entry(self, row: StagedRow, hinted: bool) -> Entry:
        file = self._files.peek(row.version)
        stays = row.object_id in self._telling.leavers or (
            self._telling.leavers.some_are_late and not self._telling.may_go(row.object_id)
        )
        if file is None or file.object_id != row.object_id:
            return Entry(row.object_id, row.room_bytes, row.last_use_s, pinned=stays, hinted=hinted)
        recall(file)
        last_use_s = max(row.last_use_s, file.last_use_ns // 1_000_000_000)
        return Entry(row.object_id, row.room_bytes, last_use_s, file.superseded, file.busy or stays, hinted)


class Admission:
    """`ready` is set once what an earlier run left is gone: before that nothing is staged."""

    def __init__(self, context: CacheContext, evictor: Evictor, ready: trio.Event) -> None:
        self._context = context
        self._evictor = evictor
        self._ready = ready
        self._refused_bytes = 0
        """Of the last chunk, if it found no room."""
        self._behind_when_full: int | None = None
        """What the queue of the disk had refused when room was last found missing."""

    @property
    def open(self) -> bool:
        """The disk is to be written to now."""
        return self._ready.is_set() and not self._context.health.resting

    @property
    def refused(self) -> bool:
        """The last chunk found no room, and would find none now."""
        return self._refused_bytes > 0 and not self._context.room.fits(self._refused_bytes)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be charged; if not, the evictor is told."""
        if self._context.room.fits(size_bytes):
            return True
        self._refused_bytes = size_bytes
        self._behind_when_full = self._context.metrics["staging_behind"]
        self._evictor.refused(size_bytes)
        return False

    def charge(self, size_bytes: int) -> None:
        """Account for what is about to be written."""
        self._context.room.charge(size_bytes)
        self._refused_bytes = 0
        self._evictor.charged()

    def admits_nowait(self, file: StagedFile, size_bytes: int) -> bool:
        """Whether a chunk of so many bytes of this file would be staged now."""
        overhead_bytes = file.overhead_bytes() if file.object_id is None else 0
        return self.open and not file.present.too_many and self.has_room(blocks_bytes(size_bytes) + overhead_bytes)

    def fits_nowait(self, size_bytes: int) -> bool:
        """Whether a file of one chunk of so many bytes, of which nothing is known yet, would be staged now."""
        return self.open and self.has_room(blocks_bytes(size_bytes) + object_overhead_bytes(1))

    def why_not(self, size_bytes: int) -> str | None:
        """Why so many bytes of one file would not be staged now, for people; None: they would, if the disk keeps up."""
        if self.fits_nowait(size_bytes):
            return None
        return self._context.health.why_resting() or self._context.room.what_limits()

    def refusal(self, size_bytes: int) -> NotTaken:
        """What to raise for so many bytes that were not taken, even if by now there is room again."""
        was_full = self._behind_when_full == self._context.metrics["staging_behind"]
        why = self.why_not(size_bytes) or (self._context.room.what_limits() if was_full else None)
        return NotTaken(why or "the cache disk does not keep up")
