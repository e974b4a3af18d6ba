"""Several sources below one cache root of one size: idle caches go first, then shares settle; nobody fails a read."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.fuse.harness import Hfs, hfs_command, must, own_cache
from tests.support.pattern import pattern

HfsMount = Callable[..., Hfs]
SIZE = 100_000
COUNT = 40
ROOT = "5M"  # of the four megabytes of one source and a little


def source_at(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"source-{number}"
    folder.mkdir()
    for name in range(COUNT):
        (folder / str(name)).write_bytes(pattern(100 * number + name + 1, 0, SIZE))
    return folder


def warm(hfs: Hfs) -> int:
    """Files that are staged afterwards, all of which were asked for."""
    done = hfs.cache_command("warm", "--json", str(hfs.path))
    return int(json.loads(done.stdout.splitlines()[-1])["files"])


def assert_right(hfs: Hfs, number: int) -> None:
    for name in range(COUNT):
        assert (hfs.path / str(name)).read_bytes() == pattern(100 * number + name + 1, 0, SIZE)


def taken_bytes(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.glob("*/objects/*/*"))


def test_an_idle_cache_makes_room_for_a_new_source(tmp_path: Path, hfs_mount: HfsMount) -> None:
    cache = tmp_path / "cache"
    first = hfs_mount(source_at(tmp_path, 0), cache=cache, cache_size=ROOT)
    assert warm(first) == COUNT
    first.umount()
    second = hfs_mount(source_at(tmp_path, 1), cache=cache, cache_size=ROOT)
    assert warm(second) == COUNT
    assert taken_bytes(cache) <= 5 << 20
    assert_right(second, 1)
    second.umount()
    listed = must(hfs_command(), "cache", "list", "--cache", cache, "--json").splitlines()
    assert COUNT <= json.loads(listed[-1])["complete"] < 2 * COUNT


def test_two_that_run_settle_on_a_share_each(tmp_path: Path, hfs_mount: HfsMount) -> None:
    cache = tmp_path / "cache"
    first = hfs_mount(source_at(tmp_path, 0), cache=cache, cache_size=ROOT)
    assert warm(first) == COUNT
    second = hfs_mount(source_at(tmp_path, 1), cache=cache, cache_size=ROOT)
    staged = warm(second)
    assert 15 <= staged <= 25
    assert taken_bytes(cache) <= 5 << 20
    for hfs, number in ((first, 0), (second, 1)):
        assert_right(hfs, number)
    assert taken_bytes(cache) <= 5 << 20


def test_a_cache_of_an_earlier_release_goes_on(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """It lay in the root itself."""
    cache = tmp_path / "cache"
    hfs = hfs_mount(source_at(tmp_path, 0), cache=cache)
    assert warm(hfs) == COUNT
    hfs.umount()
    moved = own_cache(cache)
    for name in ("index.sqlite", "objects"):
        (moved / name).rename(cache / name)
    for path in moved.iterdir():
        path.unlink()
    moved.rmdir()
    (cache / "ledger" / moved.name).unlink()
    listed = must(hfs_command(), "cache", "list", "--cache", cache, "--json").splitlines()
    assert json.loads(listed[-1])["complete"] == COUNT
    hfs.mount()
    assert_right(hfs, 0)
    assert hfs.source_bytes() == 0
    assert own_cache(cache) == moved
