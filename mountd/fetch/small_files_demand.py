"""One small file for a reader: what it is and all its bytes, with the look-up of its name.

To look a new name up, open it and have its bytes cost three trips of a thread, a stat that the source's own open says
again, and two requests that wait, 1.6 ms of the daemon's time. But who looks a name up and will open it
(policies/prefetch/followed.py) can have the whole file with the look-up: the source opens it once, which says what it
is and gives its bytes, and the open that follows finds them in memory and is answered at once.

Only for names of which nothing is known, and where nothing speaks for the file being here already. It never raises for
what ails a file: then the name is looked up the usual way, and its reader hears what is said there. Event loop only.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable

import trio

from hfs.mountd.base.errors import SourceError, SourceTimeout
from hfs.mountd.cache import Cache
from hfs.mountd.core.flight import SingleFlight
from hfs.mountd.fetch.chunks.batches import Place, SmallFileBatch
from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.held import HeldChunks
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.small_file_lookups import SmallFileLookups, path_of
from hfs.mountd.namespace import Dentry, Namespace, Node
from hfs.mountd.source import SmallRead, Source
from hfs.policies.prefetch.followed import Followed

_BYTES = 128 << 10
"""Of the buffer that a file is read into whose size is not known yet: three times the mean of ImageNet's at 256 pixels.
A larger file is opened again, and from then on buffers are as large as that."""


class SmallDemand:
    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        held: HeldChunks,
        owners: Owners,
        source: Source,
        lookups: SmallFileLookups,
        nursery: trio.Nursery,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._held = held
        self._owners = owners
        self._source = source
        self._lookups = lookups
        self._followed = Followed()
        self._flights: SingleFlight[Place, None] = SingleFlight(nursery)
        self._bytes = min(_BYTES, lookups.limit_bytes)
        held.reuse(self._bytes)

    async def look_up(
        self, directory: Node, name: bytes, thread_id: int, wait_fetched: Callable[[Node, bytes], Awaitable[None]]
    ) -> Dentry:
        """As `Namespace.child`, for thread `thread_id`; if that is going to open it, with its bytes.

        `wait_fetched`: as that of `Lending`."""
        place = (directory, name)
        await wait_fetched(directory, name)
        dentry = None
        if self._followed.is_expected(thread_id) and self._is_new(place):
            if self._lookups.reads_blindly:
                with self._fetcher.reader_waits():
                    await self._flights.run(place, lambda: self._fetch(place))
                dentry = self._namespace.names.known_nowait(directory, name)
                if dentry is None:
                    await wait_fetched(directory, name)
            else:
                dentry = await self._namespace.lookups.child(directory, name)
                self._lookups.looked(place)
        if dentry is None:
            dentry = await self._namespace.lookups.child(directory, name)
        node = dentry.node
        if node is not None and node.version is not None and 0 < node.version.size <= self._lookups.limit_bytes:
            self._followed.looked_up(thread_id, node)
        return dentry

    def opened(self, node: Node, thread_id: int) -> None:
        """The thread has opened the file of `node`, or reads of it in a mount where opens are not told."""
        self._followed.opened(thread_id, node)

    def _is_new(self, place: Place) -> bool:
        """Whether nothing is known of a name, and nothing says that its file may be here."""
        directory, name = place
        if (
            directory.children is None
            or self._namespace.names.remembered(directory, name) is not None
            or self._namespace.asking.is_coming(directory, name)
            or self._namespace.lookups.may_be_kept(directory)
        ):
            return False
        path = path_of(place)
        return not self._cache.writer.was_put(path) and not self._owners.owned_remotely(path, 0)

    async def _fetch(self, place: Place) -> None:
        """Have the file of a new name in memory, and what it is known; nothing of both if it cannot be had so."""
        batches = self._fetcher.batches
        if place in batches:
            await batches.hurried(place)
        if not self._is_new(place):
            return
        into = await self._held.take_urgent(self._bytes)
        # No checkpoint from here until it is registered.
        if place in batches or not self._is_new(place) or self._lookups.claim([place]):
            return  # the last: it was lent meanwhile, and is being fetched
        batch = batches.take_off([place], patient=True)
        try:
            await self._read(place, batch, into)
        except SourceTimeout:
            raise  # to ask once more would take as long again
        except SourceError:
            pass  # met again by the look-up
        finally:
            del into
            batches.land_all(batch)

    async def _read(self, place: Place, batch: SmallFileBatch, into: memoryview) -> None:
        directory, name = place
        asked_s = trio.current_time()
        reads = await self._source.small_files.read_batch(
            [(directory.path, name)], into, batch.progress, limit_bytes=len(into), urgent=True
        )
        read = reads[0] if reads else SmallRead(None, None)
        if read.attributes is None:
            return
        if read.data is not None:
            version = read.attributes.version(self._source.source_id)
            if self._cache.files.get_nowait(version) is None:
                await self._cache.files.get(version)
        # No checkpoint from here on.
        node = self._namespace.lookups.found(directory, name, read.attributes, asked_s)
        if node is None or node.version is None:
            return
        if read.data is None:
            self._grow(node.version.size)
        else:
            self._land(place, batch, read, node)

    def _land(self, place: Place, batch: SmallFileBatch, read: SmallRead, node: Node) -> None:
        assert read.attributes is not None
        assert read.data is not None
        version = read.attributes.version(self._source.source_id)
        file = self._cache.files.get_nowait(version, node.path)
        if node.version != version or file is None:
            return  # something newer is known meanwhile
        if file.present.full:
            self._lookups.found_staged()
        elif read.data and file.present.count == 1 and not self._fetcher.is_coming(version, 0):
            self._fetcher.land_nowait(node, file, read.data, Goal.STAGED, wanted=True, push=False)
        self._fetcher.batches.land(batch, place, version, read.data)

    def _grow(self, size: int) -> None:
        """A file did not fit: have it fit next time, if it is a small one."""
        if self._bytes < size <= self._lookups.limit_bytes:
            self._bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            self._held.reuse(self._bytes)
