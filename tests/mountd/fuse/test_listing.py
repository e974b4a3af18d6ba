"""Listings: records of the kernel, positions, readers that follow a listing while it grows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.background import Slices
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source import listing as source_listing
from hfs.mountd.source.listing import DirectoryReader, Lister, Listing
from tests.support.fake_source import records


def block(*names: bytes) -> bytes:
    return records((name, 100 + number, 8) for number, name in enumerate(names))


def grown(*blocks: bytes) -> Listing:
    listing = Listing()
    for part in blocks:
        listing.append(part)
    return listing


def test_an_error_is_raised_and_the_reader_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reader = DirectoryReader(os.open(tmp_path / "file", os.O_RDONLY))
    for _ in range(2):
        with pytest.raises(NotADirectoryError):
            reader.read()
    assert not reader.ended


@given(st.lists(st.lists(st.binary(min_size=1, max_size=12).filter(lambda n: not set(n) & {0, 47}), max_size=9)))
def test_every_name_is_found_and_no_other(parts: list[list[bytes]]) -> None:
    seen: set[bytes] = {b".", b".."}
    unique = [[name for name in part if not (name in seen or seen.add(name))] for part in parts]  # type: ignore[func-returns-value]  # add gives None: not seen
    listing = grown(*(records((name, 0x6161616161616161, 8) for name in part) for part in unique))
    for position, name in enumerate(listing):
        assert listing.find(name) == position
        for other in (name + b"a", name[:-1], b"a" + name, name[1:]):
            if other and other not in seen:
                assert listing.find(other) is None


# -- a directory of very many names: nothing is done with all of them in one step --------------------------------------


MANY = 20_000
AT_MOST = 5000
"""Names in one step: 64 KiB of records, and what is done for a reader besides."""


class Steps(Slices):
    """How much each step has done, as `probe` says it."""

    def __init__(self) -> None:
        super().__init__()
        self.probe: Callable[[], int] = lambda: 0
        self.each: list[int] = []

    async def carry_out(self, steps: Iterable[object]) -> None:
        before = self.probe()
        for _ in steps:
            self.each.append(self.probe() - before)
            before = self.probe()
            await trio.lowlevel.checkpoint()


def large_blocks() -> list[bytes]:
    names = [b"%06d" % number for number in range(MANY)]
    return [block(*names[start : start + 8000]) for start in range(0, MANY, 8000)]


async def large() -> tuple[Listing, Steps]:
    steps = Steps()
    listing = Listing(steps)
    steps.probe = lambda: len(listing)
    for part in large_blocks():
        listing.append(part)
        await listing.take_apart()
    listing.finish()
    return listing, steps


async def test_records_are_taken_apart_in_steps() -> None:
    listing, steps = await large()
    assert (len(listing), sum(steps.each)) == (MANY, MANY)
    assert max(steps.each) <= AT_MOST
    assert list(listing) == [b"%06d" % number for number in range(MANY)]


async def test_records_that_nobody_waits_for_are_taken_apart_as_they_come() -> None:
    """Whoever has had a directory listed may be killed meanwhile."""

    class Reader:
        def __init__(self) -> None:
            self.left = large_blocks()

        @property
        def ended(self) -> bool:
            return not self.left

        def read(self) -> bytes:
            assert len(listing._records) <= 1
            return self.left.pop(0)

    class Threads:
        async def call(
            self, _pool: str, _what: str, function: Callable[..., object], *_: object, **__: object
        ) -> object:
            if function == lister._open:
                return (reader := Reader()), reader.read()
            return function()

    nobody: Any = None
    threads: Any = Threads()
    lister = Lister(nobody, threads, Metrics())
    steps = Steps()
    listing = Listing(steps)
    steps.probe = lambda: len(listing)
    await lister.fill(b"d", 2, listing)
    assert (len(listing), sum(steps.each)) == (MANY, MANY), "nothing is left for the end"
    assert max(steps.each) <= AT_MOST


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names were hashed at a time."""
    counts: list[int] = []
    update = source_listing._update

    def counted(hasher: Any, names: Any) -> None:
        names = list(names)
        counts.append(len(names))
        update(hasher, names)

    monkeypatch.setattr(source_listing, "_update", counted)
    return counts


async def test_who_goes_on_far_behind_the_first_name_has_those_before_hashed_in_steps(hashed: list[int]) -> None:
    listing, steps = await large()
    steps.probe, steps.each = lambda: sum(hashed), []
    await listing.hash_before(MANY - 10)
    assert sum(steps.each) > MANY - 2 * AT_MOST
    assert max(steps.each) <= AT_MOST
    in_steps = sum(hashed)
    end, digest = listing.marked(MANY - 5)
    assert sum(hashed) - in_steps <= AT_MOST, "what is left for the reply"
    steps.each = []
    await listing.hash_before(MANY - 10)
    assert steps.each == [], "once"
    assert await listing.digest(end) == digest
    assert max(steps.each) <= AT_MOST
    assert sum(steps.each) == end


async def test_a_search_ends_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not found is not foreseen: nothing else."""
    listing = grown(block(*(b"%03dx" % number for number in range(500)), b"x"))
    assert listing.find(b"499x") == 499
    assert listing.find(b"x") is None, "as many look like it as there are names"
    monkeypatch.setattr(source_listing, "_SEARCHED_BYTES", 1000)
    assert listing.find(b"499x") is None
