"""What of a sparse file is written: all its data, in whole blocks, and no more of the zeros than pays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes
from hfs.policies.cache.holes import data_of, hole_blocks, is_sparse, may_have_holes, pieces_of, seek
from hfs.policies.geometry import Extent


@given(
    blocks=st.lists(st.sampled_from(["zeros", "data", "last byte", "many zeros"]), max_size=12),
    rest=st.binary(max_size=9) | st.just(bytes(9)),
)
def test_what_is_written_between_zeros_is_the_chunk(blocks: list[str], rest: bytes) -> None:
    kinds = {"zeros": bytes(4096), "data": b"d" * 4096, "last byte": bytes(4095) + b"e", "many zeros": bytes(20 * 4096)}
    data = b"".join(kinds[block] for block in blocks) + rest
    pieces = data_of(memoryview(data))
    if pieces is None:
        assert "zeros" not in blocks
        assert "many zeros" not in blocks
        return
    written = bytearray(len(data))
    for piece in pieces:
        assert piece.start % BLOCK_BYTES == 0
        assert piece.end % BLOCK_BYTES == 0 or piece.end == len(data)
        written[piece.start : piece.end] = data[piece.start : piece.end]
    assert written == data
    assert all(after.start - before.end >= 16 * 4096 for before, after in itertools.pairwise(pieces))
    taken_bytes = blocks_bytes(len(data)) - hole_blocks(len(data), pieces) * 4096
    assert taken_bytes == sum(blocks_bytes(piece.size) for piece in pieces)
    # What is expected of it by where the source has data is never less.
    is_data = np.frombuffer(data.ljust(blocks_bytes(len(data)), b"\0"), np.uint8).reshape(-1, 4096).any(axis=1)
    found = pieces_of([Extent(at * 4096, (at + 1) * 4096) for at in np.flatnonzero(is_data).tolist()])
    rest_bytes = 4096 if rest else 0  # short of a block it is not looked at
    assert taken_bytes <= sum(piece.size for piece in found) + 16 * rest_bytes


@pytest.mark.parametrize(
    ("sectors", "expected"), [(0, True), (2047, True), (2048, False), (4096, False), (9999, False)]
)
def test_a_file_is_sparse_that_lacks_more_than_a_chunk(sectors: int, expected: bool) -> None:
    assert is_sparse(2 << 20, sectors, 1 << 20) is expected


@pytest.mark.parametrize(("sectors", "expected"), [(0, True), (8, True), (9, False), (16, False), (99, False)])
def test_a_file_may_have_holes_that_lacks_a_block(sectors: int, expected: bool) -> None:
    assert may_have_holes(8192, sectors) is expected


@given(kinds=st.lists(st.booleans(), max_size=8), offset=st.integers(-2, 10))
def test_a_seek_finds_the_next_byte_of_its_kind(kinds: list[bool], offset: int) -> None:
    runs = [(is_data, len(list(run))) for is_data, run in itertools.groupby(kinds)]
    ends = list(itertools.accumulate(length for _, length in runs))
    data = [Extent(end - length, end) for end, (is_data, length) in zip(ends, runs, strict=True) if is_data]
    inside = range(offset, len(kinds)) if 0 <= offset < len(kinds) else ()
    next_data = next((at for at in inside if kinds[at]), None)
    next_hole = next((at for at in inside if not kinds[at]), len(kinds)) if inside else None
    assert seek(data, len(kinds), offset, hole=False) == next_data
    assert seek(data, len(kinds), offset, hole=True) == next_hole
