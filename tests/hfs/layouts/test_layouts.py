"""Layouts: paths made relative, bytes of HDF5 rows, and the file that keeps them."""

import itertools
import os
import pathlib
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.layouts.files import OutsideRoot, files_layout, relative_names, versions
from hfs.layouts.hdf5 import build_hdf5
from hfs.layouts.layout import Layout, LayoutError
from hfs.layouts.registry import recognised
from hfs.mountd.core.errors import ConfigError


def same(path: str) -> str:
    return path


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["/m/a", "/m/d/b"], b"a\0d/b"),
        (["a", "d/b"], b"a\0d/b"),
        (["/m/a", "d/b"], b"a\0d/b"),
        (["./a", "d//b", "d/../c", "/m//x", "/m/./y", "/m/d/../z", "e/"], b"a\0d/b\0c\0x\0y\0z\0e"),
        (["/m/.hidden", "/m/a..b"], b".hidden\0a..b"),
        ([".hidden", "..x"], b".hidden\0..x"),
        ([pathlib.Path("/m/a"), pathlib.Path("b")], b"a\0b"),
        ([b"/m/\xff", "/m/\udcfe"], b"\xff\0\xfe"),
        (["/m/m/a"], b"m/a"),
    ],
)
def test_paths_become_relative(files: list[str], names: bytes) -> None:
    assert relative_names(files, "/m", same) == names
    assert relative_names(files, "/m/", same) == names


def test_paths_by_another_name_of_the_mount() -> None:
    asked = []

    def canonical(path: str) -> str:
        asked.append(path)
        return path.replace("/home/me/data", "/m")

    files = [f"/home/me/data/train/{i}" for i in range(100)]
    assert relative_names(files, "/m", canonical) == b"\0".join(b"train/%d" % i for i in range(100))
    assert asked == ["/home/me/data/train/"]  # once, not for each
    # No directory in common but the root, which is not the mount's.
    with pytest.raises(OutsideRoot) as caught:
        relative_names(["/m/a", "/n/b", "/m/c", "/mm/d"], "/m", canonical)
    assert caught.value.numbers == [1, 3]
    assert "2 of 4 files are not below /m, the first is number 1: /n/b" in str(caught.value)


@pytest.mark.parametrize("files", [[], ["/m/a", ""], ["../x"], ["a", ".."], ["/m"], ["a\0b"], ["."]])
def test_paths_that_cannot_be(files: list[str]) -> None:
    with pytest.raises(ConfigError):
        relative_names(files, "/m", same)


_names = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1).filter(
    lambda t: t not in {".", ".."}
)


@given(st.lists(st.lists(_names, min_size=1, max_size=3).map("/".join), min_size=1), st.booleans())
def test_all_names_come_back(names: list[str], absolute: bool) -> None:
    files = [f"/some/mount/{name}" if absolute else name for name in names]
    assert files_layout(files, "/some/mount").files == [os.fsencode(name) for name in names]


def layouts() -> list[Layout]:
    sizes = np.array([1000, 1 << 40])
    return [
        Layout(b"a\0b"),
        Layout(b"a\0b", sizes, sizes + 5),
        Layout(b"a\0b", sizes, sizes, np.array([0, 1, 0]), np.array([0, 1 << 39, 5]), np.array([10, 20, 30])),
        Layout(b"a\0b", sizes, sizes, *np.array([[0, 0], [7, 7], [3, 3]])),
        Layout(b"a\0b", sizes, sizes, *np.array([[0, 1] * 3, [1, 2, 3, 4, 5, 6], [3, 9] * 3]), np.array([0, 2, 4, 6])),
        Layout(b"a\0b", sizes, sizes, *np.array([[0, 1] * 3, [1, 2, 3, 4, 5, 6], [3, 9] * 3]), np.array([0, 1, 1, 6])),
    ]


@pytest.mark.parametrize("number", range(6))
def test_many_samples_are_found_as_each_alone(number: int) -> None:
    layout = layouts()[number]
    samples = np.array([*range(layout.samples), 0, layout.samples - 1])
    counts, *columns = layout.extents_of_each(samples)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        extent for sample in samples.tolist() for extent in layout.extents_of(sample)
    ]
    assert counts.tolist() == [len(layout.extents_of(sample)) for sample in samples.tolist()]
    assert [len(column) for column in layout.extents_of_each(np.empty(0, np.int64))] == [0] * 4
    for wrong in (-1, layout.samples):
        with pytest.raises(IndexError, match=f"sample {wrong}: there are {layout.samples}, from 0"):
            layout.extents_of_each(np.array([0, wrong]))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 40), st.integers(1, 300)), max_size=3), min_size=1
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_layout_comes_back(
    tmp_path_factory: pytest.TempPathFactory, samples: list[list[tuple[int, int, int]]], repeated: bool, keyed: bool
) -> None:
    if repeated:  # as rows of chunked data sets are
        samples = [samples[0]] * len(samples)
    rows = [extent for sample in samples for extent in sample]
    if not rows:
        return
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    starts = np.append(0, np.cumsum([len(sample) for sample in samples]))
    keys = np.arange(len(samples), dtype=np.uint64) * np.uint64(1 << 60 | 1) if keyed else None
    sizes = np.full(3, 1 << 41)
    made = Layout(b"a\0b\0c", sizes, sizes + 1, *columns, starts, "x").with_keys(keys)
    path = str(tmp_path_factory.getbasetemp() / "any.layout")
    made.save(path)
    again = Layout.load(path)
    assert (again.frame(), again.samples, again.made_from) == (made.frame(), len(samples), "x")
    assert [again.extents_of(number) for number in range(len(samples))] == samples
    assert again.sample_bytes == sum(size for _, _, size in rows)
    assert (again.keys is None) == (not keyed)
    assert keys is None or (again.keys == keys).all()
    assert again.offsets.dtype == again.sizes.dtype == again.extents.dtype == again.starts.dtype == np.int64


def test_the_file_takes_few_bytes_a_sample(tmp_path: Path) -> None:
    count = 100_000
    extents = np.zeros(2 * count, np.int64)
    offsets = np.random.default_rng(0).integers(0, 1 << 36, 2 * count)
    sizes = np.tile([19_000, 8], count)
    Layout(b"a", *np.array([[1 << 40]] * 2), extents, offsets, sizes, np.arange(0, 2 * count + 1, 2)).save(
        str(tmp_path / "l")
    )
    assert (tmp_path / "l").stat().st_size <= 24 * count


def savez(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_a_file_that_is_no_layout_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.layout"
    savez(path, format=np.frombuffer(b"hfs-layout 2", np.uint8))
    with pytest.raises(LayoutError, match=r"of another format \(hfs-layout 2\); this version reads hfs-layout 1"):
        Layout.load(str(path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(LayoutError, match="not a layout"):
        Layout.load(str(path))
    savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(LayoutError, match="not a layout"):
        Layout.load(str(path))
    with pytest.raises(LayoutError, match="no such file"):
        Layout.load(str(tmp_path / "none"))
    with pytest.raises(LayoutError, match=r"cannot be read \(Is a directory\)$"):
        Layout.load(str(tmp_path))
    with pytest.raises(LayoutError, match="cannot be written"):
        layouts()[0].save(str(tmp_path / "none" / "x"))


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"extents": [2]}, "lies in file 2 of 2"),
        ({"extents": [-1]}, "lies in file -1 of 2"),
        ({"offsets": [-1]}, "extent 0 starts at -1"),
        ({"sizes": [0]}, "extent 0 has 0 bytes"),
        ({"offsets": [95]}, "extent 0 of 10 bytes reaches past the end"),
        ({"offsets": [1, 2]}, "1 extents with 2 offsets and 1 sizes"),
        ({"file_sizes": [1]}, "2 files with 1 sizes"),
        ({"starts": [0, 2]}, "starts"),
        ({"starts": [0, 1, 0, 1]}, "the extents of sample 1 end at 0, before they begin"),
        ({"extents": [], "offsets": [], "sizes": [], "starts": [0]}, "starts"),
        ({"extents": [[0]]}, "list of integers"),
        ({"offsets": [0.5]}, "list of integers"),
    ],
)
def test_arrays_that_do_not_fit_together(arrays: dict[str, list[int]], fault: str) -> None:
    good = {"file_sizes": [100, 100], "extents": [0], "offsets": [0], "sizes": [10]}
    made = {name: np.array(values) if values else np.empty(0, int) for name, values in (good | arrays).items()}
    with pytest.raises(LayoutError, match=fault):
        Layout(b"a\0b", **made)


def rows(path: Path, layout: Layout) -> list[list[bytes]]:
    """The extents' bytes of each sample."""
    raw = path.read_bytes()
    starts = layout.starts if len(layout.starts) else np.arange(layout.samples + 1)
    pieces = [raw[o : o + s] for o, s in zip(layout.offsets, layout.sizes, strict=True)]
    return [pieces[a:b] for a, b in itertools.pairwise(starts)]


def test_hdf5_that_has_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((5, 3))
        file["short"] = np.zeros((4, 3))
        file.create_dataset("empty", (5, 3), "f4")
        file.create_dataset("part", (50,), "f4", chunks=(10,))[:15] = 1
        file.create_dataset("none", (5, 3), "f4", chunks=(1, 3))
        file["scalar"] = 3.0
        file["text"] = ["a", "bc", "d", "e", "f"]
        layout = h5py.VirtualLayout((5, 3), "f8")
        layout[:] = h5py.VirtualSource(file["x"])
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (5,), "f4", external=[(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)])
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((5,)), compact)
    for name, fault in (
        ("nothing", "no data set 'nothing'; there are compact, empty"),
        ("empty", "nothing has been written"),
        ("none", "nothing has been written"),
        ("part", "rows from 20 on"),
        ("scalar", "has no rows"),
        ("text", "variable length"),
        ("virtual", "virtual"),
        ("external", "external"),
        ("compact", "compact"),
    ):
        with pytest.raises(LayoutError, match=fault):
            build_hdf5(str(path), [name], str(tmp_path))
    with pytest.raises(LayoutError, match="x has 5, short has 4"):
        build_hdf5(str(path), ["x", "short"], str(tmp_path))
    with pytest.raises(ConfigError, match=r"x.h5: say which .* \(--dataset\); there are compact, empty"):
        build_hdf5(str(path), [], str(tmp_path))
    with pytest.raises(ConfigError, match="not below"):
        build_hdf5(str(path), ["x"], str(tmp_path / "d"))
    (tmp_path / "y.h5").write_bytes(b"no")
    with pytest.raises(LayoutError, match="not an HDF5 file"):
        build_hdf5(str(tmp_path / "y.h5"), ["x"], str(tmp_path))


@pytest.mark.parametrize("mtime_ns", [-1, -2, -(10**18), 0, 1])
def test_a_time_before_1970_is_a_time(tmp_path: Path, mtime_ns: int) -> None:
    """No number stands for a time that is not known: whether the size is says that."""
    path = tmp_path / "a"
    path.write_bytes(b"1")
    os.utime(path, ns=(mtime_ns, mtime_ns))
    sizes, mtimes = versions(b"a\0b", str(tmp_path))
    assert mtimes[0] == os.stat(path).st_mtime_ns == mtime_ns
    Layout(b"a\0b", np.array(sizes), np.array(mtimes)).save(str(tmp_path / "layout"))
    layout = Layout.load(str(tmp_path / "layout"))
    assert layout.changed(str(tmp_path)) == []
    os.utime(path, ns=(mtime_ns - 1, mtime_ns - 1))
    assert layout.changed(str(tmp_path)) == [f"{path}: changed since the layout was made"]


@pytest.mark.parametrize("userblock", [512 << power for power in range(0, 15, 2)])
def test_hdf5_is_found_behind_a_user_block_of_any_size(tmp_path: Path, userblock: int) -> None:
    path = tmp_path / "x"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file["y"] = np.arange(50, dtype=np.int64)
    with open(path, "r+b") as file:
        file.write(b"whatever stands here")
    assert recognised([str(path)]).name == "hdf5"
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        archive.add(path, "sample.h5")  # its signature has the place of that behind a user block
    assert recognised([str(tmp_path / "shard.tar")]).name == "tar"
