"""The listings that the namespace keeps: one a directory, good for the time-to-live, bounded in bytes.

Whoever asks gets a listing at once and follows it while it grows; the source is read in the background, so that its
time and the readers' pass together, and once however many ask. A listing past its time is held until another is
complete: it is shown while the source does not answer, and `namespace.statahead` wants the order of the names only.
Event loop only.
"""

from __future__ import annotations

import errno
import math
from collections import OrderedDict
from collections.abc import Callable

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.slices import Slices
from hfs.mountd.namespace.nodes.node import Node, expire
from hfs.mountd.namespace.silence import Silence
from hfs.mountd.source import Lister, Listing

_KEPT_BYTES = 32 << 20
"""A million names of 10 bytes."""


class _DirectoryListing:
    __slots__ = ("expires_s", "growing", "known")

    def __init__(self) -> None:
        self.known: Listing | None = None
        """The last one that is complete."""
        self.expires_s = -math.inf
        """Until when it is good."""
        self.growing: Listing | None = None
        """What will take its place."""

    @property
    def memory_bytes(self) -> int:
        return self.known.memory_bytes if self.known is not None else 0


class Listings:
    """Listings by directory."""

    def __init__(
        self,
        lister: Lister,
        nursery: trio.Nursery,
        silence: Silence,
        *,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._lister = lister
        self._nursery = nursery
        self._silence = silence
        self._ttl_s = ttl_s
        self._clock = clock
        self._held: OrderedDict[Node, _DirectoryListing] = OrderedDict()
        self._bytes = 0
        self._slices = Slices()
        """For all that takes long with a large one."""

    def get(self, directory: Node) -> Listing:
        """The names in `directory`, within the time-to-live; perhaps still growing."""
        held = self._held.setdefault(directory, _DirectoryListing())
        self._held.move_to_end(directory)
        if held.known is not None and held.expires_s > self._clock():
            return held.known
        if held.growing is None or not self._ttl_s:
            held.growing = Listing(self._slices)
            start_guarded(self._nursery, "listing", self._grow, directory, held, held.growing)
        return held.growing

    async def shown(self, directory: Node) -> Listing:
        """The same; what was known where the source does not answer. Raises SourceError, VersionChanged."""
        held = self._held.get(directory)
        known = held.known if held is not None and held.expires_s <= self._clock() else None
        if known is not None and self._silence.is_on():
            self._silence.served()
            return known
        listing = self.get(directory)
        if known is None:
            return listing
        try:
            with trio.fail_after(self._silence.limit_s(known=True) or math.inf):
                await listing.reaches(0)
        except (SourceTimeout, trio.TooSlowError):
            if not self._silence.begin(known=True):
                raise
            self._silence.served()
            return known
        except SourceError:
            self._silence.end()
            raise
        self._silence.end()
        return listing

    async def whole(self, directory: Node) -> Listing:
        """All names in `directory`, within the time-to-live. Raises SourceError, VersionChanged."""
        listing = self.get(directory)
        await listing.whole()
        return listing

    def held(self, directory: Node) -> Listing | None:
        """The last listing of `directory`, past its time or not."""
        held = self._held.get(directory)
        return (held.growing or held.known) if held is not None else None

    def expire(self, directory: Node) -> None:
        """What is known of `directory`, and what is being read, is past its time."""
        held = self._held.get(directory)
        if held is None or held.known is None:
            self.drop(directory)
        else:
            held.growing, held.expires_s = None, -math.inf

    def drop(self, directory: Node) -> None:
        """Keep no listing of `directory`. Who reads one reads it to its end."""
        held = self._held.pop(directory, None)
        if held is not None:
            self._bytes -= held.memory_bytes

    async def _grow(self, directory: Node, held: _DirectoryListing, listing: Listing) -> None:
        error: Exception | None = SourceError(errno.EIO, "the daemon is stopping")
        try:
            attributes = directory.attributes
            where = attributes.inode, listing
            await self._lister.fill(directory.path, *where, file_system=attributes.file_system)
            error = None
        except VersionChanged as found:
            error = found
            expire(directory)  # another one stands in its place
        except Exception as found:  # noqa: BLE001 - every failure belongs to the readers, whatever it is
            error = found
        finally:
            is_last = held.growing is listing and self._held.get(directory) is held
            if is_last:
                held.growing = None
                if error is not None and (held.known is None or not isinstance(error, SourceTimeout)):
                    self.drop(directory)
            listing.finish(error)
        if is_last and error is None:
            self._bytes += listing.memory_bytes - held.memory_bytes
            held.known, held.expires_s = listing, self._clock() + self._ttl_s
            self._held.move_to_end(directory)
            while self._bytes > _KEPT_BYTES and len(self._held) > 1:
                self.drop(next(iter(self._held)))
