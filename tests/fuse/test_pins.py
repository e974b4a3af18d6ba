"""`hfs cache warm --pin` on real mounts: what is pinned stays, whatever wants its room; reads of the rest go on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import Hfs, HfsMount, here, must_here
from tests.support.pattern import pattern

SIZE = 100_000
COUNT = 40
LARGE = 3_000_000


def source_at(tmp_path: Path, number: int = 0) -> Path:
    """Files of 100 kB in two folders, and a large one."""
    source = tmp_path / f"source-{number}"
    for folder in ("a", "b"):
        (source / folder).mkdir(parents=True)
        for name in range(COUNT):
            (source / folder / str(name)).write_bytes(content(number, folder, name))
    (source / "large").write_bytes(pattern(7, 0, LARGE))
    return source


def content(number: int, folder: str, name: int) -> bytes:
    return pattern(1000 * number + 100 * (folder == "b") + name + 1, 0, SIZE)


def assert_right(hfs: Hfs, number: int = 0) -> None:
    for folder in ("a", "b"):
        for name in range(COUNT):
            assert (hfs.path / folder / str(name)).read_bytes() == content(number, folder, name)


def last(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def pinned(hfs: Hfs) -> set[str]:
    """Names of what is pinned, as `hfs cache list` says."""
    rows = [json.loads(line) for line in hfs.cache_command("list", "--json", hfs.path).stdout.splitlines()]
    return {os.path.relpath(row["path"], hfs.path) for row in rows[:-1] if row["pinned"]}


def folder_of(name: str) -> set[str]:
    return {f"{name}/{number}" for number in range(COUNT)}


@pytest.mark.parametrize("eviction", ["lru", "fill-once"])
def test_what_is_pinned_stays_whatever_else_is_read(tmp_path: Path, hfs_mount: HfsMount, eviction: str) -> None:
    """Restarts, a crash and a full cache included. The second pin of a file reads nothing."""
    hfs = hfs_mount(source_at(tmp_path), "--eviction", eviction, cache_size="9M")
    assert last(hfs.cache_command("warm", "--json", hfs.path / "a").stdout)["files"] == COUNT
    read = hfs.source_bytes()
    done = last(hfs.cache_command("warm", "--pin", "--json", hfs.path / "a", hfs.path / "large").stdout)
    assert (done["files"], done["skipped"], done["pinned_files"]) == (COUNT + 1, COUNT, COUNT + 1)
    assert hfs.source_bytes() - read <= LARGE + 4096, "what was staged is only marked"
    everything = folder_of("a") | {"large"}
    for _ in range(2):
        assert_right(hfs)
        assert pinned(hfs) == everything
    hfs.crash()
    assert_right(hfs)
    assert pinned(hfs) == everything
    assert "evicted 0 files" in hfs.cache_command("evict", "--older-than", "1s", hfs.path / "large").stdout
    hfs.umount()
    hfs.mount()
    assert_right(hfs)
    assert pinned(hfs) == everything
    status = hfs.status()["staged"]
    assert status["pinned_files"] == COUNT + 1
    assert status["pinned_bytes"] >= COUNT * SIZE + LARGE
    assert hfs.cache_command("evict", hfs.path / "a" / "0").returncode == 0
    assert must_here("cache", "unpin", hfs.path / "a").startswith(f"unpinned {COUNT - 1} files")
    assert pinned(hfs) == {"large"}


def test_more_than_fits_is_pinned_as_far_as_it_fits(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """The rest is named and read from the source; nothing waits for room that never comes."""
    hfs = hfs_mount(source_at(tmp_path), "--eviction", "lru", cache_size="5M")
    warm = hfs.cache_command("warm", "--pin", "--json", hfs.path / "a", hfs.path / "b")
    done = last(warm.stdout)
    assert warm.returncode == 3
    # How many is a matter of how soon they are in the index: until then the next may take their room.
    assert 0 < done["pinned_files"] == done["files"] == len(pinned(hfs)) <= 50
    assert done["failed"] == 2 * COUNT - done["files"]
    before = set(pinned(hfs))
    done = last(hfs.cache_command("warm", "--pin", "--json", hfs.path / "a", hfs.path / "b").stdout)
    assert before <= set(pinned(hfs))
    assert len(pinned(hfs)) == done["pinned_files"] <= 50
    assert_right(hfs)
    again = hfs.cache_command("warm", "--json", hfs.path / "large")
    assert again.returncode == 1
    assert "of it pinned" in again.stdout
    assert (hfs.path / "large").read_bytes() == pattern(7, 0, LARGE)
    assert len(pinned(hfs)) == done["pinned_files"]


def test_neighbours_of_the_same_root_get_none_of_it(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Neither while its mount runs nor when it is idle; and `evict --to` leaves it."""
    cache = tmp_path / "cache"
    first = hfs_mount(source_at(tmp_path, 0), "--eviction", "lru", cache=cache, cache_size="12M")
    assert last(first.cache_command("warm", "--pin", "--json", first.path / "a").stdout)["pinned_files"] == COUNT
    assert first.cache_command("warm", first.path / "b").returncode == 0
    second = hfs_mount(source_at(tmp_path, 1), "--eviction", "lru", cache=cache, cache_size="12M")
    second.cache_command("warm", second.path)
    assert_right(second, 1)
    assert pinned(first) == folder_of("a")
    first.umount()
    second.cache_command("warm", second.path)
    assert_right(second, 1)
    second.umount()
    du = json.loads(must_here("cache", "du", "--cache", cache, "--json"))
    assert sorted(entry["pinned_bytes"] >= COUNT * SIZE for entry in du["caches"]) == [False, True]
    too_much = here("cache", "evict", "--cache", cache, "--to", "0")
    assert too_much.returncode == 1
    assert "hfs cache unpin" in too_much.stderr
    listed = last(must_here("cache", "list", "--cache", cache, "--json"))
    assert listed["files"] == listed["pinned"] == COUNT
    assert must_here("cache", "unpin", "--cache", cache, "--all").startswith(f"unpinned {COUNT} files")
    assert must_here("cache", "evict", "--cache", cache, "--to", "0").startswith(f"evicted {COUNT} files")
    du = json.loads(must_here("cache", "du", "--cache", cache, "--json"))
    assert [entry["pinned_bytes"] for entry in du["caches"]] == [0, 0]


def test_a_file_that_changes_loses_its_pin(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = source_at(tmp_path)
    hfs = hfs_mount(source, "-o", "ttl=1d", cache_size="20M")
    assert hfs.cache_command("warm", "--pin", hfs.path / "a").returncode == 0
    (source / "a" / "0").write_bytes(pattern(99, 0, SIZE))
    (source / "a" / "1").unlink()
    must_here("refresh", hfs.path / "a")
    assert (hfs.path / "a" / "0").read_bytes() == pattern(99, 0, SIZE)
    assert not (hfs.path / "a" / "1").exists()
    assert pinned(hfs) <= folder_of("a") - {"a/1"}
    assert len(pinned(hfs)) >= COUNT - 2
    assert hfs.cache_command("warm", "--pin", hfs.path / "a").returncode == 0
    assert pinned(hfs) == folder_of("a") - {"a/1"}
