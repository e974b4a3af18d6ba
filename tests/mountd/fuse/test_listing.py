"""Listings: records of the kernel, positions, readers that follow a listing while it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.base.errors import SourceError
from hfs.mountd.source.listing import DirectoryReader, Listing
from tests.support.fake_source import records


def block(*names: bytes) -> bytes:
    return records((name, 100 + number, 8) for number, name in enumerate(names))


def grown(*blocks: bytes) -> Listing:
    listing = Listing()
    for part in blocks:
        listing.append(part)
    return listing


@pytest.mark.slow
def test_a_directory_is_read_as_the_kernel_gives_it(tmp_path: Path) -> None:
    names = [b"n" * 255, b"\xff\xfe\n", b"a", *(b"%05d" % number for number in range(20_000)), b".hidden", b"..."]
    for name in names:
        (tmp_path / os.fsdecode(name)).touch()
    (tmp_path / "00001").unlink()
    (tmp_path / "00001").mkdir()
    reader = DirectoryReader(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    listing, blocks = Listing(), 0
    while not reader.ended:
        listing.append(reader.read())
        blocks += 1
    assert blocks > 1
    assert sorted(listing) == sorted(names)
    with os.scandir(tmp_path) as entries:
        expected = {os.fsencode(entry.name): (entry.inode(), 4 if entry.is_dir() else 8) for entry in entries}
    for position, name in enumerate(listing):
        part, index = listing.block(position)
        at = part.starts[index]
        assert (int.from_bytes(part.records[at : at + 8], "little"), part.records[at + 18]) == expected[name]
        assert (listing[position], part.name(index)) == (name, name)


def test_an_empty_directory_ends_at_once(tmp_path: Path) -> None:
    reader = DirectoryReader(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    assert list(grown(reader.read())) == []
    assert reader.ended


def test_an_error_is_raised_and_the_reader_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reader = DirectoryReader(os.open(tmp_path / "file", os.O_RDONLY))
    for _ in range(2):
        with pytest.raises(NotADirectoryError):
            reader.read()
    assert not reader.ended


def test_positions_go_on_from_block_to_block() -> None:
    listing = grown(block(b"a", b"b"), block(), block(b"c"), block(b"d", b"e"))
    assert [listing[position] for position in range(len(listing))] == list(listing) == [b"a", b"b", b"c", b"d", b"e"]
    assert listing.names(1, 4) == [b"b", b"c", b"d"]
    assert listing.names(4, 9) == [b"e"]
    assert listing.names(7, 9) == []
    part, index = listing.block(3)
    assert (part.name(index), index) == (b"d", 0)


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


async def test_readers_follow_a_listing_that_grows() -> None:
    listing, seen = Listing(), []

    async def follow() -> None:
        position = 0
        while await listing.reaches(position):
            seen.append((trio.current_time(), listing[position]))
            position += 1

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(listing.whole)
        for name in (b"a", b"b"):
            await trio.sleep(1)
            listing.append(block(name))
        await trio.sleep(1)
        listing.finish()
    assert [(at - start, name) for at, name in seen] == [(1, b"a"), (2, b"b")]
    assert trio.current_time() - start == 3
    assert not await listing.reaches(2**62)


async def test_an_error_comes_behind_the_last_name() -> None:
    listing = grown(block(b"a"))
    listing.finish(SourceError(errno.EIO, "listing"))
    assert await listing.reaches(0)
    for _ in range(2):
        with pytest.raises(SourceError):
            await listing.reaches(1)
        with pytest.raises(SourceError):
            await listing.whole()
