"""policies/geometry: tables for the arithmetic, properties for its joints, a plain set as the model of ChunkSet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.geometry import ChunkSet, Extent, Piece, chunk_count, chunk_extent, chunk_range, clamp, split


@pytest.mark.parametrize(
    ("offset", "size", "file_size", "expected"),
    [
        (0, 10, 100, (0, 10)),
        (95, 10, 100, (95, 100)),
        (100, 10, 100, (100, 100)),
        (200, 10, 100, (100, 100)),
        (0, 0, 100, (0, 0)),
        (0, 10, 0, (0, 0)),
        (-5, 10, 100, (0, 5)),
    ],
)
def test_clamp(offset: int, size: int, file_size: int, expected: tuple[int, int]) -> None:
    assert clamp(offset, size, file_size) == Extent(*expected)


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (5_000_000_001, 625000001)]
)
def test_chunk_count(size: int, chunks: int) -> None:
    assert chunk_count(size, 8) == chunks


def test_chunk_extents_end_with_the_file() -> None:
    assert [chunk_extent(i, 20, 8) for i in range(3)] == [Extent(0, 8), Extent(8, 16), Extent(16, 20)]


@pytest.mark.parametrize(("index", "size"), [(-1, 20), (3, 20), (0, 0), (2, 16)])
def test_a_chunk_outside_the_file_is_an_error(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        chunk_extent(index, size, 8)


@pytest.mark.parametrize(
    ("start", "end", "chunks"),
    [(0, 8, [0]), (7, 9, [0, 1]), (8, 16, [1]), (8, 8, []), (9, 8, []), (0, 17, [0, 1, 2])],
)
def test_chunk_range(start: int, end: int, chunks: list[int]) -> None:
    assert list(chunk_range(Extent(start, end), 8)) == chunks


def test_split_by_example() -> None:
    assert split(Extent(6, 18), 8) == [Piece(0, 6, 8), Piece(1, 8, 16), Piece(2, 16, 18)]
    assert split(Extent(6, 6), 8) == []


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 64))
def test_pieces_are_the_extent_and_each_lies_in_its_chunk(start: int, size: int, chunk_bytes: int) -> None:
    pieces = split(Extent(start, start + size), chunk_bytes)
    covered = [i for piece in pieces for i in range(piece.start, piece.end)]
    assert covered == list(range(start, start + size))
    assert all(i // chunk_bytes == piece.index for piece in pieces for i in (piece.start, piece.end - 1))
    assert [piece.index for piece in pieces] == list(chunk_range(Extent(start, start + size), chunk_bytes))


@given(st.integers(0, 1000), st.integers(1, 64))
def test_chunks_tile_the_file(file_size: int, chunk_bytes: int) -> None:
    extents = [chunk_extent(i, file_size, chunk_bytes) for i in range(chunk_count(file_size, chunk_bytes))]
    assert [i for extent in extents for i in range(extent.start, extent.end)] == list(range(file_size))
    assert all(extent.size > 0 for extent in extents)


@given(st.integers(0, 80), st.lists(st.tuples(st.sampled_from(["add", "discard", "all", "clear"]), st.integers(0, 79))))
def test_a_chunk_set_behaves_as_a_set(count: int, steps: list[tuple[str, int]]) -> None:
    chunks, model = ChunkSet(count), set[int]()
    for step, index in steps:
        if step == "add" and index < count:
            chunks.add(index)
            model.add(index)
        elif step == "discard":
            chunks.discard(index)
            model.discard(index)
        elif step == "all":
            for each in range(count):
                chunks.add(each)
            model = set(range(count))
        elif step == "clear":
            chunks.clear()
            model.clear()
        assert list(chunks) == sorted(model)
        assert (len(chunks), bool(chunks), chunks.full) == (len(model), bool(model), len(model) == count)
        assert list(chunks.missing()) == sorted(set(range(count)) - model)
        assert (index in chunks) == (index in model)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_chunk_set_takes_only_its_chunks(index: int) -> None:
    chunks = ChunkSet(3)
    with pytest.raises(IndexError):
        chunks.add(index)
    chunks.discard(index)
    assert index not in chunks


def test_an_empty_file_is_complete() -> None:
    assert ChunkSet(0).full
    assert not ChunkSet(0)


def test_a_set_costs_what_is_in_it_however_many_could_be() -> None:
    chunks = ChunkSet(1 << 60)
    assert not chunks.full
    chunks.add(5)
    assert (len(chunks), 5 in chunks, 1 << 50 in chunks, next(iter(chunks))) == (1, True, False, 5)
    missing = chunks.missing()
    assert [next(missing) for _ in range(6)] == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 9000])
def test_what_is_in_and_what_is_not_across_words(count: int) -> None:
    chunks, model = ChunkSet(count), set(range(0, count, 3))
    for index in model:
        chunks.add(index)
    assert list(chunks) == sorted(model)
    assert list(chunks.missing()) == sorted(set(range(count)) - model)
