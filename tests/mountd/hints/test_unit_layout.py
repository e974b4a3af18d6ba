"""Layouts as the daemon takes them: units, uses of an order, and everything that cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.hints import epoch_plan
from hfs.mountd.hints.epoch_plan import UnitLayout
from hfs.mountd.wire.hints import LayoutFrame
from hfs.mountd.wire.layout import LayoutError, SampleExtents
from hfs.policies.geometry import Extent, chunk_range

CHUNK = 100


def packed(values: Any, dtype: str = "<i8") -> bytes:
    return np.asarray(values, dtype).tobytes()


def with_extents(**changes: Any) -> LayoutFrame:
    """Two files of 250 and 100 bytes; three samples: 0-50 of the first, 90-210 of it, all of the second."""
    frame = LayoutFrame(
        files=b"a\0d/b",
        extents=packed([0, 0, 1], "<i4"),
        offsets=packed([0, 90, 0]),
        sizes=packed([50, 120, 100]),
        file_sizes=packed([250, 100]),
    )
    return msgspec.structs.replace(frame, **changes)


def divided(frame: LayoutFrame) -> UnitLayout:
    return UnitLayout("d", SampleExtents.of_frame(frame), CHUNK)


def test_a_list_of_files() -> None:
    layout = divided(LayoutFrame(files=b"a\0d/b\0c"))
    assert (layout.files, layout.samples, layout.units, layout.whole) == (3, 3, 3, True)
    assert [layout.path(i) for i in range(3)] == [b"a", b"d/b", b"c"]
    assert layout.place(1) == (1, None)
    assert layout.unit_bytes() is None
    units, at = layout.uses(np.array([2, 0, 2]))
    assert units.tolist() == [2, 0, 2]
    assert at is None


def test_extents_become_the_chunks_they_lie_in() -> None:
    layout = divided(with_extents())
    assert (layout.samples, layout.units, layout.bytes) == (3, 4, 350)
    sizes = layout.unit_bytes()
    assert sizes is not None
    assert sizes.tolist() == [100, 100, 50, 100]
    assert [layout.place(i) for i in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [layout.unit(*layout.place(i)) for i in range(4)] == [0, 1, 2, 3]  # type: ignore[arg-type]  # chunks
    units, at = layout.uses(np.array([2, 1, 0]))
    assert units.tolist() == [3, 0, 1, 2, 0]
    assert at is not None
    assert at.tolist() == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([b"%d" % number for number in range(2000)], {b"1999": 1999, b"7": None, b"x": None}),
        ([b"a", *[b"b"] * 2000, b"c", b"b"], {b"b": 2002, b"a": None}),
    ],
    ids=["forged", "one name"],
)
def test_names_whose_hashes_are_the_same_are_one_step(
    names: list[bytes], found: dict[bytes, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open of a file by anybody asks for it, so nobody may make that slow by how he names his files."""
    monkeypatch.setattr(epoch_plan, "hash_of", lambda _path: 7)
    layout = divided(LayoutFrame(files=b"\0".join(names)))
    looked_at: list[int] = []
    path_of = UnitLayout.path
    monkeypatch.setattr(UnitLayout, "path", lambda self, file: looked_at.append(file) or path_of(self, file))
    for path, number in found.items():
        looked_at.clear()
        assert layout.find(path, 7) == number
        assert layout.find(path, 8) is None
        assert len(looked_at) == 1


def test_of_a_name_that_comes_twice_the_last_is_found() -> None:
    names = [b"%d" % (number % 700) for number in range(2000)]
    layout = divided(LayoutFrame(files=b"\0".join(names)))
    for number in range(700):
        path = b"%d" % number
        assert layout.find(path, epoch_plan.hash_of(path)) == 1999 - names[::-1].index(path)


def test_samples_of_several_extents() -> None:
    layout = divided(with_extents(starts=packed([0, 2, 3])))
    units, at = layout.uses(np.array([1, 0]))
    assert units.tolist() == [3, 0, 0, 1, 2]
    assert at is not None
    assert at.tolist() == [0, 1, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 400)), min_size=1), st.data())
def test_uses_are_the_chunks_of_the_extents(extents: list[tuple[int, int, int]], data: st.DataObject) -> None:
    file_sizes = [max([o + s for f, o, s in extents if f == i], default=0) for i in range(4)]
    frame = LayoutFrame(
        files=b"a\0b\0c\0d",
        extents=packed([f for f, _, _ in extents], "<i4"),
        offsets=packed([o for _, o, _ in extents]),
        sizes=packed([s for _, _, s in extents]),
        file_sizes=packed(file_sizes),
    )
    layout = divided(frame)
    order = data.draw(st.lists(st.integers(0, len(extents) - 1)))
    units, at = layout.uses(np.array(order, np.int64))
    wanted = []
    for position, sample in enumerate(order):
        file, offset, size = extents[sample]
        wanted += [(position, (file, i)) for i in chunk_range(Extent(offset, offset + size), CHUNK)]
    positions = np.arange(len(units)) if at is None else at
    assert [(int(p), layout.place(int(u))) for p, u in zip(positions, units, strict=True)] == wanted


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (LayoutFrame(files=b""), "names no file"),
        (with_extents(extents=packed([0, 0, 2], "<i4")), "extent 2 lies in file 2 of 2"),
        (with_extents(extents=packed([0, -1, 1], "<i4")), "extent 1 lies in file -1"),
        (with_extents(extents=b"abc"), "end in the middle of a number"),
        (with_extents(offsets=packed([0, 90])), "3 extents with 2 offsets"),
        (with_extents(offsets=packed([0, -1, 0])), "extent 1 starts at -1"),
        (with_extents(sizes=packed([50, 0, 100])), "extent 1 has 0 bytes"),
        (with_extents(sizes=packed([50, 161, 100])), "extent 1 of 161 bytes reaches past"),
        (with_extents(offsets=packed([0, (1 << 63) - 1, 0])), "reaches past"),
        (with_extents(sizes=packed([50, (1 << 63) - 1, 100])), "reaches past"),
        (with_extents(file_sizes=packed([250])), "2 files with 1 sizes"),
        (with_extents(extents=packed([0, 0, 0], "<i4"), file_sizes=packed([250, -1])), "file 1 has -1 bytes"),
        (with_extents(file_sizes=packed([(1 << 63) - 1, 100])), "file 0 has"),
        (with_extents(starts=packed([0, 2, 2])), "extents are not 0 to 3"),
        (with_extents(starts=packed([0, 3, 1, 3])), "the extents of sample 1 end at 1, before they begin"),
    ],
)
def test_what_cannot_be_is_refused(frame: LayoutFrame, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        divided(frame)


@pytest.mark.parametrize("index", [-1, 3, 1 << 40, -(1 << 63)])
def test_orders_out_of_range(index: int) -> None:
    with pytest.raises(LayoutError, match=f"at position 1 the order names sample {index} of 3"):
        divided(with_extents()).uses(np.array([0, index], np.int64))


def test_a_sample_without_bytes_needs_nothing() -> None:
    layout = divided(with_extents(starts=packed([0, 0, 2, 2, 3, 3])))
    assert layout.samples == 5
    units, at = layout.uses(np.array([4, 3, 0, 1, 2]))
    assert at is not None
    assert (units.tolist(), at.tolist()) == ([3, 0, 0, 1, 2], [1, 3, 3, 3, 3])
    assert layout.count_uses(np.array([4, 3, 0, 1, 2])) == len(units)
    assert layout.uses(np.array([0, 2, 4]))[0].tolist() == []
    assert layout.count_uses(np.array([0, 2, 4])) == 0
