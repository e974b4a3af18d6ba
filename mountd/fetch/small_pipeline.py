"""Small files that the data plane fetches by itself (native/plane/fetch.h): what it is asked for ahead, and what has
become of each.

It may do so in directories that are delegated (`fetch.directory_delegations`). What is out of the ordinary comes to us
as every request did: the pipeline is a faster way, never another one. Event loop only.
"""

from __future__ import annotations

import enum
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import trio

from hfs.mountd.cache import Cache, Completion, SeenObject, Stamp
from hfs.mountd.core.attributes import Version, version_of
from hfs.mountd.core.errors import HfsError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch.directory_delegations import DirectoryDelegations
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.kernel import Fetched, FetchKind, SmallFetches
from hfs.mountd.namespace import Namespace, Node
from hfs.mountd.source import Source

log = logging.getLogger(__name__)

_MOST_AHEAD = 512
"""Files that wait to be fetched ahead, or are being fetched: in the 20 ms until it is looked again 48 threads do fewer
than that. The data plane refuses more than 4096 (AHEAD_QUEUED)."""

_UNSTORED_SHARE = 4
"""Of the memory for fetching ahead, at most, for what finds no room in the cache and waits there for its reader. More
would drive out what was not read yet, and the source would give it twice (1.4 times the bytes of a data set were seen).
The data plane takes no more either (has_place in workers.c), and begins to forget at half."""

_BATCH_S = 0.02
"""What becomes of files in that time is heard of together: a turn of the event loop for each costs 40 us."""

_LOOK_AFTER_S = 0.1
"""How often directories that are delegated are looked after."""

_HANGING_EVERY_S = 0.5
_HANGS_S = 2.0
"""Longer than a small file takes where nothing hangs; as long as an open waits for its bytes (`files.opening`)."""

WAS_HERE = 1 << 63
"""In the thread id of an open: WAS_HERE in native/plane/fetch.h."""

_COUNTERS = {
    "source_stats": "looks",
    "source_opens": "opens",
    "source_reads": "reads",
    "source_read_bytes": "read_bytes",
    "source_wait_ns": "wait_ns",
}

_PATIENCE_S = 1.0
"""At the end: for threads that read the source just then."""


_FETCHED = (FetchKind.STORED, FetchKind.UNSTORED, FetchKind.GIVEN)


Place = tuple[Node, bytes]
"""A directory and a name in it: what a file is known by before it has been looked at."""


class Become(enum.Enum):
    """What has become of a file that was to be staged."""

    FETCHED = enum.auto()
    HERE = enum.auto()
    """It was staged before, or somebody else fetches it, or its owner node has it."""
    LARGE = enum.auto()
    """It is no small file, but one whose chunks are to be fetched one by one, or a link. Nothing was read."""


class Small(NamedTuple):
    """A file, and what has become of it, whoever has fetched it."""

    become: Become
    size: int | None = None
    """None: it was here, and nobody has asked."""
    number: int = 0
    """Of its object; 0: it is in memory, or empty, or elsewhere, or nobody has asked."""
    node: Node | None = None
    """None: the data plane has it, which needs none."""


class _Key(NamedTuple):
    directory_id: int
    generation: int
    """Of the loan: after a recall it may be asked for again while that of before is under way."""
    name: bytes


class _Batch:
    """Files that somebody waits for together."""

    def __init__(self) -> None:
        self.left = 0
        self.more = trio.Event()
        self.outcomes: dict[_Key, Small] = {}

    def landed(self) -> None:
        """One of them is under way no more."""
        self.left -= 1
        if not self.left:
            self.more.set()


class SmallPipeline:
    """`run` is a task of the daemon's nursery, once the mount is there."""

    def __init__(
        self,
        fetches: SmallFetches,
        directory_delegations: DirectoryDelegations,
        namespace: Namespace,
        source: Source,
        cache: Cache,
        siblings: SiblingWatch,
        metrics: Metrics,
        heard: Callable[[bytes, int, int, int], bool],
    ) -> None:
        """`heard(path, size, thread_id, at_ns)` is told of each file that is opened without us, `WAS_HERE` in its
        thread id if it was staged; whether an order names it."""
        self._fetches = fetches
        self.directory_delegations = directory_delegations
        self.limit_bytes = directory_delegations.terms.limit_bytes
        """The largest small file."""
        self._namespace = namespace
        self._source = source
        self._cache = cache
        self._siblings = siblings
        self._metrics = metrics
        self._heard = heard
        self._awaited: dict[_Key, _Batch] = {}
        self._prefixes: dict[int, bytes] = {}
        """By node id of the directory, since the last look at what has become of files."""
        self._counted = fetches.figures()
        self._counted_waits = fetches.reader_waits().waits
        self._given_up = 0
        """Names at which the source did not answer."""
        self._unstored_bytes = 1
        self._ahead_threads = 1
        self._share = 1.0

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def places(self) -> int:
        """How many more files may be asked for ahead: others would only wait for a thread, or find room nowhere. Who
        asks for none hears of the next that is done or read (`SiblingWatch`)."""
        figures = self._fetches.figures()
        if self._cache.completions.granted_bytes > self.limit_bytes:
            return max(0, _MOST_AHEAD - figures.jobs)
        return max(0, (self._unstored_bytes - figures.unstored_bytes) // self.limit_bytes - figures.jobs)

    @property
    def jobs(self) -> int:
        """Names that are being looked at or fetched, or are to be."""
        return self._fetches.figures().jobs

    def set_share(self, share: float) -> None:
        """Only this part of the threads that fetch ahead may do so from now on, one at least."""
        self._share = share
        self._fetches.set_ahead_threads(max(1, int(self._ahead_threads * share)))

    async def delegate(self, directory: Node) -> bool:
        """Have small files of this directory fetched without us from now on. False: that may not be."""
        return self._fetches.runs and await self.directory_delegations.delegate(directory)

    async def stage(self, places: Sequence[Place]) -> list[Small | None]:
        """Have these files of directories that are delegated fetched and staged. For each what has become of it; None:
        we are to fetch it."""
        batch = _Batch()
        generation = self.directory_delegations.generation
        keys = {place: _Key(place[0].id, generation(place[0].id), place[1]) for place in places}
        asked = [keys[place] for place in places if place[0].delegated]
        errors = self._fetches.ahead([(key.directory_id, key.name) for key in asked])
        for key, error in zip(asked, errors, strict=True):
            if not error:
                self._awaited[key] = batch
                batch.left += 1
            elif error == errno.EEXIST:
                batch.outcomes[key] = Small(Become.HERE)
        with trio.move_on_after(self._source.threads.time_limit_s):
            while batch.left:
                await batch.more.wait()
        for key in asked:
            if self._awaited.get(key) is batch:
                del self._awaited[key]
        return [batch.outcomes.get(keys[place]) for place in places]

    def opened(self, node_id: int, thread_id: int, at_ns: int) -> bool:
        """A node was opened without us, at this `time.monotonic_ns()`. False: it is no slot."""
        found = self._fetches.slot(node_id)
        if found is None:
            return False
        directory_id, name, size = found
        staged = bool(thread_id & WAS_HERE)
        is_planned = self._heard((self._prefix(directory_id) or b"") + name, size, thread_id, at_ns)
        directory = self.directory_delegations.directory(directory_id)
        if directory is not None:
            self.directory_delegations.is_used(directory_id)
            if not is_planned:
                self._siblings.opened_in(directory, name, size, staged=staged)
        return True

    async def wait_answered(self) -> bool:
        """Until the source has answered for all names that are under way. False: at one of them it hangs. Where there
        are always some, those that hang are known after a while."""
        given_up = self._given_up
        with trio.move_on_after(_HANGS_S + 2 * _HANGING_EVERY_S):
            while self._fetches.figures().jobs and self._given_up == given_up:  # noqa: ASYNC110 - as seldom as a refresh
                await trio.sleep(_LOOK_AFTER_S)
        return self._given_up == given_up

    # -- what becomes of them -----------------------------------------------------------------------------------------

    async def run(
        self,
        device_fd: int,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        threads: int,
        ahead_threads: int,
        ahead_bytes: int,
    ) -> None:
        """Fetch with so many threads, from now on; for ever. At the end they have ended. `run_in_thread`: as
        trio.to_thread.run_sync, also where no thread can be started any more."""
        self._ahead_threads = ahead_threads
        self._unstored_bytes = max(1, ahead_bytes // _UNSTORED_SHARE)
        self._fetches.start(device_fd, threads, ahead_threads=ahead_threads, ahead_bytes=ahead_bytes)
        self.set_share(self._share)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_after, run_in_thread)
                while True:
                    await self._fetches.news.wait()
                    self.take()
                    if self.directory_delegations:
                        self._cache.completions.grant_nowait()
                    self.directory_delegations.heard()
                    await trio.sleep(_BATCH_S)
        finally:
            self.directory_delegations.recall_all()
            with trio.CancelScope(shield=True):
                await run_in_thread(self._fetches.stop, _PATIENCE_S)
            self.take()

    async def _look_after(self, run_in_thread: Callable[..., Awaitable[Any]]) -> None:
        """What is delegated, and what hangs. Never returns."""
        hanging_s = 0.0
        while True:
            # A directory may have been called back since.
            if not self.directory_delegations and not self._fetches.figures().jobs:
                await self.directory_delegations.wait_delegated()
            await trio.sleep(_LOOK_AFTER_S)
            self._cache.completions.grant_nowait()
            self.directory_delegations.look_after()
            if trio.current_time() >= hanging_s:
                hanging_s = trio.current_time() + _HANGING_EVERY_S
                await self._replace_hanging(run_in_thread)

    async def _replace_hanging(self, run_in_thread: Callable[..., Awaitable[Any]]) -> None:
        """Who waits for a source that hangs does so with us, who keep those apart that ask for something else."""
        stuck = await run_in_thread(self._fetches.replace_hanging, _HANGS_S)
        self._given_up += len(stuck)
        self._metrics.add("source_abandoned", len(stuck))
        for directory_id in set(stuck):
            self.directory_delegations.rest(directory_id)
            self._give_up(directory_id)

    def take(self) -> None:
        """Hear what has become of files."""
        self._prefixes.clear()
        before, self._counted = self._counted, self._fetches.figures()
        for name, field in _COUNTERS.items():
            self._metrics.add(name, getattr(self._counted, field) - getattr(before, field))
        waits = self._fetches.reader_waits().waits
        self._metrics.add("source_waits", waits - self._counted_waits)
        self._counted_waits = waits
        while found := self._fetches.take_fetched():
            self._enter(found)

    def _enter(self, found: Sequence[Fetched]) -> None:
        completions: list[Completion] = []
        source_id = self._source.source_id
        for one in found:
            prefix = self._prefix(one.directory_id)
            version = version_of(one.seen, source_id)
            if one.kind is FetchKind.BROKEN or (one.kind is FetchKind.STORED and prefix is None):
                self._cache.completions.broken(one.number, version.size)
            elif one.kind is FetchKind.STORED and prefix is not None:
                stamp = Stamp(one.inode, one.ctime_ns)
                completions.append(Completion(version, prefix + one.name, one.number, stamp, one.checksum))
                self._note(one, source_id)
            elif one.kind is FetchKind.GIVEN and prefix is not None:
                self._store(one, version, prefix)
            self.directory_delegations.is_used(one.directory_id)
            if one.ahead:
                self._tell_awaiting(one, version.size)
        self._cache.completions.enter(completions)
        if any(one.ahead for one in found):
            self._siblings.look_again()

    def _store(self, one: Fetched, version: Version, prefix: bytes) -> None:
        """Bytes that are not stored as they are. The file is a node's then: Python alone can read what is stored."""
        file = self._cache.files.get_nowait(version, prefix + one.name)
        if file is None or one.data is None or file.present.full or file.present.count != 1:
            return
        if self._cache.writer.put_nowait(file, 0, memoryview(one.data)):
            directory = self._namespace.nodes.node(one.directory_id)
            self._namespace.names.known_nowait(directory, one.name)

    def _note(self, one: Fetched, source_id: str) -> None:
        if one.generation != self.directory_delegations.generation(one.directory_id):
            return  # somebody has said since that its name may be another file's
        if self._cache.attributes.on and not (directory := self._namespace.nodes.node(one.directory_id)).changes:
            seen = SeenObject(one.number, source_id, directory.attributes, one.name, one.seen)
            self._cache.attributes.note_object(seen)

    def _prefix(self, directory_id: int) -> bytes | None:
        """Of the paths in this directory; None: it has gone. Remembered for a moment, since a path is many names."""
        if directory_id not in self._prefixes:
            try:
                path = self._namespace.nodes.node(directory_id).path
            except HfsError:
                return None
            self._prefixes[directory_id] = path + b"/" if path else b""
        return self._prefixes[directory_id]

    def _tell_awaiting(self, one: Fetched, size: int) -> None:
        key = _Key(one.directory_id, one.generation, one.name)
        batch = self._awaited.pop(key, None)
        if batch is None:
            return
        if one.kind in _FETCHED:
            batch.outcomes[key] = Small(Become.FETCHED, size, one.number)
        elif one.kind is FetchKind.HERE and (one.number or not size):  # else it is no small file
            batch.outcomes[key] = Small(Become.HERE, size, one.number)
        batch.landed()

    def _give_up(self, directory_id: int) -> None:
        """The source hangs there: who waits for files of this directory goes on without us."""
        for key in [key for key in self._awaited if key.directory_id == directory_id]:
            self._awaited.pop(key).landed()
