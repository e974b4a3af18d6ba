"""Small files, staged many at a time: whole trees of them, before anybody opens one.

In directories that are lent the data plane fetches them, whoever asks (`small_pipeline`). What it cannot judge (links,
other file systems, files that were changed just now, users who have to be asked for) is looked up together here, and
fetched as the one chunk that it is, some at a time, with all the patience of a read. Errors are given for each file;
nothing is told to readers, who find what is here and fetch what is not.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.core.errors import HfsError, SourceError, StagingError
from hfs.mountd.core.printable import shown_path
from hfs.mountd.fetch.chunks.fetcher import Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.namespace import Namespace, Node, is_link

Place = tuple[Node, bytes]
"""A directory and a name in it: what a file is known by before it has been looked at."""

_AT_ONCE = 16
"""Files of one call that are fetched at a time: as many as there are prefetch threads."""


class Become(enum.Enum):
    """What became of a file."""

    FETCHED = enum.auto()
    HERE = enum.auto()
    """It was staged before, or somebody else fetches it, or its owner node has it."""
    LARGE = enum.auto()
    """It is no small file, but one whose chunks are to be fetched one by one, or a link. Nothing was read."""


class Small(NamedTuple):
    """A file, and what became of it. Its size: `node.attributes.size`."""

    node: Node
    become: Become


Outcome = Small | HfsError | None
"""None: the data plane has it, or is fetching it."""


def _always(_place: Place) -> bool:
    return True


class SmallFiles:
    """Event loop only. `limit_bytes`: the largest small file."""

    def __init__(
        self, namespace: Namespace, cache: Cache, resolver: Resolver, owners: Owners, *, limit_bytes: int
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._resolver = resolver
        self._owners = owners
        self.limit_bytes = limit_bytes

    async def stage_paths(
        self,
        paths: Sequence[bytes],
        goal: Goal,
        *,
        push: bool,
        wanted: Callable[[Place], bool] = _always,
        through_links: bool = True,
    ) -> list[Outcome]:
        """What `stage` does, by paths relative to the root."""
        directories: dict[bytes, Node | HfsError] = {}
        places: list[Place | HfsError] = []
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if not name or name in (b".", b"..") or b"\0" in path:
                places.append(SourceError(errno.EINVAL, f"{path.decode('utf-8', 'backslashreplace')} names no file"))
                continue
            if head not in directories:
                try:
                    directories[head] = await self._namespace.links.find(head, through_links=through_links)
                except HfsError as error:
                    directories[head] = error
            directory = directories[head]
            places.append(directory if isinstance(directory, HfsError) else (directory, name))
        staged = await self._stage_found(places, goal, push=push, wanted=wanted)
        links = [n for n, one in enumerate(staged) if through_links and isinstance(one, Small) and is_link(one.node)]
        if links:
            named = await self._named([paths[number] for number in links])
            outcomes = await self._stage_found(named, goal, push=push, wanted=wanted)
            for number, outcome in zip(links, outcomes, strict=True):
                staged[number] = outcome
        return staged

    async def _stage_found(
        self, places: Sequence[Place | HfsError], goal: Goal, *, push: bool, wanted: Callable[[Place], bool]
    ) -> list[Outcome]:
        found = [place for place in places if isinstance(place, tuple)]
        outcomes = iter(await self.stage(found, goal, push=push, wanted=wanted))
        return [next(outcomes) if isinstance(place, tuple) else place for place in places]

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
        self, places: Sequence[Place], goal: Goal, *, push: bool, wanted: Callable[[Place], bool] = _always
    ) -> list[Outcome]:
        """Have these files where `goal` says. For each, in this order, what became of it, or why it could not be.

        `push`: put it into the page cache too, where the kernel knows it. A file that is to be staged and that staging
        does not take is a StagingError. `wanted` is asked of each just before it is read; what is not any more counts
        as here. Cancelled, it leaves what was fetched, and readers who waited for the rest fetch it themselves.
        """
        outcomes: dict[Place, Outcome] = dict.fromkeys(self._claim(places))
        unique = [place for place in dict.fromkeys(places) if place not in outcomes]
        if not unique:  # as nearly always: two nurseries would cost 25 us
            return [outcomes[place] for place in places]
        await self._look_up(unique)
        left = iter(unique)

        async def fetch_some() -> None:
            for place in left:
                outcomes[place] = await self._fetch(place, goal, wanted, push=push)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(unique))):
                nursery.start_soon(fetch_some)
        return [outcomes[place] for place in places]

    def _claim(self, places: Sequence[Place]) -> list[Place]:
        """What is lent among these is fetched by us from now on. But those that the data plane has fetched, or is just
        fetching: these are given."""
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            if directory.lent:
                by_directory.setdefault(directory, []).append(name)
        claim = self._namespace.leaves.claim
        return [(directory, name) for directory, names in by_directory.items() for name in claim(directory, names)]

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
            if (known := await self._without_reading(node, goal)) is not None:
                return known
            if not wanted(place):
                return Small(node, Become.HERE)
            assert node.version is not None
            file = await self._cache.files.get(node.version, node.path)
            ensured = await self._resolver.ensure(node, file, 0, goal, push=Push.WHOLE if push else Push.NOTHING)
        except HfsError as error:
            return error
        if ensured is Ensured.REFUSED:
            if not self._owners.caches_locally(node.path, 0):
                return StagingError("the node that owns it could not stage it")
            return self._cache.admission.refusal(file.size)
        return Small(node, Become.FETCHED if ensured is Ensured.FETCHED else Become.HERE)

    async def _without_reading(self, node: Node, goal: Goal) -> Small | HfsError | None:
        """What becomes of a file without reading it; None: it is to be read."""
        if is_link(node):
            return Small(node, Become.LARGE)
        if node.version is None:
            return SourceError(errno.EINVAL, f"{shown_path(node.path)} is no regular file")
        if node.version.size > self.limit_bytes:
            return Small(node, Become.LARGE)
        file = await self._cache.files.get(node.version, node.path)
        if file.present.full:
            return Small(node, Become.HERE)
        if file.present.count > 1:
            return Small(node, Become.LARGE)  # staged in smaller chunks by an earlier run
        return Small(node, Become.HERE) if self._resolver.has(file, 0, goal) else None
