"""Listing what is staged, by path, some rows of the index at a time.

For the lists, evictions and checks of `Staging`. Reads the index only; ends early, counted, if that fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence

from mountd.cache.index import IndexFailed, StagedRow
from mountd.cache.objects.context import CacheContext

__all__ = ["pages_of"]

_PAGE = 1000
"""Rows in memory at a time."""


async def pages_of(
    context: CacheContext, prefixes: Collection[bytes], source_ids: Collection[str] | None
) -> AsyncGenerator[Sequence[StagedRow], None]:
    """Pages of the rows at or below `prefixes` (see `Staging.rows`), in the order in which they were staged."""
    wanted = frozenset(prefix.strip(b"/") for prefix in prefixes)
    last = 0
    while True:
        try:
            rows = await context.threads.ask_index(context.index.page, last, _PAGE)
        except IndexFailed as error:
            context.health.index_failed(error, "listing staged files")
            return
        if not rows:
            return
        last = rows[-1].object_id
        yield [
            row
            for row in rows
            if (source_ids is None or row.version.source_id in source_ids) and _is_below(row.path, wanted)
        ]


def _is_below(path: bytes, wanted: frozenset[bytes]) -> bool:
    """Whether one of `wanted` is the path, or a directory above it. As dear as the path is deep, however many they are:
    a request may name a million."""
    while path not in wanted and path:
        path = path.rpartition(b"/")[0]
    return path in wanted
