"""The end of staging: everything put becomes durable, and the index is told that nothing is left to clean up.

Called by `Staging.drain`, when nothing more is taken on. May be cancelled: the next start then looks for what is left.
"""

from __future__ import annotations

from mountd.cache.committer import Committer
from mountd.cache.files import StagedFileTable
from mountd.cache.index import IndexFailed
from mountd.cache.objects import CacheContext, ObjectIdAllocator
from mountd.cache.reclaimer import Reclaimer

__all__ = ["end_well"]


async def end_well(
    context: CacheContext,
    files: StagedFileTable,
    names: ObjectIdAllocator,
    committer: Committer,
    reclaimer: Reclaimer,
    *,
    was_ready: bool,
) -> None:
    """`was_ready`: what an earlier run had left was cleaned up. A broken index is counted."""
    committer.disbelieve_all()
    try:
        await committer.wait_committed()
        await reclaimer.wait_idle()
        files.note_all()
        await files.flush_uses()
        async with reclaimer.lock:
            await reclaimer.unlinked.forget()
        state = await context.threads.ask_index(context.index.state)
        idle = committer.idle and reclaimer.idle and not reclaimer.deferred and was_ready and names.all_settled
        # What could not be removed or punched is accounted in memory only: then the next start must look.
        if idle and state.used_bytes == context.room.used_bytes:
            unused = names.unused_from
            await context.threads.change_index(context.index.settle, unused, unused)
    except IndexFailed as error:
        context.health.index_failed(error, "closing the cache")
