"""Second looks at what was read within a tick, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import SourceTimeout, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source import second_looks
from hfs.mountd.source.second_looks import SecondLooks, Seen
from hfs.policies.geometry import Extent

S = 10**9
COARSE = Version("f" * 16, 7, 100, 5 * S, 5 * S)


def now_ns() -> int:
    return int(trio.current_time() * 1e9)


class Source:
    """What it says now, by extent; `over_from_s` is when the tick ends, `proven` that it had ended long before."""

    def __init__(self) -> None:
        self.digests: dict[Extent, int] = {}
        self.over_from_s = 0.0
        self.proven = False
        self.errors: list[Exception] = []
        self.errors_at: dict[Extent, list[Exception]] = {}
        self.asked: list[tuple[float, Extent]] = []
        self.takes_s = 0.0

    def is_over(self, version: Version, at_ns: int) -> bool:
        return self.proven or at_ns >= self.over_from_s * 1e9

    async def digest(self, directory: bytes, name: bytes, version: Version, extent: Extent) -> int:
        self.asked.append((trio.current_time() - self.began_s, extent))
        await trio.sleep(self.takes_s)
        if errors := self.errors or self.errors_at.get(extent):
            raise errors.pop(0)
        return self.digests[extent]

    began_s = 0.0


class SecondLookListener:
    def __init__(self) -> None:
        self.said: list[tuple[str, Version]] = []

    def uncertain(self, version: Version) -> None:
        """Its bytes may be wrong: there is nothing to say yet."""

    def confirmed(self, version: Version) -> None:
        self.said.append(("confirmed", version))

    def refuted(self, version: Version) -> None:
        self.said.append(("refuted", version))


class Parts:
    def __init__(self, ttl_s: float) -> None:
        self.metrics = Metrics()
        self.second_looks = SecondLooks(self.metrics, ttl_s=ttl_s, clock_ns=now_ns)
        self.source = Source()
        self.source.began_s = trio.current_time()
        self.source.over_from_s = self.source.began_s + 2
        self.listener = SecondLookListener()

    async def settled(self) -> None:
        """Nothing is in doubt."""
        while len(self.second_looks):
            await trio.sleep(0.125)

    def read(self, start: int, digest: int, version: Version = COARSE) -> None:
        extent = Extent(start, start + 10)
        self.source.digests[extent] = digest
        self.second_looks.add(version, Seen(b"d", b"f", extent, digest, now_ns()))

    @property
    def said(self) -> list[str]:
        return [word for word, _ in self.listener.said]


@asynccontextmanager
async def running(ttl_s: float = 60.0) -> AsyncIterator[Parts]:
    parts = Parts(ttl_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.second_looks.run, parts.source, parts.listener)
        await trio.testing.wait_all_tasks_blocked()
        yield parts
        nursery.cancel_scope.cancel()


async def test_for_who_waits_it_is_looked_at_after_one_tick() -> None:
    async with running() as parts:
        parts.read(0, 1)
        parts.second_looks.hurry(COARSE)
        parts.second_looks.hurry(COARSE._replace(inode=8))
        await parts.settled()
        assert [at_s for at_s, _ in parts.source.asked] == [2.0]


async def test_what_has_gone_meanwhile_is_not_believed() -> None:
    async with running() as parts:
        parts.read(0, 1)
        parts.source.errors = [VersionChanged("gone")]
        await parts.settled()
        assert parts.said == ["refuted"]
        assert parts.metrics["racy_rewrites"] == 0


async def test_what_was_found_wrong_stays_so_when_the_source_then_does_not_answer() -> None:
    """One read was of another state; that the next one cannot be compared at once does not make it right."""
    async with running() as parts:
        parts.read(0, 1)
        parts.read(20, 2)
        parts.source.digests[Extent(0, 10)] = 3
        parts.source.errors_at[Extent(20, 30)] = [SourceTimeout("read")]
        await parts.settled()
        assert parts.said == ["refuted"]
        assert parts.metrics["racy_rewrites"] == 1


@pytest.mark.parametrize(("times", "said"), [(3, "confirmed"), (4, "refuted")])
async def test_a_source_that_does_not_answer_is_asked_again_and_not_for_ever(times: int, said: str) -> None:
    """Who warms waits for it."""
    async with running(ttl_s=0) as parts:
        parts.read(0, 1)
        parts.source.errors = [SourceTimeout("read") for _ in range(times)]
        await parts.settled()
        assert parts.said == [said]
        assert [at_s for at_s, _ in parts.source.asked] == [2.0, 3.0, 8.0, 23.0]


async def test_a_tick_that_is_not_over_yet_is_waited_for() -> None:
    async with running(ttl_s=0) as parts:
        parts.source.over_from_s += 5
        parts.read(0, 1)
        await parts.settled()
        assert [at_s for at_s, _ in parts.source.asked] == [8.0]


async def test_what_is_read_during_a_second_look_has_its_own() -> None:
    async with running(ttl_s=0) as parts:
        parts.source.takes_s = 1.0
        parts.source.over_from_s += 100
        parts.read(0, 1)
        await trio.sleep(101.5)  # in the middle of the look
        parts.read(20, 2)
        await trio.sleep(1)
        assert parts.said == []
        await parts.settled()
        assert parts.said == ["confirmed"]


async def test_too_many_doubts_count_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_looks, "_MOST_UNCERTAIN", 2)
    async with running(ttl_s=0) as parts:
        for number in range(3):
            parts.read(10 * number, 1)
        await parts.settled()
        assert parts.said == ["refuted"]
