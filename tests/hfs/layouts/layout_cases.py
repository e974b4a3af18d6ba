"""For each format a data set written and read by its own library, for the conformance suite. Not a test module.

A case writes samples of given sizes (formats of rows of one size take the number of them), says what the format's own
reader returns for each, and decodes the bytes of a sample's extents to the same.
"""

import dataclasses
import io
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tests.support.pattern import pattern

Pieces = list[bytes]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to write a format."""

    format: str
    name: str
    write: Callable[[Path, Sequence[int]], None]
    """Makes one file (or directory) at the path, of samples of these sizes."""
    read: Callable[[Path], list[Any]]
    """All samples of it, as the format's own reader returns them."""
    decode: Callable[[int, Pieces], Any]
    """The same of sample i from the bytes of its extents."""
    suffix: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    empty: bool = True
    """Whether samples may have no bytes."""


def joined(_: int, pieces: Pieces) -> bytes:
    return b"".join(pieces)


def data(number: int, size: int) -> bytes:
    return pattern(number + 1, 0, size)


# --- LMDB ------------------------------------------------------------------------------------------------------------


def lmdb_writer(name: bytes | None = None) -> Callable[[Path, Sequence[int]], None]:
    def write(path: Path, sizes: Sequence[int]) -> None:
        plain = not path.suffix
        with lmdb.open(str(path), map_size=1 << 28, subdir=plain, lock=False, sync=False, max_dbs=2) as made:
            database = made.open_db(name) if name else None
            with made.begin(write=True, db=database) as transaction:
                for number, size in reversed(list(enumerate(sizes))):
                    transaction.put(b"%08d" % number, data(number, size))

    return write


def lmdb_reader(name: bytes | None = None) -> Callable[[Path], list[bytes]]:
    def read(path: Path) -> list[bytes]:
        with lmdb.open(str(path), subdir=path.is_dir(), lock=False, readonly=True, max_dbs=2) as made:
            database = made.open_db(name, create=False) if name else None
            with made.begin(db=database) as transaction:
                return [value for _, value in transaction.cursor()]

    return read


# --- tar -------------------------------------------------------------------------------------------------------------


def tar_writer(kind: int, folder: str) -> Callable[[Path, Sequence[int]], None]:
    """Samples of two members each, between others that belong to none."""

    def write(path: Path, sizes: Sequence[int]) -> None:
        with tarfile.open(path, "w", format=kind) as archive:
            top = tarfile.TarInfo("folder")
            top.type = tarfile.DIRTYPE
            archive.addfile(top)
            for number, size in enumerate(sizes):
                for extension, body in (("jpg", data(number, size)), ("cls.txt", b"%d" % number)):
                    member = tarfile.TarInfo(f"{folder}/{number:06d}.{extension}")
                    member.size = len(body)
                    member.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1
                    archive.addfile(member, io.BytesIO(body))
                link = tarfile.TarInfo(f"{folder}/{number:06d}.link")
                link.type, link.linkname = tarfile.SYMTYPE, "x" * (90 if kind == tarfile.USTAR_FORMAT else 200)
                archive.addfile(link)

    return write


def tar_read(path: Path) -> list[Pieces]:
    """By WebDataset's reader."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    with path.open("rb") as stream:
        samples = list(group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])))
    return [[sample["jpg"], sample["cls.txt"]] for sample in samples]


def tar_decode(_: int, pieces: Pieces) -> Pieces:
    # The first member may have no bytes, and then it has no extent.
    return pieces if len(pieces) == 2 else [b"", *pieces]


def tar_read_members(path: Path) -> list[bytes]:
    with tarfile.open(path) as archive:
        members = [archive.extractfile(member) for member in archive if member.isreg()]
        return [member.read() for member in members if member is not None]


# --- TFRecord --------------------------------------------------------------------------------------------------------


# The package brings torch, which takes seconds: only tests that use it wait for that.


def tfrecord_checksum(data: bytes) -> bytes:
    """Masked CRC32C, as the package writes it: its `write` takes features only."""
    import tfrecord

    return tfrecord.TFRecordWriter.masked_crc(data)


def tfrecord_write(path: Path, sizes: Sequence[int]) -> None:
    with path.open("wb") as file:
        for number, size in enumerate(sizes):
            length = size.to_bytes(8, "little")
            body = data(number, size)
            file.write(length + tfrecord_checksum(length) + body + tfrecord_checksum(body))


def tfrecord_read(path: Path) -> list[bytes]:
    from tfrecord import reader

    return [bytes(record) for record in reader.tfrecord_iterator(str(path))]


# --- NumPy and HDF5: rows of one size --------------------------------------------------------------------------------


def rows(count: int, *shape: int) -> Any:
    return np.frombuffer(data(0, 4 * count * int(np.prod(shape))), "<u4").reshape(count, *shape)


def npy_write(path: Path, sizes: Sequence[int]) -> None:
    np.save(path, rows(len(sizes), 3, 5))


def npy_read(path: Path) -> list[bytes]:
    return [row.tobytes() for row in np.load(path)]


def npz_write(path: Path, sizes: Sequence[int]) -> None:
    np.savez(path, x=rows(len(sizes), 7), other=np.zeros(3), y=np.arange(len(sizes)))


def npz_read(path: Path) -> list[Pieces]:
    with np.load(path) as arrays:
        return [[x.tobytes(), y.tobytes()] for x, y in zip(arrays["x"], arrays["y"], strict=True)]


def hdf5_writer(user_block: int = 0, **options: Any) -> Callable[[Path, Sequence[int]], None]:
    def write(path: Path, sizes: Sequence[int]) -> None:
        with h5py.File(path, "w", userblock_size=user_block) as file:
            file.create_dataset("g/x", data=rows(len(sizes), 6), **options)
            file["y"] = np.arange(len(sizes))

    return write


def hdf5_read(path: Path) -> list[Pieces]:
    with h5py.File(path) as file:
        return [[x.tobytes(), y.tobytes()] for x, y in zip(file["g/x"], file["y"], strict=True)]


def chunked(deep: int, wide: int, unpack: Callable[[bytes], bytes]) -> Callable[[int, Pieces], Pieces]:
    def decode(number: int, pieces: Pieces) -> Pieces:
        blocks = [np.frombuffer(unpack(piece), "<u4").reshape(deep, wide) for piece in pieces[:-1]]
        return [np.concatenate(blocks, axis=1)[number % deep, :6].tobytes(), pieces[-1]]

    return decode


# --- Parquet ---------------------------------------------------------------------------------------------------------

GROUP_ROWS = 100


def parquet_table(rows: int) -> Any:
    """Two columns that may not be null, so that their pages are their values and nothing else."""
    schema = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in "ab"])
    values = np.frombuffer(data(0, 4 * rows), "<i4")
    return pa.table({"a": values, "b": values[::-1]}, schema)


def parquet_write(path: Path, sizes: Sequence[int]) -> None:
    table = parquet_table(GROUP_ROWS * len(sizes))
    parquet.write_table(
        table, path, GROUP_ROWS, compression="none", use_dictionary=False, column_encoding={"a": "PLAIN", "b": "PLAIN"}
    )


def parquet_read(path: Path) -> list[bytes]:
    with parquet.ParquetFile(path) as file:
        return [file.read_row_group(number)["b"].to_numpy().tobytes() for number in range(file.num_row_groups)]


def parquet_decode(_: int, pieces: Pieces) -> bytes:
    (piece,) = pieces  # the last column at its end
    return piece[-4 * GROUP_ROWS :]


# --- A tree of files -------------------------------------------------------------------------------------------------


def tree_write(path: Path, sizes: Sequence[int]) -> None:
    for number, size in enumerate(sizes):
        folder = path / ("a-b", "a", "a/c")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}.bin").write_bytes(data(number, size))


def tree_read(path: Path) -> list[bytes]:
    """In the order of torchvision's ImageFolder."""
    import os

    classes = sorted(entry.name for entry in path.iterdir())
    found = [where for name in classes for where in sorted(os.walk(path / name))]
    return [Path(folder, name).read_bytes() for folder, _, names in found for name in sorted(names)]


CASES = [
    Case("lmdb", "folder", lmdb_writer(), lmdb_reader(), joined),
    Case("lmdb", "file", lmdb_writer(), lmdb_reader(), joined, ".mdb"),
    Case("lmdb", "named", lmdb_writer(b"n"), lmdb_reader(b"n"), joined, options={"database": "n"}),
    Case("tar", "ustar", tar_writer(tarfile.USTAR_FORMAT, "f"), tar_read, tar_decode, ".tar"),
    Case("tar", "gnu", tar_writer(tarfile.GNU_FORMAT, "long/" * 40), tar_read, tar_decode, ".tar"),
    Case("tar", "pax", tar_writer(tarfile.PAX_FORMAT, "long/" * 40), tar_read, tar_decode, ".tar"),
    Case(
        "tar", "members", tar_writer(tarfile.PAX_FORMAT, "f"), tar_read_members, joined, ".tar", {"each_member": True}
    ),
    Case("tfrecord", "plain", tfrecord_write, tfrecord_read, joined, ".tfrecord"),
    Case("npy", "plain", npy_write, npy_read, joined, ".npy"),
    Case("npz", "two arrays", npz_write, npz_read, lambda _, p: p, ".npz", {"dataset": ("x", "y")}),
    Case("hdf5", "contiguous", hdf5_writer(), hdf5_read, lambda _, p: p, ".h5", {"dataset": ("g/x", "y")}),
    Case("hdf5", "user block", hdf5_writer(1 << 20), hdf5_read, lambda _, p: p, ".h5", {"dataset": ("g/x", "y")}),
    Case(
        "hdf5",
        "chunked",
        hdf5_writer(chunks=(3, 4), maxshape=(None, 6)),
        hdf5_read,
        chunked(3, 4, bytes),
        ".h5",
        {"dataset": ("g/x", "y")},
    ),
    Case(
        "hdf5",
        "compressed",
        hdf5_writer(chunks=(3, 6), maxshape=(None, 6), compression="gzip"),
        hdf5_read,
        chunked(3, 6, zlib.decompress),
        ".h5",
        {"dataset": ("g/x", "y")},
    ),
    Case("parquet", "two columns", parquet_write, parquet_read, parquet_decode, ".parquet"),
    Case("tree", "folders", tree_write, tree_read, joined),
]
