"""Verifying whole files in the background: those that somebody wants passed through and of which nobody knows enough.

An object without its stamp, or from before there were stamps, is read by chunks meanwhile, each verified when it is
first used. Once all of them were found right the file is sound, and its new stamp is noted for later daemons. What is
damaged is forgotten as when a reader meets it.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from hfs.mountd.base.errors import StagingError
from hfs.mountd.cache.objects import StagedFile
from hfs.mountd.cache.reading.reader import StagedReader
from hfs.mountd.core.background import guarded

_STREAMS = 4
"""Chunks of a file at a time: two are hashed while two come from the disk."""

_MAX_WAITING = 4096
"""Files that are asked for and wait; further ones are asked for again when they are opened again."""


class Verifying:
    """`run` is a task of the cache's nursery. Event loop only."""

    def __init__(self, reader: StagedReader) -> None:
        self._reader = reader
        self._wanted: OrderedDict[StagedFile, trio.Event] = OrderedDict()
        self._more = trio.Event()

    async def wait_verified(self, file: StagedFile) -> None:
        """Have the chunks of `file` verified that were not yet; who gives up leaves that going on. Never fails."""
        await self.verify_soon(file).wait()

    def verify_soon(self, file: StagedFile) -> trio.Event:
        """The same, for later; set when it is done."""
        done = self._wanted.get(file)
        if done is None:
            done = trio.Event()
            if len(self._wanted) < _MAX_WAITING:
                self._wanted[file] = done
                self._more.set()
            else:
                done.set()
        return done

    async def run(self) -> None:
        """Verify file after file. Never returns."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._wanted:
                file, done = next(iter(self._wanted.items()))
                try:
                    await guarded("staging: verifying", self._verify, file)
                finally:
                    del self._wanted[file]
                    done.set()
                del file, done

    async def _verify(self, file: StagedFile) -> None:
        left = [index for index in file.present if index not in file.verified]
        left.reverse()

        async def stream() -> None:
            while left:
                try:
                    await self._reader.verify(file, left.pop())
                except StagingError:
                    pass  # it is forgotten, or the file has gone

        async with trio.open_nursery() as nursery:
            for _ in range(min(_STREAMS, len(left))):
                nursery.start_soon(stream)
