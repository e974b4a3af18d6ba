"""Layouts of LMDB: what py-lmdb reads is where they say, whatever the order of the keys; damaged files are refused."""

import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfs.layouts import lmdb as lmdb_builder
from hfs.layouts import reading
from hfs.layouts.keys import positions
from hfs.layouts.layout import Layout, LayoutError
from hfs.layouts.lmdb import build_lmdb
from hfs.mountd.core.errors import ConfigError
from tests.hfs.layouts.layout_data import sample_bytes
from tests.support.examples import examples

Records = Sequence[tuple[bytes, bytes]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, and runs of pages that are longer than one, in small files."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 3 * 4096)


def write(path: Path, records: Records, database: bytes | None = None, **flags: bool) -> None:
    """In several transactions, so that pages of older ones are left over in the file."""
    with lmdb.open(str(path), map_size=1 << 28, max_dbs=4, subdir=not path.suffix, lock=False, sync=False) as made:
        opened = made.open_db(database, **flags) if database or flags else None
        for first in range(0, len(records), 100):
            with made.begin(write=True, db=opened) as transaction:
                for key, value in records[first : first + 100]:
                    transaction.put(key, value)


def read(path: Path, database: bytes | None = None) -> Records:
    with lmdb.open(str(path), readonly=True, lock=False, max_dbs=4, subdir=path.is_dir()) as made:
        opened = made.open_db(database, create=False) if database else None
        with made.begin(db=opened) as transaction:
            return list(transaction.cursor())


def some_records(count: int, largest: int, seed: int = 0) -> Records:
    """Keys in no order; sizes from one to the largest, half of them small."""
    chance = random.Random(seed)
    sizes = [chance.randint(1, chance.choice([largest, min(largest, 50)])) for _ in range(count)]
    records = [(b"key %d" % i, chance.randbytes(size)) for i, size in enumerate(sizes)]
    chance.shuffle(records)
    return records


@pytest.mark.parametrize(("count", "largest"), [(1, 10), (2, 9000), (400, 5000), (2000, 40), (300, 60_000)])
def test_values_are_where_the_layout_says(tmp_path: Path, count: int, largest: int) -> None:
    write(tmp_path / "db", some_records(count, largest))
    records = read(tmp_path / "db")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "db").iterdir()}
    layout = build_lmdb(str(tmp_path / "db"), str(tmp_path), keys=True)
    assert sample_bytes(layout, tmp_path) == [value for _, value in records]
    assert layout.files == [b"db/data.mdb"]
    np.testing.assert_array_equal(positions(layout, [key for key, _ in records]), np.arange(count))
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "db").iterdir()} == before


def test_several_files_and_keys(tmp_path: Path) -> None:
    write(tmp_path / "a.mdb", [(b"x", b"1"), (b"y", b"22")])
    write(tmp_path / "b", [(b"z", b"333")])
    layout = build_lmdb([str(tmp_path / "b"), str(tmp_path / "a.mdb")], str(tmp_path), keys=True)
    assert layout.files == [b"b/data.mdb", b"a.mdb"]
    layout.save(str(tmp_path / "l"))
    layout = Layout.load(str(tmp_path / "l"))
    assert sample_bytes(layout, tmp_path) == [b"333", b"1", b"22"]
    assert positions(layout, ["y", b"z", "x"]).tolist() == [2, 0, 1]
    with pytest.raises(KeyError, match="nothing"):
        positions(layout, ["x", "nothing"])
    with pytest.raises(LayoutError, match="has no keys"):
        positions(build_lmdb(str(tmp_path / "b"), str(tmp_path)), ["z"])


def test_named_databases_must_be_named(tmp_path: Path) -> None:
    records = some_records(300, 3000)
    write(tmp_path / "db", records, b"train")
    write(tmp_path / "db", records[:1], b"val")
    layout = build_lmdb(str(tmp_path / "db"), str(tmp_path), database="train")
    assert sample_bytes(layout, tmp_path) == [value for _, value in sorted(records)]
    with pytest.raises(ConfigError, match=r"db/data.mdb: it holds named databases: say which .* train, val"):
        build_lmdb(str(tmp_path / "db"), str(tmp_path))
    with pytest.raises(LayoutError, match="no database 'test'; there are train, val"):
        build_lmdb(str(tmp_path / "db"), str(tmp_path), database="test")


@pytest.mark.parametrize("fixed", [False, True])
def test_a_key_with_several_values(tmp_path: Path, fixed: bool) -> None:
    chance = random.Random(0)
    counts = [1, 2, 900, 1, 4000, 3, 30]  # in the node, in a page in the node, in a tree of its own
    records = [
        (b"%d" % key, chance.randbytes(12 if fixed else chance.randint(1, 60)))
        for key, count in enumerate(counts)
        for _ in range(count)
    ]
    chance.shuffle(records)
    write(tmp_path / "db", records, b"d", dupsort=True, dupfixed=fixed)
    expected = read(tmp_path / "db", b"d")
    layout = build_lmdb(str(tmp_path / "db"), str(tmp_path), database="d", keys=True)
    assert sample_bytes(layout, tmp_path) == [value for _, value in expected]
    first = [key for key, _ in expected].index(b"4")
    assert positions(layout, ["4"]).tolist() == [first]


def test_databases_without_samples(tmp_path: Path) -> None:
    write(tmp_path / "none", [])
    with pytest.raises(LayoutError, match=r"none/data\.mdb: no samples in it"):
        build_lmdb(str(tmp_path / "none"), str(tmp_path))
    write(tmp_path / "empty", [(b"a", b"")])
    with pytest.raises(LayoutError, match="none of its samples has a byte"):
        build_lmdb(str(tmp_path / "empty"), str(tmp_path))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.binary(min_size=1, max_size=300), st.binary(max_size=9000), min_size=1))
def test_any_records(tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes]) -> None:
    path = tmp_path_factory.mktemp("any")
    write(path / "db", [*records.items(), (b"\0", b"x")])
    layout = build_lmdb(str(path / "db"), str(path))
    assert sample_bytes(layout, path) == [value for _, value in read(path / "db")]


# --- What is no database, or is one no more --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("count", "largest"), [(100, 3000), (300, 100)])
def test_a_damaged_file_gives_no_extent_outside_it(tmp_path: Path, count: int, largest: int) -> None:
    # At once, so that few pages are left over.
    with (
        lmdb.open(str(tmp_path / "x.mdb"), map_size=1 << 28, subdir=False, lock=False) as made,
        made.begin(write=True) as t,
    ):
        t.cursor().putmulti(some_records(count, largest))
    whole = bytearray((tmp_path / "x.mdb").read_bytes())
    right = sample_bytes(build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path)), tmp_path)
    chance = random.Random(1)
    tree = [
        at
        for at in range(0, len(whole), 4096)
        if struct.unpack_from("<H", whole, at + 10)[0] & 0xB and struct.unpack_from("<Q", whole, at)[0] == at // 4096
    ]
    refused = same = 0
    for _ in range(150):
        at = chance.choice(tree) + chance.choice([*range(8), 10, 12, 13, 14, 15, *range(16, 40), *range(3900, 4096)])
        bit = 1 << chance.randrange(8)
        whole[at] ^= bit
        (tmp_path / "x.mdb").write_bytes(whole)
        try:
            found = sample_bytes(build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path)), tmp_path)
            same += found == right
        except LayoutError as error:
            refused += 1
            assert f"{tmp_path}/x.mdb: " in str(error)
        whole[at] ^= bit
    assert refused > 20
    assert same > 15  # a key, a value, a page that is left over


@pytest.mark.parametrize("target", ["itself", "the meta page", "beyond the end"])
def test_page_numbers_that_lead_nowhere(tmp_path: Path, target: str) -> None:
    write(tmp_path / "x.mdb", some_records(600, 100))
    data = bytearray((tmp_path / "x.mdb").read_bytes())
    root = root_of(data)
    node = node_of(data, root, 0)
    to = {"itself": root, "the meta page": 1, "beyond the end": len(data) // 4096}[target]
    struct.pack_into("<HHH", data, node, to & 0xFFFF, to >> 16, 0)
    (tmp_path / "x.mdb").write_bytes(data)
    with pytest.raises(LayoutError, match=rf"x.mdb: damaged: page {to} at offset {to * 4096:,} "):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))


def node_of(data: bytearray, page: int, number: int) -> int:
    """Where a node of a page begins in the file."""
    return page * 4096 + int(struct.unpack_from("<H", data, page * 4096 + 16 + 2 * number)[0])


def root_of(data: bytearray) -> int:
    at = max((struct.unpack_from("<Q", data, at + 144)[0], at) for at in (0, 4096))[1]
    return int(struct.unpack_from("<Q", data, at + 128)[0])


def test_pointers_that_lead_to_what_another_has(tmp_path: Path) -> None:
    path = tmp_path / "x.mdb"
    write(path, some_records(600, 100))
    data = bytearray(path.read_bytes())
    root = root_of(data)
    first, second = node_of(data, root, 0), node_of(data, root, 1)
    data[first : first + 4] = data[second : second + 4]
    path.write_bytes(data)
    with pytest.raises(LayoutError, match=r"x.mdb: damaged: page \d+ at offset [0-9,]+ is pointed to twice"):
        build_lmdb(str(path), str(tmp_path))
    path.unlink()
    write(path, [(b"%02d" % i, b"x" * 5000) for i in range(20)])  # one leaf, values on pages of their own
    data = bytearray(path.read_bytes())
    root = root_of(data)
    first, second = node_of(data, root, 3), node_of(data, root, 7)
    data[first + 10 : first + 18] = data[second + 10 : second + 18]
    path.write_bytes(data)
    with pytest.raises(LayoutError, match=r"x.mdb: damaged: records 3 and 7 share bytes at offset [0-9,]+"):
        build_lmdb(str(path), str(tmp_path))


@pytest.mark.parametrize(("word", "value"), [(0, 4000), (3, 5000)], ids=["data", "key"])
def test_nodes_that_reach_beyond_their_page(tmp_path: Path, word: int, value: int) -> None:
    path = tmp_path / "x.mdb"
    write(path, some_records(20, 100))
    data = bytearray(path.read_bytes())
    root = root_of(data)
    struct.pack_into("<H", data, node_of(data, root, 4) + 2 * word, value)
    path.write_bytes(data)
    with pytest.raises(LayoutError, match=rf"page {root} at offset {root * 4096:,} is no leaf page"):
        build_lmdb(str(path), str(tmp_path))


def test_a_writer_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its time stands still, as that of a file that is written through a map may."""
    path = tmp_path / "x.mdb"
    write(path, some_records(20, 100))
    found = path.stat()

    def meanwhile(*_: object) -> None:
        write(path, [(b"another", b"1")])
        os.truncate(path, found.st_size)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    monkeypatch.setattr(lmdb_builder, "_check_apart", meanwhile)
    with pytest.raises(LayoutError, match=r"x\.mdb: changed while it was read"):
        build_lmdb(str(path), str(tmp_path))


def test_two_keys_of_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.mdb", [(b"a", b"1"), (b"b", b"2")])
    monkeypatch.setattr(lmdb_builder, "hashed", lambda keys: np.zeros(len(list(keys)), np.uint64))
    with pytest.raises(LayoutError, match=r"x\.mdb: two keys have the same hash: build the layout without keys"):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path), keys=True)


def test_a_number_of_records_that_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "x.mdb", some_records(30, 100))
    data = bytearray((tmp_path / "x.mdb").read_bytes())
    struct.pack_into("<Q", data, 4096 + 120, 31)
    struct.pack_into("<Q", data, 120, 31)
    (tmp_path / "x.mdb").write_bytes(data)
    with pytest.raises(LayoutError, match="30 records, and its meta page says 31"):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"", "not an LMDB file"), (b"PAR1" * 5000, "not an LMDB file"), (bytes(100_000), "not an LMDB file")],
    ids=["empty", "text", "zeros"],
)
def test_what_is_no_lmdb_file(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "x.mdb").write_bytes(content)
    with pytest.raises(LayoutError, match=rf"x.mdb: {fault}"):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LayoutError, match="pipe: not a regular file"):
        build_lmdb(str(tmp_path / "pipe"), str(tmp_path))
    with pytest.raises(LayoutError, match="none: cannot be opened"):
        build_lmdb(str(tmp_path / "none"), str(tmp_path))
    with pytest.raises(LayoutError, match=r"data\.mdb: cannot be opened"):
        build_lmdb(str(tmp_path), str(tmp_path))


def test_another_data_version(tmp_path: Path) -> None:
    write(tmp_path / "x.mdb", some_records(3, 100))
    data = bytearray((tmp_path / "x.mdb").read_bytes())
    for at in (4096, 0):
        struct.pack_into("<I", data, at + 20, 999)
        (tmp_path / "x.mdb").write_bytes(data)
        with pytest.raises(LayoutError, match=rf"x.mdb: LMDB data version 999 at offset {at + 20}; known is 1"):
            build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))
    data[16:20] = bytes(reversed(data[16:20]))
    (tmp_path / "x.mdb").write_bytes(data)
    with pytest.raises(LayoutError, match="of a big-endian machine"):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))


def test_an_older_transaction_is_never_taken(tmp_path: Path) -> None:
    write(tmp_path / "x.mdb", some_records(300, 100))
    data = bytearray((tmp_path / "x.mdb").read_bytes())
    data[4096 + 16] ^= 1
    (tmp_path / "x.mdb").write_bytes(data)
    with pytest.raises(LayoutError, match=r"x.mdb: damaged: no meta page at offset 4096"):
        build_lmdb(str(tmp_path / "x.mdb"), str(tmp_path))
