"""Small files, staged many at a time: whole trees of them, before anybody opens one.

A batch is one call of the source, which opens and reads some files and says what each of them is, so none is stat'ed
before; what it finds is known to the namespace afterwards, as after a look-up, and lies in one buffer until staging has
written it. What is known and staged already does not reach the source, and what may be staged under a name that was
forgotten since is looked up and not read. A file that did not come with its batch (gone, changed meanwhile, wanted by a
reader who fetches it himself) is asked for by itself, with all the patience of a read.

Called by `read_path` (siblings), `commands` (warm) and whoever has a list of paths. Event loop only. Errors are given
for each file; nothing is told to readers, who find what is here and fetch what is not.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from mountd.base.errors import HfsError, SourceError, StagingError
from mountd.cache import Cache
from mountd.core.buffers import Buffers
from mountd.core.metrics import Metrics
from mountd.fetch.batches import Place, SmallFileBatch
from mountd.fetch.fetcher import Fetcher, Push
from mountd.namespace import Namespace, Node
from mountd.source import SmallRead, Source
from policies.iomode import SMALL_BYTES

__all__ = ["BATCH_FILES", "Become", "Small", "SmallFiles"]

BATCH_FILES = 16
"""Files of one call of the source: what is the same for each call costs a tenth of the rest then, and a thread is taken
for 64 ms on a Lustre that needs 4 ms a file."""

_BATCH_BYTES = 2 << 20
"""The buffer of a batch: 16 threads with one each take half of what prefetch may have by default."""


_LOOKS = 64
"""Files that are looked at before they are read, where an earlier run may have staged them; as many more after each
that was. A look is a round trip to the source, so it must not go on for a data set of which nothing is staged."""


class Become(enum.Enum):
    """What became of a file."""

    FETCHED = enum.auto()
    HERE = enum.auto()
    """It was staged before, or somebody else fetches it."""
    LARGE = enum.auto()
    """It is no small file: its chunks are to be fetched one by one. Nothing was read."""


class Small(NamedTuple):
    """A file, and what became of it. Its size: `node.attributes.size`."""

    node: Node
    become: Become


Wanted = Callable[[Place], bool]


def _always(_place: Place) -> bool:
    return True


class SmallFiles:
    """See the file's story."""

    def __init__(
        self,
        namespace: Namespace,
        cache: Cache,
        fetcher: Fetcher,
        source: Source,
        buffers: Buffers,
        metrics: Metrics,
        *,
        chunk_bytes: int,
    ) -> None:
        self._namespace = namespace
        self._cache = cache
        self._fetcher = fetcher
        self._source = source
        self._buffers = buffers
        self._metrics = metrics
        self.limit_bytes = min(SMALL_BYTES, chunk_bytes)
        """The largest small file."""
        self._batch_bytes = max(_whole_pages(self.limit_bytes), min(_BATCH_BYTES, chunk_bytes))
        self._buffers.reuse(self._batch_bytes)
        self._looks = _LOOKS
        self._refused_bytes: int | None = None
        """The size of a file that staging has not taken: until it would, nothing is read to be thrown away."""

    async def stage_paths(
        self, paths: Sequence[bytes], *, push: bool, stage: bool = True, hold: bool = False, wanted: Wanted = _always
    ) -> list[Small | HfsError]:
        """As `stage`, by paths relative to the root."""
        directories: dict[bytes, Node | HfsError] = {}
        places: list[Place | HfsError] = []
        for path in paths:
            head, _, name = path.rpartition(b"/")
            if not name or name in (b".", b"..") or b"\0" in path:
                places.append(SourceError(errno.EINVAL, f"{path!r} names no file"))
                continue
            if head not in directories:
                try:
                    directories[head] = await self._namespace.lookups.resolve(head)
                except HfsError as error:
                    directories[head] = error
            directory = directories[head]
            places.append(directory if isinstance(directory, HfsError) else (directory, name))
        outcomes = iter(
            await self.stage(
                [place for place in places if isinstance(place, tuple)],
                push=push,
                stage=stage,
                hold=hold,
                wanted=wanted,
            )
        )
        return [next(outcomes) if isinstance(place, tuple) else place for place in places]

    async def stage(
        self, places: Sequence[Place], *, push: bool, stage: bool = True, hold: bool = False, wanted: Wanted = _always
    ) -> list[Small | HfsError]:
        """Stage these files, unless they are. For each, in this order, what became of it, or why it could not be.

        `push`: put it into the page cache too, where the kernel knows it. `stage` False: only hold it in memory, for
        a reader who comes soon. A file that staging does not take is a StagingError, or with `hold` held in memory
        too. `wanted` is asked of each just before it is read; what is not any more counts as here. Cancelled, it
        leaves what was fetched, and readers who waited for the rest fetch it themselves.
        """
        outcomes: dict[Place, Small | HfsError] = {}
        unique = dict.fromkeys(places)
        nameless = {place for place in unique if self._is_unknown(place)}
        if again := [place for place in unique if place in nameless and self._cache.writer.was_put(_path(place))]:
            await self._look_up(again)
            nameless = {place for place in unique if self._is_unknown(place)}
        if not self.reads_blindly:
            await self._look_first([place for place in unique if place in nameless])
            nameless = {place for place in unique if self._is_unknown(place)}
        named = [place for place in unique if place not in nameless]
        unknown = [node.version for place in named if (node := self._node(place)) is not None and node.version]
        unknown = [version for version in unknown if self._cache.files.get_nowait(version) is None]
        if unknown:
            await self._cache.files.load(unknown)
            nameless = set()  # some may be known now
        left = []
        for place in unique:
            known = None if place in nameless else self._known(place, stage=stage and not hold)
            if known is None:
                left.append(place)
            else:
                outcomes[place] = known
        elsewhere = [place for place in left if self._owned_remotely(place)]
        if elsewhere:
            left = [place for place in left if place not in set(elsewhere)]
            await self._from_peers(elsewhere, outcomes, push=push, stage=stage, hold=hold, wanted=wanted)
        while left:
            await self._batch(left, outcomes, push=push, stage=stage, hold=hold, wanted=wanted)
            left = [place for place in left if place not in outcomes]
        return [outcomes[place] for place in places]

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

    def _is_unknown(self, place: Place) -> bool:
        return place[0].children is not None and self._namespace.names.known_nowait(*place) is None

    async def _look_first(self, places: Sequence[Place]) -> None:
        """Ask what these are: an earlier run may have staged them, and then nothing of them is to be read."""
        await self._look_up(places)
        found = sum(self._is_staged(place) for place in places)
        self._looks = _LOOKS if found else self._looks - len(places)

    async def _look_up(self, places: Sequence[Place]) -> None:
        by_directory: dict[Node, list[bytes]] = {}
        for directory, name in places:
            by_directory.setdefault(directory, []).append(name)

        async def look(directory: Node, names: list[bytes]) -> None:
            with contextlib.suppress(HfsError):  # met again by who reads it
                dentries = await self._namespace.lookups.children(directory, names)
                versions = [dentry.node.version for dentry in dentries if dentry.node is not None]
                await self._cache.files.load([version for version in versions if version is not None])

        async with trio.open_nursery() as nursery:
            for directory, names in by_directory.items():
                nursery.start_soon(look, directory, names)

    def _is_staged(self, place: Place) -> bool:
        node = self._node(place)
        file = self._cache.files.get_nowait(node.version) if node is not None and node.version is not None else None
        return file is not None and file.present.full

    # -- what is known without asking ---------------------------------------------------------------------------------

    def _node(self, place: Place) -> Node | None:
        dentry = self._namespace.names.known_nowait(*place) if place[0].children is not None else None
        return dentry.node if dentry is not None else None

    def _known(self, place: Place, *, stage: bool) -> Small | HfsError | None:
        """What becomes of a file without reading it; None: it is to be read."""
        directory, name = place
        if directory.children is None:
            return SourceError(errno.ENOTDIR, f"{directory.path!r}")
        dentry = self._namespace.names.known_nowait(directory, name)
        if dentry is None:
            return None
        if dentry.node is None:
            return SourceError(errno.ENOENT, f"{name!r} in {directory.path!r}")
        return self._without_reading(dentry.node, stage=stage)

    def _without_reading(self, node: Node, *, stage: bool) -> Small | HfsError | None:
        if node.version is None:
            return SourceError(errno.EINVAL, f"{node.path!r} is no regular file")
        if node.version.size > self.limit_bytes:
            return Small(node, Become.LARGE)
        file = self._cache.files.get_nowait(node.version, node.path)
        if file is None:
            return None
        if file.present.full:
            return Small(node, Become.HERE)
        if file.present.count > 1:
            return Small(node, Become.LARGE)  # staged in smaller chunks by an earlier run
        if self._fetcher.is_coming(node.version, 0):
            return Small(node, Become.HERE)  # a reader fetches it
        if not stage:
            return Small(node, Become.HERE) if self._fetcher.held_nowait(node.version, 0) is not None else None
        admission = self._cache.admission
        return None if admission.admits_nowait(file, file.size) else admission.refusal(file.size)

    # -- other nodes --------------------------------------------------------------------------------------------------

    def _owned_remotely(self, place: Place) -> bool:
        return self._fetcher.owned_remotely(_path(place), 0)

    async def _from_peers(
        self,
        places: Sequence[Place],
        outcomes: dict[Place, Small | HfsError],
        *,
        push: bool,
        stage: bool,
        hold: bool,
        wanted: Wanted,
    ) -> None:
        """Files that another node owns: what they are is asked for together, each comes by itself."""
        await self._look_up([place for place in places if self._is_unknown(place)])

        async def one(place: Place) -> None:
            node = self._node(place)
            if node is not None and not wanted(place):
                outcomes[place] = Small(node, Become.HERE)
            elif stage and not self._fetcher.caches_locally(_path(place), 0):
                outcomes[place] = await self._staged_at_home(place)
            else:
                outcomes[place] = await self._alone(place, push=push, stage=stage, hold=hold)

        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(one, place)

    async def _staged_at_home(self, place: Place) -> Small | HfsError:
        """Have its owner stage it: there it belongs, and nobody waits for it here."""
        try:
            (dentry,) = await self._namespace.lookups.children(place[0], [place[1]])
            if dentry.node is None or dentry.node.version is None:
                return SourceError(errno.ENOENT, f"{place[1]!r} in {place[0].path!r}")
            file = await self._cache.files.get(dentry.node.version, dentry.node.path)
            if file.present.count > 1:
                return Small(dentry.node, Become.LARGE)
            if not await self._fetcher.have_staged(dentry.node, file, 0):
                return StagingError("its owner among the nodes could not stage it")
        except HfsError as error:
            return error
        return Small(dentry.node, Become.HERE)

    # -- a batch ------------------------------------------------------------------------------------------------------

    async def _batch(
        self,
        left: Sequence[Place],
        outcomes: dict[Place, Small | HfsError],
        *,
        push: bool,
        stage: bool,
        hold: bool,
        wanted: Wanted,
    ) -> None:
        """One call of the source for the first of `left`: at least one of them has an outcome then, or was left to a
        reader who came in between."""
        batches = self._fetcher.batches
        if stage and self._refused_bytes is not None:
            if self._cache.admission.fits_nowait(self._refused_bytes):
                self._refused_bytes = None
            elif hold:
                stage = False
            else:
                outcomes.update((place, self._cache.admission.refusal(self._refused_bytes)) for place in left)
                return
        if push:
            await self._fetcher.wait_may_push(self._batch_bytes)
        into = await self._buffers.take(self._batch_bytes, urgent=False)
        # No checkpoint from here until all are registered.
        for place in left:
            # Memory may have been waited for: readers may have had some fetched meanwhile.
            if self._is_unknown(place):
                continue
            node, known = self._node(place), self._known(place, stage=stage and not hold)
            if known is not None:
                outcomes[place] = known
            elif node is not None and not wanted(place):
                outcomes[place] = Small(node, Become.HERE)
        left = [place for place in left if place not in outcomes]
        if not left:
            return
        places = [place for place in left if place not in batches][:BATCH_FILES]
        alone = [] if places else list(left)  # others fetch them: wait for that
        batch = batches.take_off(places)
        looked_up: list[tuple[Place, SmallRead]] = []
        """Somebody asks for the name just now, and it was not known: his answer is waited for, nothing read again."""
        try:
            asked_s = trio.current_time()
            if places:
                paths = [(directory.path, name) for directory, name in places]
                reads = await self._source.small_files.read_batch(
                    paths, into, batch.progress, limit_bytes=self.limit_bytes
                )
                for (directory, name), read in zip(places, reads, strict=False):
                    if read.data is not None and read.attributes is not None:
                        version = read.attributes.version(self._source.source_id)
                        if self._cache.files.get_nowait(version) is None:
                            await self._cache.files.get(version, b"/".join(filter(None, (directory.path, name))))
                # No checkpoint from here on.
                # A reader had hurried for it, and its thread has ended before it: he must not have to hurry again.
                alone += [place for place in places[len(reads) :] if batch.is_wanted(place)]
                for place in [place for place in places if place not in batch]:
                    # A reader was faster, and fetches it himself. Held for him it need not be any more.
                    node = self._node(place)
                    if hold and node is not None:
                        outcomes[place] = Small(node, Become.HERE)
                    else:
                        alone.append(place)
                for place, read in zip(places, reads, strict=False):
                    if place not in batch:
                        continue
                    node = self._found(place, read, asked_s)
                    if node is not None and not wanted(place) and not batch.is_wanted(place):
                        batches.land(batch, place)
                        outcomes[place] = Small(node, Become.HERE)
                        continue
                    outcome = self._land(batch, place, read, node, push=push, stage=stage, hold=hold)
                    if outcome is not None:
                        outcomes[place] = outcome
                    elif node is None and read.data is not None:
                        looked_up.append((place, read))
                    else:
                        alone.append(place)
                for place, read in looked_up:
                    outcome = await self._land_later(batch, place, read, push=push, stage=stage, hold=hold)
                    if outcome is not None:
                        outcomes[place] = outcome
                    else:
                        alone.append(place)
        except SourceError as error:
            error.__cause__ = error.__context__ = None
            error.with_traceback(None)  # its frames hold the buffer
            outcomes.update((place, error) for place in places if place not in outcomes)
        finally:
            del into
            batches.land_all(batch)
        for place in alone:
            outcomes[place] = await self._alone(place, push=push, stage=stage, hold=hold)

    def _found(self, place: Place, read: SmallRead, asked_s: float) -> Node | None:
        return self._namespace.lookups.found(*place, read.attributes, asked_s) if read.attributes is not None else None

    async def _land_later(
        self, batch: SmallFileBatch, place: Place, read: SmallRead, *, push: bool, stage: bool, hold: bool
    ) -> Small | HfsError | None:
        """As `_land`, once it is known what the name is. Who wants the file meanwhile waits for the batch."""
        try:
            (dentry,) = await self._namespace.lookups.children(place[0], [place[1]])
            node = dentry.node
            if node is not None and node.version is not None and self._cache.files.get_nowait(node.version) is None:
                await self._cache.files.get(node.version, node.path)
        except HfsError:
            return None
        return self._land(batch, place, read, node, push=push, stage=stage, hold=hold)

    def _land(
        self,
        batch: SmallFileBatch,
        place: Place,
        read: SmallRead,
        node: Node | None,
        *,
        push: bool,
        stage: bool,
        hold: bool,
    ) -> Small | HfsError | None:
        """One file has come. None: it is to be asked for by itself. No checkpoint."""
        batches, wanted = self._fetcher.batches, batch.is_wanted(place)
        if place not in batch or node is None or node.version is None or read.attributes is None:
            return None
        version = read.attributes.version(self._source.source_id)
        if node.version != version:
            return None  # something newer is known meanwhile
        if read.data is None:
            batches.land(batch, place)
            return Small(node, Become.LARGE)
        file = self._cache.files.get_nowait(version, node.path)
        if file is None:
            return None
        if file.present.full:
            self.found_staged()  # it was read for nothing
        if file.present.full or file.present.count > 1 or self._fetcher.is_coming(version, 0):
            batches.land(batch, place, version, read.data)
            return Small(node, Become.LARGE if file.present.count > 1 and not file.present.full else Become.HERE)
        staged = self._fetcher.land_nowait(node, file, read.data, wanted=wanted, push=push, stage=stage, hold=hold)
        batches.land(batch, place, version, read.data)
        if stage and not staged:
            self._refused_bytes = len(read.data)
            if not hold:
                return self._cache.admission.refusal(len(read.data))
        self._metrics.add("prefetched_chunks")
        return Small(node, Become.FETCHED)

    async def _alone(self, place: Place, *, push: bool, stage: bool, hold: bool) -> Small | HfsError:
        """The usual way: asked for by name, read by itself, tried again after what passes by."""
        try:
            await self._fetcher.batches.wait(place)
            (dentry,) = await self._namespace.lookups.children(place[0], [place[1]])
            node = dentry.node
            if node is None:
                return SourceError(errno.ENOENT, f"{place[1]!r} in {place[0].path!r}")
            file = await self._cache.files.get(node.version, node.path) if node.version is not None else None
            known = self._without_reading(node, stage=stage and not hold)
            if known is not None or file is None:
                return known or StagingError("nothing is known of it")
            fetched = await self._fetcher.ahead(
                node, file, 0, push=Push.WHOLE if push else Push.NOTHING, stage=stage, unless_held=hold
            )
        except HfsError as error:
            return error
        if stage and not hold and 0 not in file.present and not self._fetcher.is_coming(file.version, 0):
            return self._cache.admission.refusal(file.size)
        return Small(node, Become.FETCHED if fetched else Become.HERE)


def _path(place: Place) -> bytes:
    directory, name = place
    path = directory.path
    return path + b"/" + name if path else name


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
