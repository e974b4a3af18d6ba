"""Every format keeps the contract of layouts: extents of a sample, read with pread, are what its own reader returns.

And for all of them alike: shards, samples without bytes, none at all, one; the size of the layout file; files that are
cut short, or of another format, are refused in words that name them.
"""

import io
import itertools
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfs.layouts import reading
from hfs.layouts.layout import Layout, LayoutError
from hfs.layouts.registry import build, formats, recognised
from hfs.layouts.tar import build_tar
from hfs.layouts.tree import build_tree
from hfs.mountd.core.errors import ConfigError
from tests.hfs.layouts.layout_cases import CASES, Case
from tests.hfs.layouts.layout_data import sample_pieces
from tests.support.examples import examples
from tests.support.late_module import LateModule

tariterators = LateModule("webdataset.tariterators")

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}: {case.name}")
first_cases = list({case.format: case for case in reversed(CASES)}.values())
each_format = pytest.mark.parametrize("case", first_cases, ids=lambda case: case.format)


def holds(case: Case, layout: Layout, root: Path, paths: list[Path]) -> None:
    """The layout is that of `paths`, all of them and in order."""
    expected = [(number, sample) for path in paths for number, sample in enumerate(case.read(path))]
    pieces = sample_pieces(layout, root)
    assert len(pieces) == len(expected)
    for (number, sample), found in zip(expected, pieces, strict=True):
        assert case.decode(number, found) == sample


def test_every_format_has_a_case() -> None:
    assert {case.format for case in CASES} == set(formats())


@each_case
def test_extents_decode_to_what_the_formats_reader_returns(tmp_path: Path, case: Case) -> None:
    path = tmp_path / f"data{case.suffix}"
    case.write(path, [100, 1, 5000, 60_000, 3, 700, 2, 512, 1024, 4096, 33])
    layout = build([str(path)], str(tmp_path), options=case.options)
    holds(case, layout, tmp_path, [path])
    layout.save(str(tmp_path / "x.layout"))
    again = Layout.load(str(tmp_path / "x.layout"))
    assert (again.frame(), again.made_from) == (layout.frame(), layout.made_from)
    assert recognised([str(path)]).name == case.format == layout.made_from.partition(":")[0]
    assert again.changed(str(tmp_path)) == []


@each_case
def test_any_sizes(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    root = tmp_path_factory.mktemp("any")

    @settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.integers(0 if case.empty else 1, 9000), min_size=1, max_size=40))
    def check(sizes: list[int]) -> None:
        path = root / f"data{case.suffix}"
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        case.write(path, [*sizes, 1])  # at least one has a byte
        holds(case, build([str(path)], str(root), options=case.options), root, [path])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", 8192)  # many blocks, headers and records across their ends
        check()


@each_format
def test_shards(tmp_path: Path, case: Case) -> None:
    paths = [tmp_path / f"d{number}{case.suffix}" for number in range(3)]
    for number, path in enumerate(paths):
        case.write(path, [10, 300, 7000][: number + 1])
    layout = build([str(path) for path in paths], str(tmp_path), options=case.options)
    holds(case, layout, tmp_path, paths)
    assert layout.samples == 6
    paths.reverse()
    holds(case, build([str(path) for path in paths], str(tmp_path), options=case.options), tmp_path, paths)


@each_format
def test_no_samples(tmp_path: Path, case: Case) -> None:
    path = tmp_path / f"data{case.suffix}"
    case.write(path, [])
    if case.format == "tree":
        path.mkdir()
    with pytest.raises(LayoutError, match=r"data.*: (.* )?(no (samples|rows|files|data set)|none of its samples has)"):
        build([str(path)], str(tmp_path), case.format, case.options)


@each_case
def test_a_file_cut_short_is_refused_or_right(tmp_path: Path, case: Case) -> None:
    path = tmp_path / f"data{case.suffix}"
    case.write(path, [100, 5000, 3, 700, 2, 0, 1024])
    if case.format == "tree":
        return  # a file that is shorter is another file
    file = path / "data.mdb" if path.is_dir() else path
    whole = file.read_bytes()
    expected = sample_pieces(build([str(path)], str(tmp_path), options=case.options), tmp_path)
    refused = 0
    for size in sorted({*range(0, len(whole), max(len(whole) // 60, 1)), *range(len(whole) - 20, len(whole))}):
        file.write_bytes(whole[:size])
        try:
            assert sample_pieces(build([str(path)], str(tmp_path), case.format, case.options), tmp_path) == expected
        except LayoutError as error:
            refused += 1
            assert str(error).startswith(f"{file}: ")
            assert not size or "offset" in str(error)
    assert refused > 20


@each_format
@pytest.mark.parametrize("other", first_cases, ids=lambda case: case.format)
def test_files_of_another_format_are_refused(tmp_path: Path, case: Case, other: Case) -> None:
    path = tmp_path / f"data{other.suffix}"
    other.write(path, [10, 300, 7000])
    if case.format == other.format or (case.format == "tree" and path.is_dir()):
        return
    with pytest.raises(LayoutError, match=r"data[^:]*: "):
        build([str(path)], str(tmp_path), case.format, case.options)


@each_format
def test_a_layout_of_another_version_is_found_out(tmp_path: Path, case: Case) -> None:
    path = tmp_path / f"data{case.suffix}"
    case.write(path, [10, 300, 7000])
    layout = build([str(path)], str(tmp_path), options=case.options)
    file = tmp_path / layout.files[-1].decode()
    with file.open("ab") as more:
        more.write(b"x")
    assert layout.changed(str(tmp_path)) == [f"{file}: changed since the layout was made"]


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing known")
    with pytest.raises(LayoutError, match=r"x: of no format that is known \(hdf5, lmdb, .*say which with --format"):
        build([str(tmp_path / "x")], str(tmp_path))
    with pytest.raises(ConfigError, match="format: 'zip' is not known; there are auto, hdf5"):
        build([str(tmp_path / "x")], str(tmp_path), "zip")
    with pytest.raises(ConfigError, match="--keys, --database: not an option of npy files, whose options are none"):
        build([str(tmp_path / "x")], str(tmp_path), "npy", {"keys": True, "database": "x", "dataset": ()})
    with pytest.raises(ConfigError, match="no files"):
        build([], str(tmp_path))
    by_name = {case.format: case for case in first_cases}
    for name in ("npy", "tar"):
        by_name[name].write(tmp_path / f"d.{name}", [3])
    with pytest.raises(LayoutError, match=r"d\.npy is npy and .*d\.tar is tar: build a layout for each"):
        build([str(tmp_path / "d.npy"), str(tmp_path / "d.tar")], str(tmp_path))


NAMES = st.lists(
    st.one_of(
        st.sampled_from(["a/._b.jpg", "a/.DS_Store", "__meta__/i.json", "__a/b.c__", "__a__.x__", "a/__b__/c.d"]),
        st.text(alphabet="abJ._/\n", min_size=1, max_size=9),
        st.sampled_from(["a.jpg", "a.JPG", "a.b.jpg", "./a.jpg", "a.__key__", "a.__BAD__", "é.CLS", "a/b.c/d.e"]),
    ).filter(lambda name: not name.endswith("/")),
    max_size=9,
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES, st.booleans())
def test_samples_are_those_of_webdataset_whatever_members_are_called(
    tmp_path: Path, names: list[str], bad: bool
) -> None:
    """Hidden files, meta data, capital letters, members twice: where the library refuses a shard, so do we."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size = 4 if bad or not name.lower().endswith("__bad__") else 0
            archive.addfile(member, io.BytesIO(b"%04d" % number))
    with open(path, "rb") as stream:
        try:
            samples = list(
                tariterators.group_by_keys(tariterators.tar_file_expander([{"url": str(path), "stream": stream}]))
            )
            values = [[one[name] for name in one if name not in {"__key__", "__url__"}] for one in samples]
            fault = None if any(map(any, values)) else "no samples in it|none of its samples has a byte"
        except ValueError:
            samples, values, fault = [], [], "two members"
    if fault:
        with pytest.raises(LayoutError, match=fault):
            build_tar(str(path), str(tmp_path))
        return
    layout = build_tar(str(path), str(tmp_path), keys=True)
    raw = path.read_bytes()
    starts = layout.starts if len(layout.starts) else np.arange(layout.samples + 1)
    found = [
        [raw[o : o + s] for o, s in zip(layout.offsets[a:b], layout.sizes[a:b], strict=True)]
        for a, b in itertools.pairwise(starts)
    ]
    assert found == [[value for value in one if value] for one in values]
    assert layout.keys is not None
    assert layout.keys.tolist() == [xxhash.xxh3_64_intdigest(one["__key__"].encode()) for one in samples]


def image_folder(top: Path, suffix: str) -> list[str]:
    """The pictures of torchvision's ImageFolder, by its documented rule (find_classes, make_dataset)."""
    classes = sorted(entry.name for entry in os.scandir(top) if entry.is_dir())
    return [
        os.path.join(root, name)
        for one in classes
        for root, _, names in sorted(os.walk(top / one, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(suffix)
    ]


def test_trees_are_those_of_image_folder(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name in ["b/1.jpg", "b/z/2.jpg", "b/z-/3.JPG", "a/10.jpg", "a/9.jpg", "a/.h.jpg", "a/x.txt", "B/1.jpg"]:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(name.encode())
    (top / "0.jpg").write_bytes(b"of no class")
    (top / "empty").mkdir()
    (tmp_path / "store/deep").mkdir(parents=True)
    (tmp_path / "store/deep/1.jpg").write_bytes(b"1")
    os.symlink("../store", top / "linked")
    os.symlink("../../store", top / "a/inside")
    os.symlink("../../store/deep/1.jpg", top / "a/linked.jpg")
    expected = image_folder(top, ".jpg")
    layout = build_tree([str(top)], str(tmp_path), suffix=[".jpg"])
    assert [os.path.join(tmp_path, os.fsdecode(name)) for name in layout.files] == expected
    shown = {os.path.relpath(path, top) for path in expected}
    assert {"linked/deep/1.jpg", "a/inside/deep/1.jpg", "a/linked.jpg"} <= shown
    assert layout.file_sizes.tolist() == [os.stat(path).st_size for path in expected]
    assert layout.changed(str(tmp_path)) == []
    flat = build_tree([str(top / "b/z")], str(tmp_path))
    assert flat.files == [b"top/b/z/2.jpg"]
