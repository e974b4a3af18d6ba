"""Real programs read through the mount what they read from the source: PyTorch, h5py, NumPy, LMDB.

Each is used as its users use it, with nothing told about hfs, and compared with the same on the source itself.
"""

import ctypes
import importlib.util
import mmap
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.fuse.conftest import Show, Shown
from tests.fuse.harness import HfsMount, must
from tests.support.pattern import pattern

AnySource = Callable[[Path], Path]

PYTHON = Path(sys.executable)


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def values(count: int, seed: int = 3) -> np.ndarray:
    return np.frombuffer(pattern(seed, 0, count * 4), np.int32)


@needs("torch")
@needs("PIL")
@pytest.mark.slow
@pytest.mark.in_modes("passthrough", "stateless")
def test_pytorch_dataloader(tmp_path: Path, any_source: AnySource, hfs_mount: HfsMount) -> None:
    """Four worker processes, shuffled, two epochs: the same pictures in the same order; the source is read once."""
    from PIL import Image

    tree = tmp_path / "tree"
    for number in range(120):
        path = tree / f"class-{number % 7}" / f"picture {number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.frombuffer(pattern(number + 1, 0, 24 * 16 * 3), np.uint8).reshape(16, 24, 3)
        Image.fromarray(pixels).resize((192, 128)).save(path, quality=92)
    hfs = hfs_mount(any_source(tree))
    script = Path(__file__).parent / "clients" / "image_training.py"
    direct = must(PYTHON, script, tree, "4", "2").splitlines()
    through = must(PYTHON, script, hfs.path, "4", "2").splitlines()
    assert len(direct) == 240
    assert through == direct
    total = sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    assert hfs.source_bytes() == total


def make_data(tree: Path) -> None:
    tree.mkdir()
    make_hdf5(tree)
    make_arrays(tree)
    make_lmdb(tree)
    make_plain(tree / "plain")
    (tree / "page").write_bytes(pattern(4, 0, 5000))


@pytest.fixture(scope="module")
def shown(show: Show) -> Shown:
    return show(make_data)


def make_hdf5(tree: Path) -> None:
    if importlib.util.find_spec("h5py") is None:
        return
    import h5py

    samples = values(600 * 1000).reshape(600, 1000)
    with h5py.File(tree / "data.h5", "w") as file:
        file.create_dataset("contiguous", data=samples)
        file.create_dataset("chunked", data=samples, chunks=(16, 250))
        file.create_dataset("compressed", data=samples % 100, chunks=(32, 1000), compression="gzip")
        file.create_dataset("group/labels", data=np.arange(600))
        file.attrs["made by"] = "a test"


@needs("h5py")
def test_h5py(shown: Shown) -> None:
    """Contiguous, chunked and compressed datasets, sliced at random."""
    import h5py

    random = np.random.default_rng(5)
    with h5py.File(shown.tree / "data.h5", "r") as source, h5py.File(shown.hfs.path / "data.h5", "r") as mount:
        assert mount.attrs["made by"] == "a test"
        for name in ("contiguous", "chunked", "compressed"):
            for row in random.permutation(600)[:150]:
                assert np.array_equal(mount[name][row], source[name][row]), (name, row)
            wanted = np.sort(random.choice(600, 40, replace=False))
            assert np.array_equal(mount[name][wanted, 100:900], source[name][wanted, 100:900])
            assert np.array_equal(mount[name][:], source[name][:])
        assert np.array_equal(mount["group/labels"][:], np.arange(600))
    shown.prove()


def make_arrays(tree: Path) -> None:
    table = values(700_000)
    table.tofile(tree / "raw.bin")
    np.save(tree / "table.npy", table.reshape(700, 1000))


def test_numpy_memmap(shown: Shown) -> None:
    table, mount = values(700_000), shown.hfs.path
    random = np.random.default_rng(6)

    raw = np.memmap(mount / "raw.bin", dtype=np.int32, mode="r")
    for index in random.integers(0, len(table), 500):
        assert raw[index] == table[index]
    assert np.array_equal(raw, table)

    loaded = np.load(mount / "table.npy", mmap_mode="r")
    for row in random.permutation(700)[:100]:
        assert np.array_equal(loaded[row], table[row * 1000 : (row + 1) * 1000])
    assert np.array_equal(np.load(mount / "table.npy"), table.reshape(700, 1000))
    with pytest.raises(OSError, match="Read-only file system"):
        np.memmap(mount / "raw.bin", dtype=np.int32, mode="r+")
    # A private writable mapping stays private.
    copy = np.memmap(mount / "raw.bin", dtype=np.int32, mode="c")
    copy[:1000] = 0
    assert np.array_equal(np.fromfile(mount / "raw.bin", np.int32), table)
    del raw, loaded, copy
    shown.prove()


def test_shared_mmap_to_the_end_of_the_last_page(shown: Shown) -> None:
    """A shared mapping shows the file, and zeros after its end in the last page, as on any file system."""
    with (
        open(shown.hfs.path / "page", "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:] == pattern(4, 0, 5000)
        # The module clips to the file's size; the page itself is seen through an array over the mapping's memory.
        page = np.frombuffer(mapped, np.uint8)
        address = page.ctypes.data
        del page
        assert ctypes.string_at(address, 8192) == pattern(4, 0, 5000) + bytes(3192)


def make_lmdb(tree: Path) -> None:
    if importlib.util.find_spec("lmdb") is None:
        return
    import lmdb

    with lmdb.open(str(tree / "data.lmdb"), map_size=64 << 20) as environment, environment.begin(write=True) as write:
        for number in range(2000):
            write.put(f"key-{number:06d}".encode(), pattern(number + 1, 0, 100 + number))
    # The lock file of the writer must not stand in for what the mount refuses to make.
    (tree / "data.lmdb" / "lock.mdb").unlink()


@needs("lmdb")
@pytest.mark.parametrize("lock", [True, False])
def test_lmdb_read_only(shown: Shown, *, lock: bool) -> None:
    """With its lock too: LMDB goes on without a lock file only because the mount answers EROFS."""
    import lmdb

    order = np.random.default_rng(7).permutation(2000)
    place = str(shown.hfs.path / "data.lmdb")
    with lmdb.open(place, readonly=True, lock=lock) as environment, environment.begin() as read:
        assert read.stat()["entries"] == 2000
        for number in order:
            assert read.get(f"key-{number:06d}".encode()) == pattern(int(number) + 1, 0, 100 + int(number))
        assert [bytes(key) for key, _ in read.cursor()] == [f"key-{number:06d}".encode() for number in range(2000)]
    shown.prove()


def make_plain(tree: Path) -> None:
    for number in range(50):
        path = tree / f"dir-{number % 5}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pattern(number + 1, 0, number * 5000))
    (tree / "link").symlink_to("dir-0/file-5")


def test_plain_tools(tmp_path: Path, shown: Shown) -> None:
    """cp -a, tar, find, du and cmp, which people try first."""
    tree, mount = shown.tree / "plain", shown.hfs.path / "plain"
    find = ("-type", "f", "-newermt", "1980-01-01", "-printf", "%P %s %m %T@\n")
    assert must("find", mount, *find) == must("find", tree, *find)
    must("cp", "-a", mount, tmp_path / "copy")
    must("diff", "-r", "--no-dereference", tree, tmp_path / "copy")
    assert must("du", "-sb", mount).split()[0] == must("du", "-sb", tree).split()[0]
    must("tar", "-C", mount, "-cf", tmp_path / "tree.tar", ".")
    must("tar", "-C", tree, "--compare", "-f", tmp_path / "tree.tar")
    shown.prove()
