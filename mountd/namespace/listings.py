"""The listings that the namespace keeps: one a directory, good for the time-to-live, bounded in bytes.

Whoever asks gets a listing at once and follows it while it grows; the source is read in the background, so that its
time and the readers' pass together, and once however many ask. A listing past its time is still held until another
takes its place: `namespace.statahead` wants the order of the names only. Event loop only.
"""

from __future__ import annotations

import errno
import math
from collections import OrderedDict
from collections.abc import Callable

import trio

from hfs.mountd.base.errors import SourceError, VersionChanged
from hfs.mountd.core.background import start_guarded
from hfs.mountd.namespace.nodes.node import Node, expire
from hfs.mountd.source import Lister, Listing

_KEPT_BYTES = 32 << 20
"""A million names of 10 bytes."""


class _Held:
    __slots__ = ("expires_s", "listing")

    def __init__(self) -> None:
        self.listing = Listing()
        self.expires_s = math.inf  # while it grows


class Listings:
    """Listings by directory."""

    def __init__(
        self,
        lister: Lister,
        nursery: trio.Nursery,
        *,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._lister = lister
        self._nursery = nursery
        self._ttl_s = ttl_s
        self._clock = clock
        self._held: OrderedDict[Node, _Held] = OrderedDict()
        self._bytes = 0

    def get(self, directory: Node) -> Listing:
        """The names in `directory`, within the time-to-live; perhaps still growing."""
        held = self._held.get(directory)
        if held is None or held.expires_s <= self._clock():
            self.drop(directory)
            held = _Held()
            if self._ttl_s > 0:
                self._held[directory] = held
            start_guarded(self._nursery, "listing", self._grow, directory, held)
        else:
            self._held.move_to_end(directory)
        return held.listing

    async def whole(self, directory: Node) -> Listing:
        """All names in `directory`, within the time-to-live. Raises SourceError, VersionChanged."""
        listing = self.get(directory)
        await listing.whole()
        return listing

    def held(self, directory: Node) -> Listing | None:
        """The last listing of `directory`, past its time or not."""
        held = self._held.get(directory)
        return held.listing if held is not None else None

    def drop(self, directory: Node) -> None:
        """Keep no listing of `directory`. Who reads one reads it to its end."""
        held = self._held.pop(directory, None)
        if held is not None and held.listing.complete:
            self._bytes -= held.listing.memory_bytes

    async def _grow(self, directory: Node, held: _Held) -> None:
        error: Exception | None = SourceError(errno.EIO, "the daemon is stopping")
        try:
            attributes = directory.attributes
            where = attributes.inode, held.listing
            await self._lister.fill(directory.path, *where, file_system=attributes.file_system)
            error = None
        except VersionChanged as found:
            error = found
            expire(directory)  # another one stands in its place
        except Exception as found:  # noqa: BLE001 - every failure belongs to the readers, whatever it is
            error = found
        finally:
            kept = self._held.get(directory) is held
            if kept and error is not None:
                del self._held[directory]
            held.listing.finish(error)
        if kept and error is None:
            held.expires_s = self._clock() + self._ttl_s
            self._bytes += held.listing.memory_bytes
            self._held.move_to_end(directory)
            while self._bytes > _KEPT_BYTES and len(self._held) > 1:
                self.drop(next(iter(self._held)))
