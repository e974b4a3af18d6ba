"""Small files, staged many at a time: whole trees of them, before anybody opens one.

In directories that may be delegated the data plane fetches them (`small_pipeline`). What it cannot judge (links, other
file systems, files that were changed just now, users who have to be asked for) is looked up together here, and fetched
as the one chunk that it is, some at a time, with all the patience of a read. Whoever asks hears the same of a file
either way. Errors are given for each file; nothing is told to readers, who find what is here and fetch what is not.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.core.errors import HfsError, SourceError, StagingError, shown_path
from hfs.mountd.fetch.chunks.fetcher import Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.fetch.small_pipeline import Become, Place, Small, SmallPipeline
from hfs.mountd.namespace import Namespace, Node, is_link

_AT_ONCE = 16
"""Files of one call that are fetched at a time: as many as there are prefetch threads."""


_MOST_DELEGATED = 4096
"""Directories that are remembered by their paths: more than are delegated at a time."""

Outcome = Small | HfsError


def _always(_place: Place) -> bool:
    return True


class SmallFiles:
    """Event loop only."""

    def __init__(
        self, namespace: Namespace, cache: Cache, resolver: Resolver, owners: Owners, pipeline: SmallPipeline
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._resolver = resolver
        self._owners = owners
        self._pipeline = pipeline
        self.limit_bytes = pipeline.limit_bytes
        self._delegated: dict[bytes, Node] = {}
        """By path, as it was when they were delegated."""

    @property
    def places(self) -> int:
        """How many more files it is worth to ask for before somebody opens them."""
        return self._pipeline.places

    async def stage_paths(
        self,
        paths: Sequence[bytes],
        goal: Goal,
        *,
        push: bool = False,
        by_nodes: bool = False,
        wanted: Callable[[Place], bool] = _always,
        through_links: bool = True,
    ) -> list[Outcome]:
        """What `stage` does, by paths relative to the root."""
        stage = partial(self.stage, goal=goal, push=push, by_nodes=by_nodes, wanted=wanted)
        directories: dict[bytes, Node | HfsError] = {}
        places: list[Place | HfsError] = []
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if not name or name in (b".", b"..") or b"\0" in path:
                places.append(SourceError(errno.EINVAL, f"{path.decode('utf-8', 'backslashreplace')} names no file"))
                continue
            if head not in directories:
                directories[head] = await self._directory(head, through_links=through_links)
            directory = directories[head]
            places.append(directory if isinstance(directory, HfsError) else (directory, name))
        staged = await _found(places, stage)
        nodes = [one.node if isinstance(one, Small) else None for one in staged]
        links = [number for number, node in enumerate(nodes) if through_links and node is not None and is_link(node)]
        if links:
            outcomes = await _found(await self._named([paths[number] for number in links]), stage)
            for number, outcome in zip(links, outcomes, strict=True):
                staged[number] = outcome
        return staged

    async def _directory(self, path: bytes, *, through_links: bool) -> Node | HfsError:
        directory = self._delegated.get(path)
        if directory is not None and directory.delegated and directory.path == path:
            return directory
        try:
            directory = await self._namespace.links.find(path, through_links=through_links)
            if await self._pipeline.delegate(directory):
                if len(self._delegated) >= _MOST_DELEGATED:
                    self._delegated.clear()
                self._delegated[path] = directory
        except HfsError as error:
            return error
        return directory

    async def _named(self, paths: Sequence[bytes]) -> list[Place | HfsError]:
        """What these links name."""
        places: dict[bytes, Place | HfsError] = {}

        async def follow(path: bytes) -> None:
            try:
                node = await self._namespace.links.follow(path)
                if node.parent is None:
                    raise SourceError(errno.EISDIR, path.decode("utf-8", "backslashreplace"))
                places[path] = node.parent, node.name
            except HfsError as error:
                places[path] = error

        async with trio.open_nursery() as nursery:
            for path in set(paths):
                nursery.start_soon(follow, path)
        return [places[path] for path in paths]

    async def stage(
        self,
        places: Sequence[Place],
        goal: Goal,
        *,
        push: bool = False,
        by_nodes: bool = False,
        wanted: Callable[[Place], bool] = _always,
    ) -> list[Outcome]:
        """Have these files where `goal` says. For each, in this order, what became of it, or why it could not be.

        `push`: put it into the page cache too, where the kernel knows it. `by_nodes`: by us alone, since the room for
        each is to be accounted for. A file that is to be staged and that staging does not take is a StagingError.
        `wanted` is asked of each just before we read it; what is not any more counts as here. Cancelled, it leaves what
        was fetched, and readers who waited for the rest fetch it themselves.
        """
        outcomes: dict[Place, Outcome] = {}
        if not by_nodes and goal is not Goal.IN_MEMORY:
            outcomes.update(await self._stage_delegated(places))
        unique = [place for place in dict.fromkeys(places) if place not in outcomes]
        outcomes.update(dict.fromkeys(self._claim(unique), Small(Become.HERE)))
        left = [place for place in unique if place not in outcomes]
        if left:  # nearly never: two nurseries would cost 25 us
            outcomes.update(await self._stage_nodes(left, goal, wanted, push=push))
        return [outcomes[place] for place in places]

    async def _stage_delegated(self, places: Sequence[Place]) -> dict[Place, Small]:
        """By the data plane, as far as it may and can."""
        for directory in {directory for directory, _ in places if not directory.delegated}:
            await self._pipeline.delegate(directory)
        delegated = [place for place in dict.fromkeys(places) if place[0].delegated]
        outcomes = zip(delegated, await self._pipeline.stage(delegated), strict=True) if delegated else ()
        return {place: outcome for place, outcome in outcomes if outcome is not None}

    async def _stage_nodes(
        self, places: Sequence[Place], goal: Goal, wanted: Callable[[Place], bool], *, push: bool
    ) -> dict[Place, Outcome]:
        outcomes: dict[Place, Outcome] = {}
        await self._look_up(places)
        left = iter(places)

        async def fetch_some() -> None:
            for place in left:
                outcomes[place] = await self._fetch(place, goal, wanted, push=push)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(places))):
                nursery.start_soon(fetch_some)
        return outcomes

    def _claim(self, places: Sequence[Place]) -> list[Place]:
        """What is delegated among these is fetched by us from now on. But those that the data plane has fetched, or is
        just fetching: these are given."""
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            if directory.delegated:
                by_directory.setdefault(directory, []).append(name)
        try_reserve = self._namespace.slots.try_reserve
        return [
            (directory, name) for directory, names in by_directory.items() for name in try_reserve(directory, names)
        ]

    async def _look_up(self, places: Sequence[Place]) -> None:
        """Have the names known, and what is staged of them. Errors are met again by who fetches them."""
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            if directory.children is not None:
                by_directory.setdefault(directory, []).append(name)

        async def look(directory: Node, names: list[bytes]) -> None:
            with contextlib.suppress(HfsError):
                dentries = await self._namespace.lookups.children(directory, names)
                versions = [dentry.node.version for dentry in dentries if dentry.node is not None]
                await self._cache.files.load([version for version in versions if version is not None])

        async with trio.open_nursery() as nursery:
            for directory, names in by_directory.items():
                nursery.start_soon(look, directory, names)

    async def _fetch(
        self, place: Place, goal: Goal, wanted: Callable[[Place], bool], *, push: bool
    ) -> Small | HfsError:
        """Asked for by name, read by itself, tried again after what passes by."""
        directory, name = place
        try:
            if directory.children is None:
                return SourceError(errno.ENOTDIR, shown_path(directory.path))
            (dentry,) = await self._namespace.lookups.children(directory, [name])
            node = dentry.node
            if node is None:
                return SourceError(errno.ENOENT, f"{shown_path(name)} in {shown_path(directory.path)}")
            if is_link(node):
                return _small(node, Become.LARGE)
            if node.version is None:
                return SourceError(errno.EINVAL, f"{shown_path(node.path)} is no regular file")
            if node.version.size > self.limit_bytes:
                return _small(node, Become.LARGE)
            file = await self._cache.files.get(node.version, node.path)
            if not file.present.full and file.present.count > 1:
                return _small(node, Become.LARGE)  # staged in smaller chunks by an earlier run
            if file.present.full or self._resolver.has(file, 0, goal) or not wanted(place):
                return _small(node, Become.HERE, file)
            ensured = await self._resolver.ensure(node, file, 0, goal, push=Push.WHOLE if push else Push.NOTHING)
        except HfsError as error:
            return error
        if ensured is Ensured.REFUSED:
            if not self._owners.caches_locally(node.path, 0):
                return StagingError("the node that owns it, if one has room, could not stage it")
            return self._cache.admission.refusal(file.size)
        return _small(node, Become.FETCHED if ensured is Ensured.FETCHED else Become.HERE, file)


async def _found(
    places: Sequence[Place | HfsError], stage: Callable[[Sequence[Place]], Awaitable[list[Outcome]]]
) -> list[Outcome]:
    """What `stage` gives for those that are places, and the errors of the others."""
    outcomes = iter(await stage([place for place in places if isinstance(place, tuple)]))
    return [next(outcomes) if isinstance(place, tuple) else place for place in places]


def _small(node: Node, become: Become, file: StagedFile | None = None) -> Small:
    number = file.object_id if file is not None else None
    return Small(become, node.attributes.size, number or 0, node)
