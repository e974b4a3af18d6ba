"""Small files, staged many at a time: whole trees of them, before anybody opens one.

What is known and staged already does not reach the source (`small_file_lookups`); the rest is read in batches
(`batch_reader`). A file that did not come with its batch is asked for by itself, with all the patience of a read.
Errors are given for each file; nothing is told to readers, who find what is here and fetch what is not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import trio

from hfs.mountd.base.errors import HfsError, SourceError, StagingError
from hfs.mountd.base.printable import shown_path
from hfs.mountd.cache import Cache
from hfs.mountd.fetch.batch_reader import BatchReader, BatchRequest, Outcomes
from hfs.mountd.fetch.chunks.batches import Place
from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import Push
from hfs.mountd.fetch.resolver import Ensured, Resolver
from hfs.mountd.fetch.small_file_lookups import Become, Small, SmallFileLookups, path_of
from hfs.mountd.namespace import Namespace, Node, is_link


def _always(_place: Place) -> bool:
    return True


class SmallFiles:
    """Event loop only."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        resolver: Resolver,
        owners: Owners,
        lookups: SmallFileLookups,
        batches: BatchReader,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._resolver = resolver
        self._owners = owners
        self._lookups = lookups
        self._batches = batches

    @property
    def limit_bytes(self) -> int:
        """The largest small file."""
        return self._lookups.limit_bytes

    async def stage_paths(
        self,
        paths: Sequence[bytes],
        goal: Goal,
        *,
        push: bool,
        wanted: Callable[[Place], bool] = _always,
        through_links: bool = True,
    ) -> list[Small | HfsError | None]:
        """As `stage`, by paths relative to the root."""
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
    ) -> list[Small | HfsError | None]:
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
    ) -> list[Small | HfsError | None]:
        """Have these files where `goal` says. For each, in this order, what became of it, or why it could not be; None:
        the data plane has it, or is fetching it.

        `push`: put it into the page cache too, where the kernel knows it. A file that is to be staged and that staging
        does not take is a StagingError. `wanted` is asked of each just before it is read; what is not any more counts
        as here. Cancelled, it leaves what was fetched, and readers who waited for the rest fetch it themselves.
        """
        request = BatchRequest(goal, push, wanted)
        outcomes: Outcomes = dict.fromkeys(self._lookups.claim(places))
        unique = [place for place in dict.fromkeys(places) if place not in outcomes]
        unknown = await self._lookups.look_first(unique)
        if await self._lookups.look_into_cache([place for place in unique if place not in unknown]):
            unknown = set()  # some may be known now
        for place in unique:
            known = self._lookups.known(place, goal) if place not in unknown else None
            if known is not None:
                outcomes[place] = known
        left = [place for place in unique if place not in outcomes]
        await self._from_owners([p for p in left if self._owners.owned_remotely(path_of(p), 0)], request, outcomes)
        while left := [place for place in left if place not in outcomes]:
            for place in await self._batches.read(left, request, outcomes):
                outcomes[place] = await self._alone(place, request)
        return [outcomes[place] for place in places]

    async def _from_owners(self, places: Sequence[Place], request: BatchRequest, outcomes: Outcomes) -> None:
        """Files that other nodes own: what they are is asked for together, each comes by itself."""
        await self._lookups.look_up([place for place in places if self._lookups.is_unknown(place)])

        async def one(place: Place) -> None:
            node = self._lookups.node(place)
            if node is not None and not request.wanted(place):
                outcomes[place] = Small(node, Become.HERE)
            else:
                outcomes[place] = await self._alone(place, request)

        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(one, place)

    async def _alone(self, place: Place, request: BatchRequest) -> Small | HfsError:
        """The usual way: asked for by name, read by itself, tried again after what passes by."""
        goal = request.goal
        try:
            await self._fetcher.batches.wait(place)
            (dentry,) = await self._namespace.lookups.children(place[0], [place[1]])
            node = dentry.node
            if node is None:
                return SourceError(errno.ENOENT, f"{shown_path(place[1])} in {shown_path(place[0].path)}")
            file = await self._cache.files.get(node.version, node.path) if node.version is not None else None
            known = self._lookups.without_reading(node, goal)
            if known is not None or file is None:
                return known or StagingError("nothing is known of it")
            push = Push.WHOLE if request.push else Push.NOTHING
            ensured = await self._resolver.ensure(node, file, 0, goal, push=push)
        except HfsError as error:
            return error
        if ensured is Ensured.REFUSED:
            if not self._owners.caches_locally(node.path, 0):
                return StagingError("the node that owns it could not stage it")
            return self._cache.admission.refusal(file.size)
        return Small(node, Become.FETCHED if ensured is Ensured.FETCHED else Become.HERE)
