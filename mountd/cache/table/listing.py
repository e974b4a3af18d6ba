"""Listing what is staged, by path, some rows of the index at a time. Reads the index only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from hfs.mountd.cache.index import IndexFailed, StagedRow
from hfs.mountd.cache.objects import CacheContext

_PAGE = 1000
"""Rows in memory at a time."""


class StagedListing:
    """What is committed."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context

    async def rows(
        self, prefixes: Collection[bytes] = (b"",), source_ids: Collection[str] | None = None
    ) -> AsyncGenerator[StagedRow, None]:
        """All of it, in the order in which it was staged. Bounded memory, however much there is.

        `prefixes`: paths relative to the source, of files or directories; b"" is the source itself. `source_ids`:
        of these file systems only. Ends early, counted, if the index fails.
        """
        async with aclosing(pages_of(self._context, prefixes, source_ids)) as pages:
            async for rows in pages:
                for row in rows:
                    yield row

    def pinned_pages(
        self, prefixes: Collection[bytes], source_ids: Collection[str] | None
    ) -> AsyncGenerator[Sequence[StagedRow], None]:
        """Of those that are pinned, some hundreds at a time."""
        return pages_of(self._context, prefixes, source_ids, pinned=True)

    async def entered(self, numbers: Sequence[int]) -> set[int]:
        """Those of these objects that the index has. Raises StagingError."""
        found: set[int] = await self._context.threads.ask_index(self._context.index.reader.entered, numbers)
        return found

    async def still_staged(self, numbers: Sequence[int]) -> tuple[int, int]:
        """How many of these objects the index has, and the bytes of their files. Raises StagingError."""
        rows = await self._context.threads.ask_index(self._context.index.reader.rows, numbers)
        return len(rows), sum(row.version.size for row in rows)


async def pages_of(
    context: CacheContext, prefixes: Collection[bytes], source_ids: Collection[str] | None, *, pinned: bool = False
) -> AsyncGenerator[Sequence[StagedRow], None]:
    """Pages of the rows that `StagedListing.rows` gives one by one. `pinned`: of those that are pinned."""
    page = context.index.reader.pinned_rows if pinned else context.index.reader.page
    wanted = frozenset(prefix.strip(b"/") for prefix in prefixes)
    last = 0
    while True:
        try:
            rows = await context.threads.ask_index(page, last, _PAGE)
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
