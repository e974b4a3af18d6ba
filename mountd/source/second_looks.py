"""Second looks at bytes that were read before the tick of their file's ctime was over.

Such bytes may be of a state that was written over since, with the same size and times (see `source.clock`). They are
served, since nobody can know better yet, but what is staged of their version is not committed, not given to other nodes
and so not passed through to the kernel. Once the tick is over they are read again, and compared:

    the same      they were of the last state: what was staged is committed
    others        two states had one version. The version stays that of the first, which open handles and their pages
                  have; its file gets another identity, good for this daemon's life, and with it another node. Later
                  daemons read the last state under the version's own name, of which nothing was committed.

A second look waits for a while longer than it must: newer stamps that are seen meanwhile may prove that the tick was
over when the bytes were read, and then there is nothing to read again. Files that nobody writes to are nearly always
older than their directory's ctime, which is seen before them, so they are never doubted.

Bounded: of a version with too many doubts, or where all together are too many, all counts as others. Event loop only,
but for `Rewritten`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from hfs.mountd.core.attributes import Attributes, Version, passing_id
from hfs.mountd.core.errors import HfsError, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.policies.geometry import Extent

_MOST_UNCERTAIN = 65_536
"""Reads in doubt: 10 MB, and more than a source answers in two seconds."""

_PATIENCE = 4
"""So many ticks a second look waits for proof, unless the time-to-live is over before."""

_RETRY_S = (1.0, 5.0, 15.0)
"""After a second look that the source did not answer. After the last the bytes are given up: somebody may wait."""

_MAX_REWRITTEN = 65_536


_COARSE_NS = 2_000_000_000
_FINE_NS = 20_000_000
_SECOND_NS = 1_000_000_000

_FOR_EVER_NS = 1 << 62

_MAX_FUTURE = 4096
"""Stamps from our future that are remembered. One that is forgotten counts as seen for the first time again."""


def tick_ns(ctime_ns: int) -> int:
    """The clock that stamps a file system's files, as far as it is known, and whether a time stamp's tick is over.

    A file that is written again within one tick of its clock keeps its ctime: two states, one version. So what was read
    before the tick of its ctime was over may be of the first of them, which git calls racily clean. What was read later
    is of the last one, since every later change has a later ctime.

    By the source's own clock: ours may be off by hours. Nobody may write to the source to learn its time, but every
    ctime that is seen says that its clock had come so far by then, and it goes on at the rate of ours. Only ctime
    counts: atime and mtime can be set to anything. A stamp from our future proves nothing to others, since one file
    that was written when a clock was wrong would do away with all caution; it counts for the files that have the same
    one. On local file systems the clock is the kernel's, which is ours; what cannot change while it is mounted has no
    ticks.

    The tick is two seconds, since some parallel and older file systems keep whole seconds, or even ones, and nodes that
    stamp files themselves are apart a little; it is 20 ms for a ctime that has a part of a second: two ticks of the
    slowest kernels. Any thread: what one overwrites of another's is an estimate on the careful side.

    How long a file may be changed without another ctime, at most, once it has this one.
    """
    return _FINE_NS if ctime_ns % _SECOND_NS else _COARSE_NS


class Settled(NamedTuple):
    """ctimes up to these are of the past: a file that is changed again gets another one."""

    coarse_ns: int
    """Of whole seconds."""
    fine_ns: int
    """Those that have a part of a second."""

    def has(self, ctime_ns: int) -> bool:
        """Whether this one is."""
        return ctime_ns <= (self.fine_ns if ctime_ns % _SECOND_NS else self.coarse_ns)


class SourceClock:
    """`is_ours`: the file system is stamped by this machine's kernel. `stands`: nothing on it ever changes.

    Times `at_ns` are those of time.monotonic_ns.
    """

    def __init__(
        self, *, is_ours: bool = False, stands: bool = False, our_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.listens = not (is_ours or stands)
        """`saw` is of use."""
        self._is_ours = is_ours
        self._stands = stands
        self._our_ns = our_ns
        self._ahead_ns: float = float("-inf")
        """By so much it is ahead of time.monotonic_ns at least."""
        self._future: OrderedDict[int, int] = OrderedDict()
        """ctime from our future -> when it was seen first."""

    def saw(self, ctime_ns: int, at_ns: int) -> None:
        """A file, or a directory, had this ctime at `at_ns`, or before."""
        if not self.listens or ctime_ns - at_ns <= self._ahead_ns:
            return
        if ctime_ns <= self._our_ns():
            self._ahead_ns = ctime_ns - at_ns
        else:
            self._note(ctime_ns, at_ns)

    def is_over(self, ctime_ns: int, at_ns: int) -> bool:
        """Whether the tick of `ctime_ns` was over at `at_ns`, for all that is known now."""
        if self._stands:
            return True
        over_ns = ctime_ns + tick_ns(ctime_ns)
        ahead_ns = self._our_ns() - time.monotonic_ns() if self._is_ours else self._ahead_ns
        if at_ns + ahead_ns >= over_ns:
            return True
        if ctime_ns <= self._our_ns():
            return False
        return at_ns - self._note(ctime_ns, at_ns) >= tick_ns(ctime_ns)

    def settled(self) -> Settled:
        """The newest stamps whose tick is over now, for all that is known; some are that are younger."""
        if self._stands:
            return Settled(_FOR_EVER_NS, _FOR_EVER_NS)
        ahead_ns = self._our_ns() - time.monotonic_ns() if self._is_ours else self._ahead_ns
        if ahead_ns == float("-inf"):
            return Settled(0, 0)
        now_ns = min(int(time.monotonic_ns() + ahead_ns), self._our_ns())
        return Settled(now_ns - _COARSE_NS, now_ns - _FINE_NS)

    def _note(self, ctime_ns: int, at_ns: int) -> int:
        """When a stamp from our future was seen first: at `at_ns`, or before."""
        first_ns = self._future.setdefault(ctime_ns, at_ns)
        if len(self._future) > _MAX_FUTURE:
            self._future.popitem(last=False)
        return first_ns


class Seen(NamedTuple):
    """One read of a file."""

    directory: bytes
    name: bytes
    extent: Extent
    digest: int
    """xxh3_64 of its bytes."""
    at_ns: int
    """When it began, by time.monotonic_ns."""


class Rereader(Protocol):
    """The source, as a second look needs it."""

    def is_over(self, version: Version, at_ns: int) -> bool:
        """Whether the tick of its ctime was over at `at_ns`, for all that is known now."""

    async def digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
        """xxh3_64 of the bytes as they are now. Raises HfsError."""


class SecondLookListener(Protocol):
    """What acts on the outcome of second looks."""

    def uncertain(self, version: Version) -> None:
        """Bytes of this version are in doubt."""

    def confirmed(self, version: Version) -> None:
        """The bytes of this version are right."""

    def refuted(self, version: Version) -> None:
        """They may be of two states: nothing of it is to be served to whoever has not got it open."""


class Rewritten:
    """Versions that were two states, and what those of the last state are called now. Any thread."""

    def __init__(self) -> None:
        self._ids: OrderedDict[Version, str] = OrderedDict()

    def __contains__(self, version: Version) -> bool:
        return version in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, version: Version) -> None:
        """From now on a file that looks like `version` is another one, on a file system of its own, as it were."""
        self._ids[version] = passing_id()
        if len(self._ids) > _MAX_REWRITTEN:
            self._ids.popitem(last=False)

    def name(self, version: Version) -> str:
        """The identity that a file which looks like `version` has."""
        return self._ids.get(version, version.source_id)

    def named(self, attributes: Attributes, source_id: str) -> Attributes:
        """`attributes` as just asked for, on the file system that their file has by now. `source_id`: of the root's."""
        if not self._ids or not attributes.is_file:
            return attributes
        own_id = self._ids.get(attributes.version(source_id))
        return attributes if own_id is None else attributes._replace(file_system=own_id)


class SecondLooks:
    """`ttl_s`: a change is to be seen after it, and one tick."""

    def __init__(self, metrics: Metrics, *, ttl_s: float, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._clock_ns = clock_ns
        self.rewritten = Rewritten()
        self._seen: OrderedDict[Version, list[Seen]] = OrderedDict()
        self._due_ns: dict[Version, int] = {}
        self._tries: dict[Version, int] = {}
        self._listener: SecondLookListener | None = None
        self._count = 0
        self._overflown: set[Version] = set()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._seen)

    def holds(self, version: Version) -> bool:
        """Whether bytes of `version` are in doubt."""
        return version in self._seen

    def refutes(self, version: Version) -> bool:
        """Whether bytes of `version` turned out to be of two states: none of it is to be kept."""
        return version in self.rewritten

    def hurry(self, version: Version) -> None:
        """Somebody waits until it is known: look as soon as the tick is over, without patience."""
        mine = self._seen.get(version)
        if mine and version not in self._tries:
            soonest_ns = mine[-1].at_ns + tick_ns(version.ctime_ns)
            if soonest_ns < self._due_ns[version]:
                self._due_ns[version] = soonest_ns
                self._tell()

    def add(self, version: Version, seen: Seen) -> None:
        """Bytes that were read before the tick of their ctime was over."""
        self._metrics.add("racy_reads")
        mine = self._seen.get(version)
        if mine is None:
            mine = self._seen[version] = []
            if self._listener is not None:
                self._listener.uncertain(version)
        if self._count < _MOST_UNCERTAIN:
            mine.append(seen)
            self._count += 1
        else:
            self._overflown.add(version)
        tick = tick_ns(version.ctime_ns)
        self._due_ns[version] = seen.at_ns + tick + min(int(min(self._ttl_s, 1e6) * 1e9), _PATIENCE * tick)
        self._tell()

    async def run(self, source: Rereader, listener: SecondLookListener) -> None:
        """Take second looks, one after the other. Never returns."""
        self._listener = listener
        for version in self._seen:
            listener.uncertain(version)
        while True:
            changed = self._changed
            due = min(self._due_ns, key=self._due_ns.__getitem__, default=None)
            if due is None:
                await changed.wait()
                continue
            wait_s = (self._due_ns[due] - self._clock_ns()) / 1e9
            if wait_s > 0:
                with trio.move_on_after(wait_s):
                    await changed.wait()
                continue
            await self._look(due, source, listener)

    async def _look(self, version: Version, source: Rereader, listener: SecondLookListener) -> None:
        right, same = True, True
        try:
            for seen in list(self._seen[version]):
                if not source.is_over(version, self._clock_ns()):
                    self._due_ns[version] = self._clock_ns() + tick_ns(version.ctime_ns)
                    return  # nothing was seen of its clock for long: it goes on at the rate of ours
                if not source.is_over(version, seen.at_ns):
                    self._metrics.add("racy_reads_again")
                    digest = await source.digest(seen.directory, seen.name, version, seen.extent)
                    same = digest == seen.digest
                    if not same:
                        break  # whatever becomes of the others
                self._seen[version].remove(seen)
                self._count -= 1
        except VersionChanged:
            right = False  # there is nothing left to compare with, and nothing of it to be served to anybody
        except HfsError:
            tries = self._tries[version] = self._tries.get(version, 0) + 1
            if tries <= len(_RETRY_S):
                self._due_ns[version] = self._clock_ns() + int(_RETRY_S[tries - 1] * 1e9)
                return
            right = False
        if not same:
            self._metrics.add("racy_rewrites")
        if right and same and self._seen[version]:
            return  # more were added meanwhile; their due is set
        right = right and same and version not in self._overflown
        self._forget(version)
        if right:
            listener.confirmed(version)
        else:
            self.rewritten.add(version)
            listener.refuted(version)
        self._tell()

    def _forget(self, version: Version) -> None:
        self._count -= len(self._seen.pop(version))
        self._due_ns.pop(version, None)
        self._tries.pop(version, None)
        self._overflown.discard(version)

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
