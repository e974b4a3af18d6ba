"""Files that a warm has fetched by nodes: small ones many at a time, large ones in streams.

A file of which all would not fit is not begun, or the last ones would all be there in part; unless it is larger than
what there is for it, which then takes what it can. What has become of each is `PendingFiles`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.control.pending_files import PendingFile, PendingFiles, ProgressCounter
from hfs.mountd.core.errors import HfsError, NotTaken, StagingError, VersionChanged
from hfs.mountd.fetch import Become, Fetcher, Goal, Owners, Resolver, SmallFiles, SmallPipeline, SparseFiles
from hfs.mountd.namespace import Node

TOO_LARGE = "larger than any file that is staged: it is read from the source"


_FEW = 64
"""Files of a tree that say nothing of the others."""


class Fitting:
    """The room that there is when the command begins, and what others keep of that.

    Room that idle caches and neighbours would give up counts as there, as far as the ledger knows; what is pinned does
    not. Plain figures of the account; it reads nothing.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gives_up = cache.eviction.makes_room
        """All that is not pinned goes for what is new."""
        room = cache.room
        self.pinned_bytes = room.pinned_bytes
        self._used_bytes = room.used_bytes - cache.completions.granted_bytes

    def free_bytes(self, here_bytes: int = 0) -> int:
        """For files that are not staged; `here_bytes`: what those of the command take that are, and are not pinned."""
        stays_bytes = self.pinned_bytes + here_bytes if self._gives_up else self._used_bytes
        return max(0, self._cache.room.limit_bytes() - stays_bytes)

    def command_limit_bytes(self) -> int:
        """What one command may hold in all, were everything to go for it that may."""
        return max(0, self._cache.room.limit_bytes() - self.pinned_bytes)


class RoomWanted:
    """Of a warm: what it would take, as it gets known while it walks. Says once in `work` that it does not fit."""

    def __init__(self, fitting: Fitting, pending: PendingFiles, work: ProgressCounter) -> None:
        self._fitting = fitting
        self._pending = pending
        self._work = work
        self._lacks_bytes = self._here_bytes = 0

    def walked(self, lacks_bytes: int, here_bytes: int) -> None:
        """One file more: what it lacks, and what is there of it."""
        self._lacks_bytes += lacks_bytes
        self._here_bytes += here_bytes

    def look(self) -> None:
        """Look whether it is known by now. Names that nobody has looked at are as those that were fetched or found."""
        seen, unseen = self._pending.seen, self._work.unseen
        if self._work.room_bytes is not None or (unseen and seen < min(_FEW, unseen)):
            return
        wanted_bytes = self._lacks_bytes + self._pending.fetched_room_bytes * (seen + unseen) // max(1, seen)
        free_bytes = self._fitting.free_bytes(self._here_bytes)
        if wanted_bytes > free_bytes:
            self._work.room_bytes, self._work.free_bytes = wanted_bytes, free_bytes


@dataclass(frozen=True, slots=True)
class WarmFetches:
    """By whom files are fetched, each kind by another."""

    resolver: Resolver
    owners: Owners
    fetcher: Fetcher
    small_files: SmallFiles
    pipeline: SmallPipeline
    sparse_files: SparseFiles


class NodeStaging:
    """Of one command."""

    def __init__(
        self, cache: Cache, fetches: WarmFetches, fitting: Fitting, pending: PendingFiles, work: ProgressCounter
    ) -> None:
        self._cache = cache
        self._resolver = fetches.resolver
        self._owners = fetches.owners
        self._small_files = fetches.small_files
        self._sparse_files = fetches.sparse_files
        self._fitting = fitting
        self._pending = pending
        self._work = work
        self._begun: set[PendingFile] = set()
        """Large files that are being fetched."""
        self.small_files = 0
        """Those that were fetched; and of large ones the bytes, of those that have ended."""
        self._large_bytes = 0

    @property
    def large_bytes(self) -> int:
        """Of large files that were fetched up to now."""
        return self._large_bytes + sum(entry.fetched_bytes() for entry in self._begun)

    async def gives_bytes(self, node: Node) -> bool:
        """Whether it says that it has no bytes, and gives some."""
        return await self._resolver.unsized.gives_bytes(node)

    def is_small(self, node: Node) -> bool:
        """It is fetched with others."""
        # One that is open is read through the page cache, and soon.
        return node.attributes.size <= self._small_files.limit_bytes and not node.opens

    async def stage_small(self, nodes: Sequence[Node]) -> None:
        """Small ones, together. Never raises HfsError."""
        lacks = [(await self.lacks_bytes(node))[0] for node in nodes]
        if any(lacks):
            if self.is_too_much(sum(lacks)):
                for node, size_bytes in zip(nodes, lacks, strict=True):
                    if size_bytes:
                        self._work.fail(node.path, NotTaken(self._cache.room.what_limits()))
                nodes = [node for node, size_bytes in zip(nodes, lacks, strict=True) if not size_bytes]
            else:
                await self._cache.evictor.wait_room(sum(lacks))
        places = [(node.parent, node.name) for node in nodes if node.parent is not None]
        outcomes = await self._small_files.stage(places, Goal.STAGED, by_nodes=True)
        for node, outcome in zip(nodes, outcomes, strict=True):
            if isinstance(outcome, HfsError):
                self._pending.failed(PendingFile(node, await self.file(node), was_here=False), outcome)
            elif outcome.node is None:
                self._pending.add(PendingFile(node, await self.file(node), was_here=True))
            elif outcome.node.version is None:
                self._work.fail(node.path, VersionChanged("it is no file any more"))
            elif outcome.become is Become.LARGE:  # it has grown, or an earlier run has staged it in smaller chunks
                await self.stage_large(outcome.node)
            else:
                here = outcome.become is Become.HERE
                self.small_files += not here
                self._pending.add(PendingFile(outcome.node, await self.file(outcome.node), was_here=here))

    async def lacks_bytes(self, node: Node) -> tuple[int, int]:
        """(what would be accounted for what is missing of it on this node, what is for all that is there)."""
        file = await self.file(node)
        if file.present.too_many:
            return 0, 0
        if file.complete:
            return 0, self._pending.held(file.object_id, file.room_bytes)
        ours = [index for index in file.present.missing() if self._owners.caches_locally(node.path, index)]
        overhead_bytes = file.overhead_bytes() if ours and file.object_id is None else 0
        return await self._room_bytes(node, file, ours) + overhead_bytes, file.room_bytes

    async def _room_bytes(self, node: Node, file: StagedFile, indexes: list[int]) -> int:
        return await self._sparse_files.room_bytes(file, (node.directory, node.name), node.attributes, indexes)

    def is_too_much(self, more_bytes: int) -> bool:
        """Whether with so much more the cache would be too small for what this command alone has staged."""
        begun_bytes = sum(entry.lacks_bytes for entry in self._begun)
        return self._pending.held_bytes + begun_bytes + more_bytes > self._fitting.command_limit_bytes()

    async def stage_large(self, node: Node) -> None:
        """Any one, by its chunks. Never raises HfsError."""
        entry = PendingFile(node, await self.file(node), was_here=True)
        try:
            if not entry.file.complete:
                entry.was_here = False
                await self.fetch(entry)
            self._pending.add(entry)
        except HfsError as error:
            self._pending.failed(entry, error)

    async def file(self, node: Node) -> StagedFile:
        """What is staged of it."""
        assert node.version is not None
        path = node.path
        file = self._cache.files.get_nowait(node.version, path) or await self._cache.files.get(node.version, path)
        if node.parent is not None and not node.parent.changes:
            self._cache.attributes.note(file, node.parent.attributes, node.name, node.attributes)
        return file

    async def fetch(self, entry: PendingFile) -> None:
        """What the file lacks. Raises HfsError."""
        file, path = entry.file, entry.node.path
        if file.present.too_many:
            raise StagingError(TOO_LARGE)
        ours = [i for i in file.present.missing() if self._owners.caches_locally(path, i)]
        lacks_bytes = await self._room_bytes(entry.node, file, ours)
        lacks_bytes += file.overhead_bytes() if file.object_id is None else 0
        is_part = lacks_bytes > self._fitting.command_limit_bytes()
        if not is_part and self.is_too_much(lacks_bytes):
            raise NotTaken(self._cache.room.what_limits())
        entry.lacks_bytes, entry.room_bytes = lacks_bytes, file.room_bytes
        entry.staged_bytes = file.staged_bytes()
        self._begun.add(entry)
        self._cache.files.pin(file)
        try:
            wanted_bytes = sum(begun.wanted_bytes for begun in self._begun)
            if not is_part and not await self._cache.evictor.wait_room(wanted_bytes):
                raise NotTaken(self._cache.admission.why_not(wanted_bytes) or self._cache.room.what_limits())
            empty = await self._sparse_files.empty_chunks(entry.node, file, ours)
            await self._cache.writer.put_holes(file, empty)
            await self._resolver.ensure_file(entry.node, file)
        finally:
            self._large_bytes += entry.fetched_bytes()
            self._cache.files.unpin(file)
            self._begun.remove(entry)
