"""Listing what is staged, by path, some rows of the index at a time.

For the lists, evictions and checks of `Staging`. Reads the index only; ends early, counted, if that fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence

from mountd.index import IndexFailed, StagedRow
from mountd.staging_ground import Ground

__all__ = ["pages_of"]

_PAGE = 1000
"""Rows in memory at a time."""


async def pages_of(
    ground: Ground, prefixes: Collection[bytes], source_id: str | None
) -> AsyncGenerator[Sequence[StagedRow], None]:
    """Pages of the rows at or below `prefixes` (see `Staging.rows`), in the order in which they were staged."""
    wanted = tuple(prefix.strip(b"/") for prefix in prefixes)
    below = tuple(prefix + b"/" for prefix in wanted if prefix)
    everything = b"" in wanted
    last = 0
    while True:
        try:
            rows = await ground.threads.ask_index(ground.index.page, last, _PAGE)
        except IndexFailed as error:
            ground.health.index_failed(error, "listing staged files")
            return
        if not rows:
            return
        last = rows[-1].object_id
        yield [
            row
            for row in rows
            if (source_id is None or row.version.source_id == source_id)
            and (everything or row.path in wanted or row.path.startswith(below))
        ]
