"""A source made of a dict: what the daemon's parts ask of `mountd.source.Source`, and of the parts that it is made of,
without threads, with delays and faults.

Bytes are computed from (inode, offset). Every call is noted in `calls`. `delay_s` is virtual time; `hang` makes every
call last until the time limit.
"""

from __future__ import annotations

import errno
import stat
import struct
from collections.abc import Callable, Iterable, Sequence

import trio

from hfs.mountd.core.attributes import Attributes, SeenNames, Version, seen_names
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source.listing import Listing
from hfs.mountd.source.second_looks import SecondLooks
from hfs.policies.geometry import Extent
from tests.support.pattern import pattern

ID = "f" * 16


def attributes(inode: int, size: int = 0, *, mode: int = stat.S_IFREG | 0o644, time_ns: int = 1) -> Attributes:
    """Attributes with everything else fixed."""
    return Attributes(mode, inode, 1, 0, 0, 0, size, 0, 4096, time_ns, time_ns, time_ns)


def records(entries: Iterable[tuple[bytes, int, int]]) -> bytes:
    """(name, inode, type) as getdents64(2) gives them."""
    packed = bytearray()
    for name, inode, kind in entries:
        size = (19 + len(name) + 1 + 7) // 8 * 8
        packed += (struct.pack("=QqHB", inode, 0, size, kind) + name).ljust(size, b"\0")
    return bytes(packed)


class _Threads:
    demand_waits = False
    time_limit_s = 600.0

    def statistics(self) -> dict[str, int]:
        return {}


class FakeSource:
    """`tree`: path -> Attributes; the root is b"". It is all its parts itself."""

    def __init__(self) -> None:
        self.source_id = ID
        self.metadata = self.listings = self.files = self
        self.directories = self.idle_files = self.file_systems = self
        self.second_looks = SecondLooks(Metrics(), ttl_s=60)
        self.tree: dict[bytes, Attributes] = {b"": attributes(2, mode=stat.S_IFDIR | 0o755)}
        self.targets: dict[bytes, bytes] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.asked: list[tuple[bytes, list[bytes]]] = []
        self.reads: list[tuple[bytes, Extent]] = []
        self.delay_s = 0.001
        self.hang = False
        self.stats_at_once = 16
        self.stats_worth_a_thread = 4
        self.listing_block = 1000
        self.error: int | None = None
        self.threads = _Threads()
        self.released: list[Version] = []
        self.read_faults: dict[bytes, Callable[[], object] | int] = {}
        """Path -> the errno of its next read, or what is to happen before it."""

    def file(self, path: bytes, inode: int, size: int, time_ns: int = 1) -> None:
        self.tree[path] = attributes(inode, size, time_ns=time_ns)

    def directory(self, path: bytes, inode: int) -> None:
        self.tree[path] = attributes(inode, mode=stat.S_IFDIR | 0o755)

    def link(self, path: bytes, inode: int, target: bytes) -> None:
        self.tree[path] = attributes(inode, len(target), mode=stat.S_IFLNK | 0o777)
        self.targets[path] = target

    async def readlink(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> bytes:
        path = _join(directory, name)
        await self._answer("readlink", path, limit_s)
        return self.targets[path]

    def content(self, path: bytes, extent: Extent) -> bytes:
        found = self.tree[path]
        return pattern(found.inode * 1000 + found.mtime_ns, extent.start, extent.size)

    def forget(self, path: bytes) -> None:
        self.calls.append(("forget", path))

    def release(self, version: Version) -> None:
        self.released.append(version)

    async def _answer(self, what: str, path: bytes, limit_s: float | None = None) -> None:
        self.calls.append((what, path))
        if self.hang:
            await trio.sleep(600 if limit_s is None else limit_s)
            raise SourceTimeout(f"{what} of {path!r}")
        await trio.sleep(self.delay_s)
        if self.error is not None:
            raise SourceError(self.error, what)

    def stat_nowait(self, directory: bytes, name: bytes) -> Attributes | None:
        return None

    async def look(self, directory: bytes, names: Sequence[bytes]) -> SeenNames:
        return seen_names(names, await self.stats(directory, names), 0)

    async def stat(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> Attributes:
        path = _join(directory, name)
        await self._answer("stat", path, limit_s)
        if path not in self.tree:
            raise SourceError(errno.ENOENT, "stat")
        return self.tree[path]

    async def stats(self, directory: bytes, names: list[bytes]) -> list[Attributes | None]:
        self.asked.append((directory, list(names)))
        await self._answer("stats", directory)
        return [self.tree.get(_join(directory, name)) for name in names]

    def is_passing(self, path: bytes) -> bool:
        return False

    async def fill(self, directory: bytes, inode: int, listing: Listing, *, file_system: str = "") -> None:
        """Comes in blocks of `listing_block` names, each a call."""
        await self._answer("listing", directory)
        if self.tree[directory].inode != inode:
            raise VersionChanged("another directory")
        parents = {path: path.rpartition(b"/") for path in self.tree if path}
        names = [(name, self.tree[path]) for path, (parent, _, name) in parents.items() if parent == directory]
        entries = [(name, found.inode, stat.S_IFMT(found.mode) >> 12) for name, found in names]
        for start in range(0, len(entries), self.listing_block):
            if start:
                await self._answer("listing more", directory)
            listing.append(records(entries[start : start + self.listing_block]))

    async def read(
        self, directory: bytes, name: bytes, version: Version, extent: Extent, into: memoryview, *, urgent: bool
    ) -> None:
        path = _join(directory, name)
        self.reads.append((path, extent))
        await self._answer("read" if urgent else "read ahead", path)
        fault = self.read_faults.pop(path, None)
        if isinstance(fault, int):
            raise SourceError(fault, "read")
        if fault is not None:
            fault()
        if path not in self.tree or self.tree[path].version(ID) != version:
            raise VersionChanged(f"{path!r}")
        into[: extent.size] = self.content(path, extent)


def _join(directory: bytes, name: bytes) -> bytes:
    return b"/".join(part for part in (directory, name) if part)
