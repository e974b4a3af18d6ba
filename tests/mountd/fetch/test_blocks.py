"""Blocks: bounded, and what is read again and again is not pushed out by what is read once."""

from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.attributes import Version
from hfs.mountd.fetch.chunks.held import Blocks
from hfs.policies.geometry import Extent
from hfs.policies.prefetch.miss_policy import BLOCK_BYTES
from tests.support.pattern import pattern

VERSION = Version("f" * 16, 5, 1 << 30, 1, 1)
OTHER = Version("f" * 16, 5, 1 << 30, 2, 2)


def read(blocks: Blocks, number: int, count: int = 1, end: int | None = None) -> None:
    """As the fetcher: blocks from `number` on, read alone."""
    extent = Extent(number * BLOCK_BYTES, end or (number + count) * BLOCK_BYTES)
    blocks.keep(VERSION, extent, memoryview(pattern(5, extent.start, extent.size)))


def page(number: int, at: int = 0) -> Extent:
    start = number * BLOCK_BYTES + at
    return Extent(start, start + 4096)


def test_a_hot_block_survives_any_number_of_blocks_that_are_read_once() -> None:
    blocks = Blocks(8 * BLOCK_BYTES)
    read(blocks, 7)
    for number in range(100, 110):
        read(blocks, number)
    assert blocks.get(VERSION, page(7)) is None
    read(blocks, 7)  # a second time: the kernel had let it go
    for number in range(200, 1000):
        read(blocks, number)
    assert blocks.get(VERSION, page(7)) is not None
    assert len(blocks) == 5
    blocks.clear()
    assert blocks.get(VERSION, page(7)) is None


def test_of_hot_blocks_the_one_that_was_asked_for_last_stays() -> None:
    blocks = Blocks(4 * BLOCK_BYTES)
    for number in (1, 2, 1, 2):
        read(blocks, number)
    assert blocks.get(VERSION, page(1)) is not None
    read(blocks, 3)
    read(blocks, 3)
    assert [blocks.get(VERSION, page(number)) is not None for number in (1, 2, 3)] == [True, False, True]


def test_what_is_not_all_there_is_not_answered() -> None:
    blocks = Blocks(8 * BLOCK_BYTES)
    read(blocks, 1, end=BLOCK_BYTES + 5000)  # the end of the file
    assert blocks.get(VERSION, Extent(BLOCK_BYTES + 4096, BLOCK_BYTES + 5000)) is not None
    assert blocks.get(VERSION, page(1, 4096)) is None
    read(blocks, 2)
    assert blocks.get(VERSION, page(2, BLOCK_BYTES - 2048)) is None  # over the edge
    assert blocks.get(OTHER, page(2)) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 2)), max_size=200))
def test_any_history_gives_the_bytes_of_the_file_within_the_limit(steps: list[tuple[bool, int, int]]) -> None:
    blocks = Blocks(6 * BLOCK_BYTES)
    for is_read, number, count in steps:
        if is_read:
            read(blocks, number, count)
        else:
            extent = page(number, 4096)
            found = blocks.get(VERSION, extent)
            assert found is None or found == pattern(5, extent.start, extent.size)
        assert len(blocks) <= 6
