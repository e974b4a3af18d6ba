"""The end of staging: everything put becomes durable, and the index is told that nothing is left to clean up.

Called by `Staging.drain`, when nothing more is taken on. May be cancelled: the next start then looks for what is left.
"""

from __future__ import annotations

from mountd.cache.files import Files
from mountd.cache.index import IndexFailed
from mountd.cache.objects import Ground, Names
from mountd.cache.sweeper import Sweeper
from mountd.cache.vouching import Vouching

__all__ = ["end_well"]


async def end_well(
    ground: Ground, files: Files, names: Names, vouching: Vouching, sweeper: Sweeper, *, was_ready: bool
) -> None:
    """`was_ready`: what an earlier run had left was cleaned up. A broken index is counted."""
    vouching.disbelieve_all()
    try:
        await vouching.wait_vouched()
        await sweeper.wait_idle()
        files.note_all()
        await files.flush_uses()
        async with sweeper.lock:
            await sweeper.unlinked.forget()
        state = await ground.threads.ask_index(ground.index.state)
        idle = vouching.idle and sweeper.idle and not sweeper.deferred and was_ready and names.all_settled
        # What could not be removed or punched is accounted in memory only: then the next start must look.
        if idle and state.used_bytes == ground.room.used_bytes:
            unused = names.unused_from
            await ground.threads.change_index(ground.index.settle, unused, unused)
    except IndexFailed as error:
        ground.health.index_failed(error, "closing the cache")
