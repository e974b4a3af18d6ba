"""Flights of many small files: one call of the source brings them all, and each may be waited for by itself.

What `flight` is for one chunk: a name is registered before the first checkpoint, so nobody else fetches it, and it is
landed whatever happens. But a batch is long, and its files are nobody's demand yet. So a reader who wants one of them
hurries the batch: where its file is being read or was read it waits until the thread has come back, which it does after
that one file; a file that the thread has not come to leaves the batch at once, and its reader fetches it by itself.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from hfs.mountd.base.version import Version
from hfs.mountd.namespace import Node
from hfs.mountd.source import BatchProgress

Place = tuple[Node, bytes]
"""A directory and a name in it: what a file is known by before it has been looked at."""


class _Coming:
    """One file of a batch."""

    __slots__ = ("batch", "data", "landed", "number", "version", "wanted")

    def __init__(self, batch: SmallFileBatch, number: int) -> None:
        self.batch = batch
        self.number = number
        """Its place in the call that is under way."""
        self.landed = trio.Event()
        self.version: Version | None = None
        self.data: memoryview | None = None
        self.wanted = False
        """A reader waits for it."""


class SmallFileBatch:
    """Files that one call of the source reads. `progress` goes with the call."""

    __slots__ = ("coming", "patient", "progress")

    def __init__(self, *, patient: bool) -> None:
        self.patient = patient
        """It is read for a reader already: who else wants of it waits, and does not hurry it."""
        self.coming: dict[Place, _Coming] = {}
        self.progress = BatchProgress()

    def __contains__(self, place: Place) -> bool:
        return place in self.coming

    def is_wanted(self, place: Place) -> bool:
        """A reader waits for this one."""
        coming = self.coming.get(place)
        return coming is not None and coming.wanted


class Batches:
    """The batches under way, by place."""

    def __init__(self) -> None:
        self._coming: dict[Place, _Coming] = {}

    def __len__(self) -> int:
        return len(self._coming)

    def __contains__(self, place: Place) -> bool:
        return place in self._coming

    def names_in(self, directory: Node) -> list[bytes]:
        """Those of its names that are under way."""
        return [name for where, name in self._coming if where is directory]

    def take_off(self, places: Sequence[Place], *, patient: bool = False) -> SmallFileBatch:
        """Register these, none of which is under way, in the order in which they are read.

        `patient`: for a reader who waits for all of them.
        """
        batch = SmallFileBatch(patient=patient)
        for number, place in enumerate(places):
            assert place not in self._coming
            self._coming[place] = batch.coming[place] = _Coming(batch, number)
        return batch

    def land(
        self, batch: SmallFileBatch, place: Place, version: Version | None = None, data: memoryview | None = None
    ) -> None:
        """One file is here, or (without `version`) will not come with this batch. Nothing happens if it has left."""
        coming = batch.coming.pop(place, None)
        if coming is not None:
            coming.version, coming.data = version, data
            self._leave(place, coming)

    def land_all(self, batch: SmallFileBatch) -> None:
        """The batch has ended: what is still in it will not come."""
        for place in list(batch.coming):
            self.land(batch, place)

    async def wait(self, place: Place) -> None:
        """Until this one is not under way, in no hurry."""
        while (coming := self._coming.get(place)) is not None:
            await coming.landed.wait()

    async def hurried(self, place: Place, version: Version | None = None) -> memoryview | None:
        """For a reader: the bytes of a file that is under way, if they are of `version`; None: fetch it yourself.

        Without `version`, which is not known before a look-up, those of any.
        """
        coming = self._coming.get(place)
        if coming is None:
            return None
        if not coming.batch.patient and coming.number > coming.batch.progress.hurry():
            self.land(coming.batch, place)
            return None
        coming.wanted = True
        await coming.landed.wait()
        return coming.data if version is None or coming.version == version else None

    def _leave(self, place: Place, coming: _Coming) -> None:
        if self._coming.get(place) is coming:
            del self._coming[place]
        coming.landed.set()
