"""What `hfs cache warm|evict|unpin|check|list` ask of the running daemon, and of a cache that no daemon uses.

Done over the same parts that serve readers: a warm is a prefetch that is reported, a check reads what is staged again.
Paths are relative to the mount. A path that fails is counted and named, the rest goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

import trio

from hfs.mountd.cache import Cache, CheckedFile, StagedRow, is_open
from hfs.mountd.control.connection import Report
from hfs.mountd.control.estimate import WarmEstimate
from hfs.mountd.control.progress import ProgressCounter
from hfs.mountd.control.warm import Warming
from hfs.mountd.core.errors import HfsError, StagingError, VersionChanged
from hfs.mountd.fetch import Fetcher
from hfs.mountd.namespace import Namespace
from hfs.mountd.source import Source
from hfs.mountd.wire.protocol import Result, Row, Rows

_ROWS = 1000

EVERYTHING = (b"",)
"""The prefix of all paths."""

_ASK_S = 2.0
"""For so long the source is asked what a path names: what is staged of it can be dropped while the source hangs."""


class StagedCommands:
    """On a cache, whoever has it open. Paths are taken as they are.

    A command raises HfsError when it cannot do anything at all; single paths that fail are counted in `failed` and
    named in `faults`. A fault given to `report` is not given again in the Result."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    async def unpin(self, paths: Sequence[bytes]) -> Result:
        """What is staged of these may go for room again; no paths: all."""
        paths = await self._named(paths)
        await self._cache.committer.wait_committed()
        source_ids = await self._source_ids() if paths else None
        files, size_bytes = await self._cache.pinned.unpin(paths or EVERYTHING, source_ids)
        return Result(files=files, bytes=size_bytes)

    async def evict(
        self,
        paths: Sequence[bytes],
        everything: bool,
        older_than_s: float,
        report: Report,  # noqa: ARG002 - the same for all commands; this one is done before anybody looks
    ) -> Result:
        """Drop what is staged below `paths`, or all of the cache; open files are skipped. `older_than_s`: only what was
        last used longer ago than that, and is not pinned: `detail` then has "pinned_files" that stay, however old. What
        overlays may have open goes later: "held_files", "held_bytes", and the "holders", processes that have made
        them."""
        await self._cache.committer.wait_committed()
        paths = await self._named(paths)
        prefixes = paths if paths and not everything else EVERYTHING
        source_ids = None if everything else await self._source_ids()
        skipped = pinned = 0
        before_s = self._cache.context.clock() - older_than_s if older_than_s else None
        async with contextlib.aclosing(self._cache.listing.rows(prefixes, source_ids)) as rows:
            async for row in rows:
                file = self._cache.files.get_nowait(row.version)
                skipped += file is not None and is_open(file)
                pinned += row.pinned and before_s is not None
        held: dict[int, int] = {}
        files, freed_bytes = await self._cache.evictions.evict_paths(prefixes, source_ids, before_s, held)
        detail: dict[str, object] = {"pinned_files": pinned} if pinned else {}
        if held:
            telling = self._cache.telling
            holders = await telling.generation.holders(telling.number)
            detail |= {"held_files": len(held), "held_bytes": sum(held.values()), "holders": holders}
        return Result(files=files, bytes=freed_bytes, skipped=skipped, detail=detail)

    async def check(self, paths: Sequence[bytes], against_source: bool, report: Report) -> Result:
        """Verify the checksums of what is staged, and with `against_source` that the source has the same bytes."""
        progress = ProgressCounter()
        paths = await self._named(paths)
        source_ids = await self._source_ids() if paths or against_source else None
        async with contextlib.aclosing(self._cache.checker.check(paths or EVERYTHING, source_ids)) as found:
            async for checked in found:
                progress.files_total += 1
                progress.bytes_total += checked.bytes
                try:
                    if checked.fault is not None:
                        raise StagingError(checked.fault)
                    if against_source:
                        await self._compare(checked)
                    progress.files += 1
                    progress.bytes += checked.bytes
                except HfsError as error:
                    progress.fail(checked.path, error)
                await report(progress.progress())
        return progress.result()

    async def list(self, paths: Sequence[bytes], report: Report) -> Result:
        """Report what is staged, a thousand rows at a time."""
        await self._cache.committer.wait_committed()
        paths = await self._named(paths)
        batch: list[Row] = []
        files = total_bytes = 0
        source_ids = await self._source_ids() if paths else None
        async with contextlib.aclosing(self._cache.listing.rows(paths or EVERYTHING, source_ids)) as rows:
            async for row in rows:
                files += 1
                total_bytes += row.staged_bytes
                batch.append(self._row(row))
                if len(batch) == _ROWS:
                    await report(Rows(batch))
                    batch = []
        if batch:
            await report(Rows(batch))
        return Result(files=files, bytes=total_bytes)

    def _row(self, row: StagedRow) -> Row:
        file = self._cache.files.get_nowait(row.version)
        return Row(
            path=row.path,
            size=row.version.size,
            staged_bytes=row.staged_bytes,
            complete=row.complete,
            source_id=row.version.source_id,
            inode=row.version.inode,
            opened=file is not None and is_open(file),
            last_use_ns=row.last_use_s * 10**9,
            pinned=row.pinned,
        )

    async def _named(self, paths: Sequence[bytes]) -> Sequence[bytes]:
        """What the paths name."""
        return paths

    async def _source_ids(self) -> Collection[str] | None:
        """The file systems whose files the paths may name; None: all."""
        return None

    async def _compare(self, checked: CheckedFile) -> None:
        """Raise StagingError unless every staged chunk equals the source's bytes of the same version."""
        raise NotImplementedError


class CacheCommands(StagedCommands):
    """Of the daemon of a mount."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        source: Source,
        fetcher: Fetcher,
        new_warming: Callable[[Report, bool], Warming],
        new_estimate: Callable[[Report], WarmEstimate],
    ) -> None:
        super().__init__(cache)
        self._namespace = namespace
        self._source = source
        self._fetcher = fetcher
        self._new_warming = new_warming
        self._new_estimate = new_estimate

    async def warm(self, paths: Sequence[bytes], jobs: int, pin: bool, report: Report) -> Result:
        """Stage files and trees; returns when all that was staged would survive a crash. `pin`: it goes only by name
        from then on."""
        return await self._new_warming(report, pin).run(paths, jobs)

    async def estimate(self, paths: Sequence[bytes], report: Report) -> Result:
        """What `warm` would read and keep, the room that there is, and the time."""
        return await self._new_estimate(report).run(paths)

    async def _named(self, paths: Sequence[bytes]) -> Sequence[bytes]:
        """Where links are followed; as they are, where the source does not say."""
        named: list[bytes] = []
        for path in paths:
            found = path
            with trio.move_on_after(_ASK_S), contextlib.suppress(HfsError):
                found = (await self._namespace.links.follow(path)).path
            named.append(found)
        return named

    async def _source_ids(self) -> Collection[str] | None:
        return await self._source.ids_below()

    async def _compare(self, checked: CheckedFile) -> None:
        node = await self._namespace.lookups.resolve(checked.path)
        if node.version != checked.version:
            raise VersionChanged("the source has another version now; the staged one is no longer served")
        file = await self._cache.files.get(checked.version, checked.path)
        self._cache.files.pin(file)
        try:
            for index in list(file.present):
                staged = await self._cache.reader.read_chunk(file, index)
                if staged != await self._fetcher.bypass(node, file, file.chunk(index)):
                    self._cache.reclaim_queue.give_up(file, [index])
                    raise StagingError(f"chunk {index} differs from the source and is dropped")
        finally:
            self._cache.files.unpin(file)
