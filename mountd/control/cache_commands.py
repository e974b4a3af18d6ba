"""What `hfs cache warm|evict|unpin|check|list` ask of the running daemon, and of a cache that no daemon uses.

Done over the same parts that serve readers: a warm is a prefetch that is reported, a check reads what is staged again.
Paths are relative to the mount. A path that fails is counted and named, the rest goes on.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

import trio

from hfs.mountd.cache import Cache, CheckedFile, StagedRow, is_open
from hfs.mountd.control.connection import Report
from hfs.mountd.control.estimate import WarmEstimate
from hfs.mountd.control.pending_files import ProgressCounter
from hfs.mountd.control.warm import Warming
from hfs.mountd.core.attributes import Attributes, Version
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import HfsError, SourceError, SourceTimeout, StagingError, VersionChanged
from hfs.mountd.fetch import Fetcher, SmallPipeline
from hfs.mountd.kernel import expire_names, forget_all_names, forget_attributes
from hfs.mountd.namespace import LeadsOut, NamesNothing, Namespace, Node, Refreshed, Refreshing
from hfs.mountd.source import Source
from hfs.mountd.wire.protocol import Result, Row, Rows

_ROWS = 1000

EVERYTHING = (b"",)
"""The prefix of all paths."""

_ASK_S = 2.0
"""For so long the source is asked what a path names: what is staged of it can be dropped while the source hangs."""


_TELL_S = 10.0
"""The kernel takes a hundred thousand names a second. It waits for a directory where a look-up is under way."""
_HANGS_S = 2.0
"""Longer than a look-up takes; as long as one is waited for whose answer was known."""


class RefreshWork:
    """`hfs refresh`: what the daemon and the kernel know of paths is asked for anew, since the source has changed.

    What changed is another version, which is fetched when it is read; what did not keeps all that there is of it. Who
    has a file open goes on with the version that it has. Pinned files are looked at in the background, since those that
    have changed would stay for ever otherwise.

    `tell_kernel` runs a function of the mount's descriptor of /dev/fuse in a thread that may wait for the kernel; who
    is cancelled leaves it there. `run_in_thread`: as trio.to_thread.run_sync.
    """

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        source: Source,
        pipeline: SmallPipeline,
        nursery: trio.Nursery,
        tell_kernel: Callable[[Callable[[int], bool]], Awaitable[bool]],
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        tells_all: Callable[[], bool],
    ) -> None:
        """`tells_all`: earlier daemons of this mount may have told the kernel of names that nobody knows here, or
        look-ups wait for an end of this."""
        self._namespace = namespace
        self._refreshing = Refreshing(namespace)
        self._tells_all = tells_all
        self._cache = cache
        self._source = source
        self._pipeline = pipeline
        self._nursery = nursery
        self._tell_kernel = tell_kernel
        self._run_in_thread = run_in_thread

    async def refresh(self, paths: Sequence[bytes]) -> Result:
        """Returns when the next look at these paths, and below, sees what the source has."""
        work = ProgressCounter()
        every: list[Refreshed] = []
        all_paths: list[bytes] = []

        async def refresh(path: bytes) -> None:
            every.append(
                await self._refreshing.refresh(path, self._pipeline.directory_delegations.recall, self._run_in_thread)
            )
            work.files += every[-1].count
            all_paths.append(path)

        for path in paths:
            try:
                await refresh(path)
                await self._follow(path, refresh, leads_on=every[-1].leads_on)
            except HfsError as error:
                work.fail(path, error)
        if not await self._told(every):
            late = "look-ups hang there, which the kernel waits for: what has changed is seen when they end"
            work.fail(paths[0] if paths else b"", SourceTimeout(late))
        if len(self._cache.pinned):
            start_guarded(self._nursery, "pinned files", self._look_at_pinned, all_paths)
        return work.result()

    async def _follow(self, path: bytes, refresh: Callable[[bytes], Awaitable[None]], *, leads_on: bool) -> None:
        """Where links lead from `path`, for a job that opens it. Raises LeadsOut and StagingError, and SourceTimeout
        where the source does not say it, unless it is known that there are no links."""

        async def onward(where: bytes) -> None:
            waiting.deadline = math.inf
            await refresh(where)
            waiting.deadline = trio.current_time() + _HANGS_S

        try:
            with trio.fail_after(_HANGS_S) as waiting:
                await self._namespace.links.follow(path, onward)
        except NamesNothing:
            pass
        except LeadsOut:
            raise
        except (SourceError, trio.TooSlowError) as error:
            if leads_on:
                raise SourceTimeout("what links name there is not refreshed: the source does not say it") from error

    async def _told(self, every: Sequence[Refreshed]) -> bool:
        """False: it cannot be told. A look-up that hangs in the source holds its directory: whoever tells of a name in
        it would wait for that, and with him all others that look there."""
        hangs = self._namespace.silence.is_on() or not await self._pipeline.wait_answered()
        hangs |= not await self._namespace.asking.wait_answered(_HANGS_S)
        if hangs or self._tells_all() or any(one.is_partial for one in every):
            is_told = await self._tell_kernel(lambda connection_fd: _tell_all(connection_fd, every))
            if is_told or hangs:
                return is_told
        with trio.move_on_after(_TELL_S) as telling:
            await self._tell_kernel(lambda connection_fd: _tell(connection_fd, every))
        return not telling.cancelled_caught

    async def _look_at_pinned(self, paths: Sequence[bytes]) -> None:
        """Those that are not at their path any more, or have changed, go as soon as they are not open."""
        source_ids = await self._source.ids_below()
        async with aclosing(self._cache.listing.pinned_pages(paths, source_ids)) as pages:
            async for rows in pages:
                by_directory: dict[bytes, list[StagedRow]] = {}
                for row in rows:
                    by_directory.setdefault(posixpath.dirname(row.path), []).append(row)
                for directory, there in by_directory.items():
                    try:
                        now = await self._versions(directory, [posixpath.basename(row.path) for row in there])
                    except HfsError:
                        continue  # nobody can tell
                    for row, version in zip(there, now, strict=True):
                        if version != row.version:
                            await self._cache.files.supersede(row.version)

    async def _versions(self, directory: bytes, names: Sequence[bytes]) -> Sequence[Version | None]:
        """Of these names; None: there is no such file."""
        node: Node | None = self._namespace.root
        for name in filter(None, directory.split(b"/")):
            if node is None or node.children is None:
                break
            node = (await self._namespace.lookups.child(node, name)).node
        if node is None or node.children is None:
            return [None] * len(names)
        return [self._version(one) for one in await self._namespace.lookups.attributes(node, names)]

    def _version(self, one: Node | Attributes | None) -> Version | None:
        if isinstance(one, Node):
            return one.version
        return one.version(self._source.source_id) if one is not None else None


def _tell(connection_fd: int, every: Sequence[Refreshed]) -> bool:
    """In a thread."""
    for refreshed in every:
        for directory_id, names in refreshed.names.items():
            expire_names(connection_fd, directory_id, names)
        forget_attributes(connection_fd, refreshed.directories)
    return True


def _tell_all(connection_fd: int, every: Sequence[Refreshed]) -> bool:
    """In a thread. Of every name in the mount, also those that we have forgotten: waits for no directory. False: the
    kernel cannot (before Linux 6.16)."""
    for refreshed in every:
        forget_attributes(connection_fd, refreshed.directories)
    return forget_all_names(connection_fd)


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
