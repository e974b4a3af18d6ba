"""What is known of small files before they are read: named, staged, on their way, refused; and asking for the rest.

What is known and staged already must not reach the source, and what may be staged under a name that was forgotten since
is looked up and not read. A look-up is a round trip, so it is bounded: it must not go on for a data set of which
nothing is staged. Never reads bytes.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Sequence
from typing import NamedTuple

import trio

from hfs.mountd.base.errors import HfsError, SourceError
from hfs.mountd.base.printable import shown_path
from hfs.mountd.cache import Cache
from hfs.mountd.fetch.chunks.batches import Place
from hfs.mountd.fetch.chunks.fetcher import Goal
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.resolver import Resolver
from hfs.mountd.namespace import Namespace, Node, is_link

_LOOKS = 64
"""Files that are looked at before they are read, where an earlier run may have staged them; as many more after each
that was."""


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


class SmallFileLookups:
    """Event loop only. `limit_bytes`: the largest small file."""

    def __init__(
        self, namespace: Namespace, cache: Cache, resolver: Resolver, owners: Owners, *, limit_bytes: int
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._resolver = resolver
        self._owners = owners
        self.limit_bytes = limit_bytes
        self._looks = _LOOKS

    # -- looking before reading ---------------------------------------------------------------------------------------

    @property
    def reads_blindly(self) -> bool:
        """Files of which nothing is known are read at once; False: they are looked up first, see `looked`."""
        return self._cache.files.all_in_memory or self._looks <= 0

    def looked(self, place: Place) -> None:
        """A file was looked up before it was read, and would have been read at once."""
        if self._is_staged(place):
            self.found_staged()
        elif self._looks > 0:
            self._looks -= 1

    def found_staged(self) -> None:
        """What nothing was known of is staged: look before reading for a while."""
        self._looks = _LOOKS

    async def look_first(self, places: Sequence[Place]) -> set[Place]:
        """Those of which nothing is known, once it has been asked what they are where they may have been staged."""
        unknown = {place for place in places if self.is_unknown(place)}
        was_put = self._cache.writer.was_put
        if again := [place for place in places if place in unknown and was_put(path_of(place))]:
            await self.look_up(again)
            unknown = {place for place in unknown if self.is_unknown(place)}
        if unknown and not self.reads_blindly:
            await self.look_up([place for place in places if place in unknown])
            found = sum(self._is_staged(place) for place in unknown)
            self._looks = _LOOKS if found else self._looks - len(unknown)
            unknown = {place for place in unknown if self.is_unknown(place)}
        return unknown

    async def look_up(self, places: Sequence[Place]) -> None:
        """Have the names known, and what is staged of them. Errors are met again by who reads them."""
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            by_directory.setdefault(directory, []).append(name)

        async def look(directory: Node, names: list[bytes]) -> None:
            with contextlib.suppress(HfsError):
                dentries = await self._namespace.lookups.children(directory, names)
                versions = [dentry.node.version for dentry in dentries if dentry.node is not None]
                await self._cache.files.load([version for version in versions if version is not None])

        async with trio.open_nursery() as nursery:
            for directory, names in by_directory.items():
                nursery.start_soon(look, directory, names)

    async def look_into_cache(self, places: Sequence[Place]) -> bool:
        """Have it known what is staged of those whose names are known. True if that was asked of the index."""
        versions = [node.version for place in places if (node := self.node(place)) is not None and node.version]
        unknown = [version for version in versions if self._cache.files.get_nowait(version) is None]
        if unknown:
            await self._cache.files.load(unknown)
        return bool(unknown)

    def claim(self, places: Sequence[Place]) -> list[Place]:
        """What is lent among these is fetched by us from now on. But those that the data plane has fetched, or is just
        fetching: these are given."""
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            if directory.lent:
                by_directory.setdefault(directory, []).append(name)
        claim = self._namespace.leaves.claim
        return [(directory, name) for directory, names in by_directory.items() for name in claim(directory, names)]

    # -- what is known without asking ---------------------------------------------------------------------------------

    def is_unknown(self, place: Place) -> bool:
        """Whether nothing is known of a name."""
        return place[0].children is not None and self._namespace.names.known_nowait(*place) is None

    def node(self, place: Place) -> Node | None:
        """The node of a name, if that is known."""
        dentry = self._namespace.names.known_nowait(*place) if place[0].children is not None else None
        return dentry.node if dentry is not None else None

    def known(self, place: Place, goal: Goal) -> Small | HfsError | None:
        """What becomes of a file without reading it; None: it is to be read."""
        directory, name = place
        if directory.children is None:
            return SourceError(errno.ENOTDIR, shown_path(directory.path))
        dentry = self._namespace.names.known_nowait(directory, name)
        if dentry is None:
            return None
        if dentry.node is None:
            return SourceError(errno.ENOENT, f"{shown_path(name)} in {shown_path(directory.path)}")
        return self.without_reading(dentry.node, goal)

    def without_reading(self, node: Node, goal: Goal) -> Small | HfsError | None:
        """As `known`, for a node."""
        if is_link(node):
            return Small(node, Become.LARGE)
        if node.version is None:
            return SourceError(errno.EINVAL, f"{shown_path(node.path)} is no regular file")
        if node.version.size > self.limit_bytes:
            return Small(node, Become.LARGE)
        file = self._cache.files.get_nowait(node.version, node.path)
        if file is None:
            return None
        if file.present.full:
            return Small(node, Become.HERE)
        if file.present.count > 1:
            return Small(node, Become.LARGE)  # staged in smaller chunks by an earlier run
        if self._resolver.has(file, 0, goal):
            return Small(node, Become.HERE)
        if goal is not Goal.STAGED or not self._owners.caches_locally(node.path, 0):
            return None
        return (
            None if self._cache.admission.admits_nowait(file, file.size) else self._cache.admission.refusal(file.size)
        )

    def _is_staged(self, place: Place) -> bool:
        node = self.node(place)
        file = self._cache.files.get_nowait(node.version) if node is not None and node.version is not None else None
        return file is not None and file.present.full


def path_of(place: Place) -> bytes:
    """The path of a name, relative to the root."""
    directory, name = place
    path = directory.path
    return path + b"/" + name if path else name
