"""What is wrong with files that layouts are made of, and with layouts, format by format: said with file and offset."""

import io
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hfs.layouts.keys import positions
from hfs.layouts.layout import Layout, LayoutError
from hfs.layouts.npy import build_npy, build_npz
from hfs.layouts.tar import build_tar
from hfs.layouts.tfrecord import build_tfrecord
from hfs.layouts.tree import build_tree
from hfs.mountd.core.errors import ConfigError
from tests.hfs.layouts.layout_cases import tfrecord_checksum, tfrecord_write
from tests.hfs.layouts.layout_data import sample_bytes, sample_pieces


def refused(fault: str, make: Callable[..., Layout], path: Path, **options: object) -> None:
    with pytest.raises(LayoutError, match=fault) as caught:
        make(str(path), str(path.parent), **options)
    assert str(path) in str(caught.value)


# --- tar -------------------------------------------------------------------------------------------------------------


def archive(path: Path, *members: tuple[str, bytes], kind: int = tarfile.USTAR_FORMAT, mode: str = "w") -> bytearray:
    with tarfile.open(str(path), mode, format=kind) as made:  # type: ignore[call-overload] # any mode
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            made.addfile(member, io.BytesIO(body))
    return bytearray(path.read_bytes())


def test_samples_of_tar_files(tmp_path: Path) -> None:
    names = ["README", "a/0.jpg", "a/0.cls", "b/0.jpg", ".hidden.jpg", "__meta__", "b/0.x.cls", "b/1.jpg", "a/0.jpg"]
    archive(tmp_path / "x.tar", *((name, name.encode()) for name in names))
    layout = build_tar(str(tmp_path / "x.tar"), str(tmp_path), keys=True)
    assert sample_pieces(layout, tmp_path) == [
        [b"a/0.jpg", b"a/0.cls"],
        [b"b/0.jpg", b"b/0.x.cls"],
        [b"b/1.jpg"],
        [b"a/0.jpg"],  # as for WebDataset: what is not in a row is another sample
    ]
    assert positions(layout, ["b/1", "a/0"]).tolist() == [2, 0]
    layout = build_tar(str(tmp_path / "x.tar"), str(tmp_path), each_member=True, keys=True)
    assert sample_bytes(layout, tmp_path) == [name.encode() for name in names]
    assert positions(layout, ["b/0.x.cls"]).tolist() == [6]


def test_tar_files_that_have_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for mode, command in (("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")):
        archive(path, ("a.x", b"1"), mode=mode)
        refused(f"x.tar: compressed: .*unpack it \\({command} -d", build_tar, path)
    archive(path, ("a.x", b"1"), ("a.x", b"2"))
    refused(r"two members a\.x in one sample, the second at offset 1,536", build_tar, path)
    archive(path, ("README", b"1"))
    refused("no samples in it", build_tar, path)
    raw = archive(path, ("a.x", b"1"))
    for kind, fault in ((b"S", "a sparse member at offset 0"), (b"M", "the rest of a member of another volume")):
        raw[156:157] = kind
        resum(raw, 0)
        path.write_bytes(raw)
        refused(fault, build_tar, path)
    archive(path, ("a.x", b"1"), kind=tarfile.PAX_FORMAT)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as made:
        sparse = tarfile.TarInfo("a.x")
        sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        sparse.size = 512
        made.addfile(sparse, io.BytesIO(b"0\n".ljust(512, b"\0")))
    refused("a sparse member at offset 0", build_tar, path)


def resum(raw: bytearray, at: int) -> None:
    """The checksum of a header that was changed."""
    raw[at + 148 : at + 156] = b" " * 8
    raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])


def test_damaged_tar_files(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    whole = archive(path, ("a.x", b"1" * 600), ("b.x", b"2" * 600))
    raw = whole.copy()
    raw[1536 + 5] ^= 1
    path.write_bytes(raw)
    refused("damaged: bad checksum in the header at offset 1,536", build_tar, path)
    raw = whole.copy()
    raw[124:136] = b"0000000zzzz\0"
    resum(raw, 0)
    path.write_bytes(raw)
    refused("not a tar file: invalid header", build_tar, path)
    raw[124:136] = b"\x80" + b"\xff" * 11
    resum(raw, 0)
    path.write_bytes(raw)
    refused("cut short: the [0-9,]+ bytes of a.x at offset 512 reach beyond its end", build_tar, path)
    path.write_bytes(whole[:3072])
    refused("cut short: no block of zeros at its end, at offset 3,072", build_tar, path)
    path.write_bytes(b"\0" * 10240)
    refused("no samples in it", build_tar, path)
    raw = archive(path, ("n" * 300 + ".x", b"1"), kind=tarfile.PAX_FORMAT)
    raw[512:515] = b"999"
    path.write_bytes(raw)
    refused("a zero byte in the name of the member at offset 0|not a tar file: ", build_tar, path)
    raw = archive(path, ("n" * 300 + ".x", b"1"), kind=tarfile.GNU_FORMAT)
    raw[124:136] = b"77777777777\0"
    resum(raw, 0)
    path.write_bytes(raw)
    refused("an extended header of [0-9,]+ bytes before offset 512", build_tar, path)


def test_a_size_in_an_extended_header(tmp_path: Path) -> None:
    raw = archive(tmp_path / "x.tar", ("a.x", b"1" * 700))
    records = b"12 size=700\n"
    extended = tarfile.TarInfo("x")
    extended.type, extended.size = tarfile.XHDTYPE, len(records)
    raw[124:136] = b"%011o\0" % 0
    resum(raw, 0)
    (tmp_path / "x.tar").write_bytes(extended.tobuf() + records.ljust(512, b"\0") + raw)
    layout = build_tar(str(tmp_path / "x.tar"), str(tmp_path))
    assert sample_bytes(layout, tmp_path) == [b"1" * 700]


def test_a_link_that_says_a_size_has_no_data(tmp_path: Path) -> None:
    raw = archive(tmp_path / "x.tar", ("a.x", b""), ("b.x", b"22"))
    raw[156:157], raw[124:136] = b"1", b"%011o\0" % 700
    resum(raw, 0)
    (tmp_path / "x.tar").write_bytes(raw)
    assert sample_bytes(build_tar(str(tmp_path / "x.tar"), str(tmp_path)), tmp_path) == [b"22"]


# --- TFRecord --------------------------------------------------------------------------------------------------------


def test_damaged_tfrecord_files(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    tfrecord_write(path, [100, 0, 5000])
    whole = path.read_bytes()
    for at, fault in (
        (0, "not a TFRecord file: no record at offset 0"),
        (20, "wrong checksum of the 100 bytes at offset 12"),
        (113, "wrong checksum of the 100 bytes at offset 12"),
        (118, "wrong checksum of the length at offset 116"),
        (129, "wrong checksum of the 0 bytes at offset 128"),
    ):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        refused(fault, build_tfrecord, path)
    for size, fault in ((150, "cut short: the record at offset 132 ends at 5,148"), (140, "has 8 bytes")):
        path.write_bytes(whole[:size])
        refused(fault, build_tfrecord, path)
    length = struct.pack("<Q", 1 << 60)
    path.write_bytes(whole + length + tfrecord_checksum(length) + b"x")
    refused("cut short: the record at offset 5,148 ends at 1,152,921,504,606,852,140", build_tfrecord, path)
    path.write_bytes(b"\x1f\x8b\x08" + whole)
    refused("compressed", build_tfrecord, path)


# --- NumPy -----------------------------------------------------------------------------------------------------------


def test_arrays_that_have_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for array, fault in (
        (np.asfortranarray(np.zeros((4, 3))), "in Fortran order"),
        (np.array([{}, []], dtype=object), "of Python objects"),
        (np.float64(3), "has no rows"),
        (np.zeros((0, 3)), "no samples in it"),
        (np.zeros((3, 0)), "none of its samples has a byte"),
        (np.zeros((1 << 40, 0)), "none of its 1,099,511,627,776 rows has a byte"),
    ):
        np.save(path, array)
        refused(f"x.npy: .*{fault}", build_npy, path)
    np.save(path, np.zeros((5, 3)))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"(5, 3)", b"(6, 3)"))
    refused("cut short: the array has 6 rows of 24 bytes from offset 128 on, and ends at 248", build_npy, path)
    path.write_bytes(whole.replace(b"(5, 3), } ", b"(9999999**9)"))
    refused("no header of an array at offset 0", build_npy, path)
    path.write_bytes(b"\x93NUMPY\x03" + whole[7:])
    refused(r"version \(3, 0\)", build_npy, path)


def test_members_that_have_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(5))
    with pytest.raises(ConfigError, match=r"say which arrays a sample is of \(--dataset\); there are x, y"):
        build_npz(str(path), str(tmp_path))
    refused("no array 'z'; there are x, y", build_npz, path, dataset=["z"])
    refused("x has 4, y has 5", build_npz, path, dataset=["x", "y"])
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"x.npy", b"w.npy", 1))
    refused("the header of another member than x at offset 0", build_npz, path, dataset=["x"])
    np.savez_compressed(path, x=np.zeros((4, 3)))
    refused(r"x is compressed, .* write it with np\.savez", build_npz, path)
    np.savez(path, x=np.arange(12).reshape(4, 3))
    assert sample_bytes(build_npz(str(path), str(tmp_path)), tmp_path)[3] == np.arange(9, 12).tobytes()


# --- Trees -----------------------------------------------------------------------------------------------------------


def test_trees_that_have_no_layout(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    refused("no files in it", build_tree_of, tmp_path / "d")
    (tmp_path / "d" / "e" / "b.JPG").write_bytes(b"12")
    (tmp_path / "d" / "a.txt").write_bytes(b"1")
    layout = build_tree([str(tmp_path / "d")], str(tmp_path), suffix=[".jpg"])
    assert (layout.files, layout.file_sizes.tolist()) == ([b"d/e/b.JPG"], [2])
    os.symlink("absent", tmp_path / "d/e/link")
    refused("d/e/link: cannot be read .No such file", build_tree_of, tmp_path / "d")
    (tmp_path / "d/e/link").unlink()
    os.mkfifo(tmp_path / "d/e/pipe")
    refused("d/e/pipe: not a regular file", build_tree_of, tmp_path / "d")
    (tmp_path / "d/e/pipe").unlink()
    os.symlink("..", tmp_path / "d/e/up")
    refused("d/e/up/e: leads back to", build_tree_of, tmp_path / "d")
    refused("not a directory", build_tree_of, tmp_path / "d" / "a.txt")


def build_tree_of(path: str, root: str) -> Layout:
    return build_tree([path], root)


# --- Layouts ---------------------------------------------------------------------------------------------------------


def test_a_layout_cut_short_or_flipped_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "x.layout"
    made = Layout(b"a", np.array([1000]), np.array([5]), *np.array([[0, 0], [7, 300], [3, 9]]), made_from="npy")
    made = made.with_keys(np.array([3, 4], np.uint64))
    made.save(str(path))
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 29), *range(len(whole) - 50, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(LayoutError, match=r"x\.layout: (not a layout|damaged)"):
            Layout.load(str(path))
    differ = 0
    for at in range(0, len(whole), 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            again = Layout.load(str(path))
        except LayoutError as error:
            assert str(error).startswith(f"{path}: ")
            differ += 1
        else:  # what zip keeps twice, dates, and the padding of names
            assert (again.frame(), again.made_from) == (made.frame(), made.made_from)
    assert differ > len(whole) // 13 // 2


def test_a_layout_that_says_more_than_it_has(tmp_path: Path) -> None:
    """No memory is taken for what a file only says."""
    path = tmp_path / "x.layout"
    for offsets, starts, samples in ([7], [], 1 << 30), ([7], [2], 1 << 29), ([7], [0], 1 << 30), ([7, 7], [3], 5):
        with path.open("wb") as file:
            np.savez(
                file, format=np.frombuffer(b"hfs-layout 1", np.uint8), names=np.frombuffer(b"a", np.uint8),
                made_from=np.empty(0, np.uint8), file_sizes=np.array([1000]), file_mtimes=np.array([5]),
                samples=np.array([samples]), extent_count=np.array([1 << 30]), extents=np.array([0]),
                offsets=np.array(offsets), sizes=np.array([3, 9]), starts=np.array(starts, np.uint8),
            )  # fmt: skip
        with pytest.raises(
            LayoutError, match=r"x\.layout: damaged: it has \d values where|x\.layout: damaged: the extents"
        ):
            Layout.load(str(path))


def test_a_layout_is_used_where_it_lies(tmp_path: Path) -> None:
    count = 200_000
    sizes = np.arange(count) % 1000 + 1
    offsets = sizes.cumsum() - sizes
    Layout(b"a", *np.array([[1 << 40]] * 2), np.zeros(count, np.int64), offsets, sizes).save(str(tmp_path / "l"))
    layout = Layout.load(str(tmp_path / "l"))
    assert not layout._offsets.flags.owndata
    assert not layout._offsets.flags.writeable
    assert layout._extents.strides == (0,)
    assert (layout.offsets == offsets).all()
    os.unlink(tmp_path / "l")  # a layout that is replaced is still there for those who use it
    assert layout.extents_of(count - 1) == [(0, int(offsets[-1]), int(sizes[-1]))]
