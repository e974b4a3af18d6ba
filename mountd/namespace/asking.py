"""Asking the source for attributes of names: many at a time, none twice at a time, some before they are wanted.

A flight is one call of the source, for one name or for several in one thread. It is registered before the first
checkpoint and landed in a `finally`; whoever wants one of its names meanwhile waits for it. What it brings is entered
in the tree and is found there afterwards. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from mountd.base.attributes import Attributes
from mountd.base.errors import HfsError, SourceError, SourceTimeout
from mountd.core.background import start_guarded
from mountd.core.metrics import Metrics
from mountd.namespace.nodes.names import Names
from mountd.namespace.nodes.node import Node
from mountd.namespace.silence import Silence
from mountd.namespace.tree import Tree
from mountd.source import MetadataReader

_AHEAD_THREADS = 32
"""Threads that ask for attributes ahead: half of those for metadata, the others are for who waits."""

_AHEAD_NAMES = 4
"""Names that each of these threads gets at least."""


class Flight:
    """Names of one directory that are being asked for together."""

    __slots__ = ("_landed", "directory", "failed", "names")

    def __init__(self, directory: Node, names: Sequence[bytes]) -> None:
        self.directory = directory
        self.names = names
        self.failed = True
        """It brought no answer: who has waited asks for itself, and hears why."""
        self._landed = trio.Event()

    def land(self) -> None:
        """Let go who waits."""
        self._landed.set()

    async def wait(self, limit_s: float | None = None) -> None:
        """Until it has landed. Raises SourceTimeout past `limit_s`."""
        with trio.move_on_after(math.inf if limit_s is None else limit_s):
            await self._landed.wait()
            return
        raise SourceTimeout(f"stat in {self.directory.path!r}: no answer within the time limit")


class Asking:
    """The flights under way."""

    def __init__(
        self,
        metadata: MetadataReader,
        metrics: Metrics,
        nursery: trio.Nursery,
        tree: Tree,
        names: Names,
        silence: Silence,
        *,
        shared: bool,
    ) -> None:
        """`shared`: one answer is good for all who wait; not so without a time-to-live."""
        self._metadata = metadata
        self._metrics = metrics
        self._nursery = nursery
        self._tree = tree
        self._names = names
        self._silence = silence
        self._shared = shared
        self._flights: dict[tuple[Node, bytes], Flight] = {}
        self._ahead_limiter = trio.CapacityLimiter(_AHEAD_THREADS)

    def flight(self, directory: Node, name: bytes) -> Flight | None:
        """The flight that will bring `name`."""
        return self._flights.get((directory, name))

    def is_coming(self, directory: Node, name: bytes) -> bool:
        """Whether the source is being asked for `name`."""
        return (directory, name) in self._flights

    async def one(self, directory: Node, name: bytes, *, limit_s: float | None) -> Attributes:
        """The attributes of `name`, which the caller passes on. Raises SourceError, SourceTimeout."""
        flight = self._take_off(directory, [name])
        try:
            attributes = await self._metadata.stat(directory.path, name, limit_s=limit_s)
            flight.failed = False
            return attributes
        finally:
            self._land(flight)

    async def many(self, directory: Node, names: Sequence[bytes]) -> None:
        """Ask for `names`, in many threads. Raises SourceError."""
        if not names:
            return
        try:
            async with trio.open_nursery() as nursery:
                for part in _slices(names, self._metadata.stats_at_once):
                    nursery.start_soon(self._fly, self._take_off(directory, part))
        except* SourceError as group:
            raise group.exceptions[0] from None

    def ahead_nowait(self, directory: Node, names: Sequence[bytes]) -> None:
        """Begin to ask for those of `names` that are neither known nor under way: they will be wanted soon."""
        if not self._shared or self._silence.is_on():
            return
        unknown = [name for name in names if self._names.known_nowait(directory, name) is None]
        wanted = [name for name in unknown if not self.is_coming(directory, name)]
        self._metrics.add("stats_ahead", len(wanted))
        # The first window is small, and somebody waits for the end of it: spread over the threads.
        size = min(self._metadata.stats_at_once, max(_AHEAD_NAMES, -(-len(wanted) // _AHEAD_THREADS)))
        for part in _slices(wanted, size):
            start_guarded(self._nursery, "stat-ahead", self._fly_ahead, self._take_off(directory, part))

    async def _fly_ahead(self, flight: Flight) -> None:
        try:
            async with self._ahead_limiter:
                await self._fly(flight)
        except HfsError:
            pass  # who wants one of these names asks for it, and hears why
        finally:
            self._land(flight)

    async def _fly(self, flight: Flight) -> None:
        directory = flight.directory
        try:
            answers = await self._metadata.stats(directory.path, flight.names)
            for name, attributes in zip(flight.names, answers, strict=True):
                if attributes is None:
                    self._tree.absent(directory, name)
                else:
                    self._tree.seen(directory, name, attributes)
            flight.failed = False
        finally:
            self._land(flight)

    def _take_off(self, directory: Node, names: Sequence[bytes]) -> Flight:
        flight = Flight(directory, names)
        if self._shared:
            for name in names:
                self._flights[directory, name] = flight
        return flight

    def _land(self, flight: Flight) -> None:
        for name in flight.names:
            if self._flights.get((flight.directory, name)) is flight:
                del self._flights[flight.directory, name]
        flight.land()


def _slices(names: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [names[i : i + size] for i in range(0, len(names), size)]
