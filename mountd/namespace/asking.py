"""Asking the source for attributes of names: many at a time, none twice at a time, some before they are wanted.

A flight is one call of the source, for one name or for several in one thread. It is registered before the first
checkpoint and landed in a `finally`; whoever wants one of its names meanwhile waits for it. What it brings is entered
in the tree and is found there afterwards. Event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import trio

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import HfsError, SourceError, SourceTimeout, shown_path, ungrouped
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.answers import Silence
from hfs.mountd.namespace.nodes.names import Names
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.slots import Slots
from hfs.mountd.namespace.tree import Tree
from hfs.mountd.source import MetadataReader

_AHEAD_THREADS = 32
"""Threads that ask for attributes ahead: half of those for metadata, the others are for who waits."""


class Flight:
    """Names of one directory that are being asked for together."""

    __slots__ = ("_landed", "as_slots", "directory", "failed", "names", "void")

    def __init__(self, directory: Node, names: Sequence[bytes], *, as_slots: bool = False) -> None:
        """`as_slots`: whoever wants them needs no nodes, as far as is known."""
        self.directory = directory
        self.names = names
        self.as_slots = as_slots
        self.failed = True
        """It brought no answer: who has waited asks for itself, and hears why."""
        self.void = False
        """What it brings may be older than what somebody knows."""
        self._landed = trio.Event()

    def land(self) -> None:
        """Let go who waits."""
        self._landed.set()

    async def wait(self, limit_s: float | None = None) -> None:
        """Until it has landed. Raises SourceTimeout past `limit_s`."""
        with trio.move_on_after(math.inf if limit_s is None else limit_s):
            await self._landed.wait()
            return
        raise SourceTimeout(f"stat in {shown_path(self.directory.path)}: no answer within the time limit")


class Asking:
    """The flights under way."""

    def __init__(
        self,
        metadata: MetadataReader,
        metrics: Metrics,
        nursery: trio.Nursery,
        tree: Tree,
        names: Names,
        slots: Slots,
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
        self._slots = slots
        self._silence = silence
        self._shared = shared
        self._late: set[Flight] = set()
        """Void, and still under way."""
        self.voided_s = -math.inf
        """What was asked for before may be older than a change that somebody knows of."""
        self._flights: dict[Node, dict[bytes, Flight]] = {}
        """By directory and name."""
        self._ahead_limiter = trio.CapacityLimiter(_AHEAD_THREADS)

    def flight(self, directory: Node, name: bytes) -> Flight | None:
        """The flight that will bring `name`."""
        return self._flights.get(directory, {}).get(name)

    def is_coming(self, directory: Node, name: bytes) -> bool:
        """Whether the source is being asked for `name`."""
        return name in self._flights.get(directory, ())

    def coming(self, directory: Node, names: Sequence[bytes]) -> dict[bytes, Flight]:
        """The flights that will bring some of `names`, by these."""
        here = self._flights.get(directory)
        return {name: here[name] for name in names if name in here} if here else {}

    def nodes_coming(self, directory: Node) -> list[bytes]:
        """Names of this directory that the source is being asked for, and that will have nodes."""
        return [name for name, flight in self._flights.get(directory, {}).items() if not flight.as_slots]

    async def one(self, directory: Node, name: bytes, *, limit_s: float | None) -> Attributes:
        """The attributes of `name`, which the caller passes on. Raises SourceError, SourceTimeout."""
        while True:
            flight = self._take_off(directory, [name])
            try:
                attributes = await self._metadata.stat(directory.path, name, limit_s=limit_s)
                if not flight.void:
                    flight.failed = False
                    return attributes
            except SourceError as error:
                if isinstance(error, SourceTimeout) or not flight.void:
                    raise  # else it may have come into being since
            finally:
                self._land(flight)

    async def many(self, directory: Node, names: Sequence[bytes], *, as_slots: bool) -> None:
        """Ask for `names`, in many threads. Raises SourceError."""
        if not names:
            return
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for part in _slices(names, self._metadata.stats_at_once):
                    nursery.start_soon(self._fly, self._take_off(directory, part, as_slots=as_slots))

    def ahead_nowait(self, directory: Node, names: Sequence[bytes], told: AbstractSet[bytes] = frozenset()) -> None:
        """Begin to ask for those of `names` that are neither known nor under way: they will be wanted soon.

        `told`: of these names we wish to see the look-ups.
        """
        if not self._shared or self._silence.is_on():
            return
        unknown = self._names.unknown_nowait(directory, names)
        coming = self.coming(directory, unknown)
        wanted = [name for name in unknown if name not in coming] if coming else unknown
        self._metrics.add("stats_ahead", len(wanted))
        # The first window is small, and somebody waits for the end of it: spread over the threads.
        size = max(self._metadata.stats_worth_a_thread, -(-len(wanted) // _AHEAD_THREADS))
        size = min(size, self._metadata.stats_at_once)
        for part in _slices(wanted, size):
            flight = self._take_off(directory, part, as_slots=True)
            start_guarded(self._nursery, "stat-ahead", self._fly_ahead, flight, told)

    async def _fly_ahead(self, flight: Flight, told: AbstractSet[bytes]) -> None:
        try:
            async with self._ahead_limiter:
                await self._fly(flight, told)
        except HfsError:
            pass  # who wants one of these names asks for it, and hears why
        finally:
            self._land(flight)

    async def _fly(self, flight: Flight, told: AbstractSet[bytes] = frozenset()) -> None:
        directory = flight.directory
        try:
            if flight.as_slots and self._slots.may_be_in(directory):
                found = await self._metadata.look(directory.path, flight.names)
                answers = self._slots.put(directory, found, told=told) if not flight.void else []
            else:
                answers = list(zip(flight.names, await self._metadata.stats(directory.path, flight.names), strict=True))
            if flight.void:
                return
            others = self._claim(directory, [name for name, _ in answers if name in told])
            for name, attributes in answers:
                if name in others:
                    continue
                if attributes is None:
                    self._tree.absent(directory, name)
                else:
                    self._tree.seen(directory, name, attributes)
            flight.failed = False
        finally:
            self._land(flight)

    def void(self) -> None:
        """What is on its way is entered nowhere: it may be older than a change that somebody knows of. Who waits for it
        asks again."""
        self.voided_s = trio.current_time()
        flights, self._flights = self._flights, {}
        for here in flights.values():
            for flight in here.values():
                flight.void = True
                self._late.add(flight)

    async def wait_answered(self, limit_s: float) -> bool:
        """Until what was on its way when it became void has come. False: some of it hangs."""
        with trio.move_on_after(limit_s):
            for flight in list(self._late):
                await flight.wait()
        return not self._late

    def _take_off(self, directory: Node, names: Sequence[bytes], *, as_slots: bool = False) -> Flight:
        flight = Flight(directory, names, as_slots=as_slots)
        if not as_slots:
            self._claim(directory, names)
        if self._shared:
            self._flights.setdefault(directory, {}).update(dict.fromkeys(names, flight))
        return flight

    def _claim(self, directory: Node, names: Sequence[bytes]) -> list[bytes]:
        """Who looks one of these up will have it read, and nobody else; but those that are given, which others have."""
        return self._slots.try_reserve(directory, names) if directory.delegated and names else []

    def _land(self, flight: Flight) -> None:
        self._late.discard(flight)
        here = self._flights.get(flight.directory, {})
        for name in flight.names:
            if here.get(name) is flight:
                del here[name]
        if not here:
            self._flights.pop(flight.directory, None)
        flight.land()


def _slices(names: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [names[i : i + size] for i in range(0, len(names), size)]
