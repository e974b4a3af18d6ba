"""Commands: what `hfs status`, `hfs cache warm|evict|check|list` ask of the running daemon, and our own xattrs.

`control` speaks with the client, this file does what it asks, over the same parts that serve readers: a warm is a
prefetch that is reported, a check reads what is staged again. Paths are relative to the mount. A path that fails is
counted and named, the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mountd.control import Report
from mountd.errors import HfsError, StagingError
from mountd.fetcher import Fetcher
from mountd.namespace import Namespace
from mountd.node import Node
from mountd.protocol import PathFault, Progress, Result, Row, Rows
from mountd.read_path import ReadPath
from mountd.source import Source
from mountd.staging import Staging
from mountd.status import Status

__all__ = ["Commands"]

_DEFAULT_JOBS = 16
"""Files at a time: as many as there are prefetch threads."""

_MAX_FAULTS = 1000
"""Faults named in one command; more are only counted."""

_NAMES_AT_ONCE = 512


class Commands:
    """Implements `control.Commands`."""

    def __init__(
        self,
        status: Status,
        namespace: Namespace,
        staging: Staging,
        source: Source,
        read_path: ReadPath,
        fetcher: Fetcher,
    ) -> None:
        self._status = status
        self._namespace = namespace
        self._staging = staging
        self._source = source
        self._read_path = read_path
        self._fetcher = fetcher
        self.control_path = ""

    async def status(self) -> dict[str, object]:
        """The object of `hfs status --json`."""
        await self._status.refresh()
        return self._status.gather()

    def own_xattr(self, node: Node, name: str) -> bytes | None:
        """The value of `user.hfs.state`, `user.hfs.tier` or `user.hfs.socket`; None if `node` has none of that name."""
        if name == "user.hfs.socket":
            return self.control_path.encode("utf-8", "surrogateescape")
        file = self._staging.file_nowait(node.version) if node.version is not None else None
        if name == "user.hfs.state" and node.version is not None:
            if file is None or not file.present:
                return b"source" if node.version.size else b"complete"
            return b"complete" if file.complete else b"%d/%d chunks" % (len(file.present), file.present.count)
        if name == "user.hfs.tier" and node.version is not None:
            return b"staged" if file is not None and file.complete else b"source"
        return None

    # -- warm ---------------------------------------------------------------------------------------------------------

    async def warm(self, paths: Sequence[bytes], jobs: int, report: Report) -> Result:
        """Stage files and trees; returns when all that was staged would survive a crash."""
        work = _Tally()
        send, receive = trio.open_memory_channel[Node](1024)

        async def walk_all() -> None:
            async with send:
                work.walking = True
                for path in paths:
                    try:
                        await self._walk(await self._namespace.resolve(path), send, work)
                    except HfsError as error:
                        work.fail(path, error)
                work.walking = False

        async def stage() -> None:
            async for node in receive:
                try:
                    if await self._stage(node):
                        work.done(node)
                    else:
                        work.skip(node)
                except HfsError as error:
                    work.fail(node.path, error)
                await report(work.progress())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(walk_all)
            for _ in range(jobs or _DEFAULT_JOBS):
                nursery.start_soon(stage)
        await self._staging.wait_vouched()
        return work.result()

    async def _walk(self, node: Node, send: trio.MemorySendChannel[Node], work: _Tally) -> None:
        if node.version is not None:
            work.found(node)
            await send.send(node)
            return
        if node.children is None:
            return  # symlinks and special files have nothing to stage
        listing = await self._namespace.listing(node)
        for start in range(0, len(listing), _NAMES_AT_ONCE):
            names = [listing[i] for i in range(start, min(start + _NAMES_AT_ONCE, len(listing)))]
            dentries = await self._namespace.children(node, names)
            versions = [d.node.version for d in dentries if d.node is not None and d.node.version is not None]
            await self._staging.prefetch_lookups(versions)
            for dentry in dentries:
                if dentry.node is None:
                    continue
                try:
                    await self._walk(dentry.node, send, work)
                except HfsError as error:
                    work.fail(dentry.node.path, error)

    async def _stage(self, node: Node) -> bool:
        """True if something was fetched, False if all of it was staged."""
        assert node.version is not None
        file = self._staging.file_nowait(node.version) or await self._staging.file(node.version, node.path)
        if file.complete:
            return False
        self._staging.pin(file)
        try:
            await self._read_path.stage_whole(node, file)
        finally:
            self._staging.unpin(file)
        return True


class _Tally:
    """The figures of one command."""

    def __init__(self) -> None:
        self.files = self.bytes = self.failed = self.skipped = 0
        self.files_total = self.bytes_total = 0
        self.walking = False
        self._named = 0
        self._faults: list[PathFault] = []

    def found(self, node: Node) -> None:
        self.files_total += 1
        self.bytes_total += node.attributes.size

    def done(self, node: Node) -> None:
        self.files += 1
        self.bytes += node.attributes.size

    def skip(self, node: Node) -> None:
        self.skipped += 1
        self.done(node)

    def fail(self, path: bytes, error: HfsError) -> None:
        self.failed += 1
        if self._named < _MAX_FAULTS:
            self._named += 1
            self._faults.append(PathFault(path, str(error)))

    def _take_faults(self) -> list[PathFault]:
        faults, self._faults = self._faults, []
        return faults

    def progress(self) -> Progress:
        return Progress(
            files=self.files,
            bytes=self.bytes,
            failed=self.failed,
            skipped=self.skipped,
            files_total=self.files_total,
            bytes_total=self.bytes_total,
            walking=self.walking,
            faults=self._take_faults(),
        )

    def result(self) -> Result:
        return Result(
            files=self.files, bytes=self.bytes, failed=self.failed, skipped=self.skipped, faults=self._take_faults()
        )
