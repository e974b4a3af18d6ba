"""Several sources below one cache root of one size: idle caches go first, then shares settle; nobody fails a read."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

from hfs.mountd.ledger import CacheRoot, Ledger, Quota, ServedSource
from hfs.mountd.ledger.record import write_grant
from tests.fuse.harness import Hfs, HfsMount, drop_pages, here, must_here
from tests.fuse.injection import SETTLED_CLOCK, injected, setting
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

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
    listed = must_here("cache", "list", "--cache", cache, "--json").splitlines()
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


def staged(cache: Path) -> int:
    listed = must_here("cache", "list", "--cache", cache, "--json").splitlines()
    return int(json.loads(listed[-1])["complete"])


def test_what_is_there_is_shown_and_evicted_by_source_age_and_size(tmp_path: Path, hfs_mount: HfsMount) -> None:
    cache = tmp_path / "cache"
    sources = [source_at(tmp_path, number) for number in range(3)]
    for source in sources:
        hfs = hfs_mount(source, cache=cache)
        assert warm(hfs) == COUNT
        if source is not sources[2]:
            hfs.umount()
    evict = ("cache", "evict", "--cache", cache)
    shown = json.loads(must_here("cache", "du", "--cache", cache, "--json"))
    assert {(entry["source"], entry["running"]) for entry in shown["caches"]} == {
        (str(source), source is sources[2]) for source in sources
    }
    assert all(
        COUNT * SIZE <= entry["used_bytes"] < 2 * COUNT * SIZE for entry in shown["caches"] if not entry["running"]
    )
    assert "mnt-2" in must_here("cache", "du", "--cache", cache)

    assert "evicted 0 files" in must_here("cache", "evict", "--older-than", "1h", hfs.path)
    too_much = here(*evict, "--to", "0")
    assert too_much.returncode == 1
    assert "are in caches with daemons" in too_much.stderr
    hfs.umount()
    assert staged(cache) == COUNT
    assert "evicted 0 files" in must_here(*evict, "--older-than", "1h")
    unknown = here(*evict, "--source", tmp_path)
    assert unknown.returncode == 2
    assert "hfs cache du lists them" in unknown.stderr
    for wrong in (("--to", "10", "--all"), ("--to", "much"), ("--older-than", "old")):
        assert here(*evict, *wrong).returncode == 2
    assert must_here(*evict, "--source", sources[2]).startswith(f"evicted {COUNT} files")
    shown = json.loads(must_here("cache", "du", "--cache", cache, "--json"))
    assert shown["used_bytes"] == 0


def test_a_root_is_made_smaller_by_what_was_used_longest_ago(tmp_path: Path, hfs_mount: HfsMount) -> None:
    cache = tmp_path / "cache"
    for number in range(2):
        hfs = hfs_mount(source_at(tmp_path, number), cache=cache)
        assert warm(hfs) == COUNT
        hfs.umount()
        root_fd = os.open(cache, os.O_RDONLY)
        ledger = Ledger(root_fd)
        os.close(root_fd)
        (newest,) = (entry for entry in ledger.listed() if entry.grant.used_s > 1000)
        with_time = Quota(newest.grant.used_bytes, newest.grant.used_bytes, number)
        with (cache / "ledger" / newest.name).open("r+b") as record:
            write_grant(record.fileno(), with_time)
        ledger.close()
    must_here("cache", "evict", "--cache", cache, "--to", str(COUNT * SIZE))
    assert taken_bytes(cache) <= COUNT * SIZE
    shown = json.loads(must_here("cache", "du", "--cache", cache, "--json"))["caches"]
    by_source = {entry["source"]: entry["used_bytes"] for entry in shown}
    assert by_source[str(tmp_path / "source-0")] == 0
    assert by_source[str(tmp_path / "source-1")] > 0


def test_a_dry_run_says_what_a_warm_would_read_and_reads_nothing(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = source_at(tmp_path, 0)
    (source / "large").write_bytes(pattern(9, 0, 300_000))
    hfs = hfs_mount(source, cache_size="3M")
    (hfs.path / "1").read_bytes()
    estimate = ("cache", "warm", "--dry-run")
    done = here(*estimate, "--json", hfs.path)
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["files"], found["bytes"], found["failed"]) == (COUNT + 1, COUNT * SIZE + 300_000, 0)
    assert found["missing_bytes"] == COUNT * SIZE + 300_000 - found["staged"] * SIZE
    assert found["room_bytes"] >= found["missing_bytes"] > found["free_bytes"] > 2 << 20
    assert "fit: stops at " in here(*estimate, hfs.path).stdout
    before = hfs.source_bytes()
    assert "needs 300 kB, all of it fits" in must_here(*estimate, hfs.path / "large")
    assert hfs.source_bytes() == before
    must_here("cache", "warm", hfs.path / "large")
    assert "1 file of 300 kB, 1 of them staged; nothing to read" in must_here(*estimate, hfs.path / "large")
    absent = here(*estimate, hfs.path / "absent")
    assert absent.returncode == 3
    assert "absent: " in absent.stderr


def test_a_dry_run_says_how_long_by_the_warms_before(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Files of both kinds; before the first warm nobody knows."""
    source = tmp_path / "source"
    for folder in ("first", "second"):
        (source / folder).mkdir(parents=True)
        for name in range(200):
            (source / folder / str(name)).write_bytes(pattern(name + 1, 0, 2000))
        (source / folder / "large").write_bytes(pattern(len(folder), 0, 4_000_000))
    hfs = hfs_mount(source, cache_size="100M")

    def told(*paths: Path) -> Any:
        return json.loads(must_here("cache", "warm", "--dry-run", "--json", *paths))

    before = told(hfs.path)
    assert (before["files"], before["bytes"], before["seconds"]) == (402, 8_800_000, None)
    assert hfs.source_bytes() == 0
    assert hfs.cache_command("warm", hfs.path / "first").returncode == 0
    left = told(hfs.path)
    assert (left["missing_bytes"], left["staged"]) == (4_400_000, 201)
    assert left["seconds"] > 0
    assert told(hfs.path / "first")["seconds"] == 0.0
    assert hfs.source_bytes() == 4_400_000, "what is looked at is not read"


def test_what_finds_no_room_is_read_once_all_the_same(
    tmp_path: Path, hfs_mount: HfsMount, slow_source: SlowSource
) -> None:
    """Two daemons start at a time: one has taken all of the size, and cannot be asked yet. What the other fetches ahead
    meanwhile waits in memory for its readers, and when there is room it is staged."""
    count, size, backing = 400, 43_000, tmp_path / "source"
    backing.mkdir()
    for name in range(count):
        (backing / str(name)).write_bytes(pattern(name + 1, 0, size))
    source = slow_source(backing, "lustre")
    (tmp_path / "cache").mkdir(mode=0o700)
    with contextlib.closing(CacheRoot(str(tmp_path / "cache"))) as root:
        name = f"{os.geteuid()}-{1:016x}"
        first = root.ledger.register(name, ServedSource(source=b"/first", device=1, inode=2), 64 << 20)
        assert first.take(0, 64 << 20).granted_bytes == 64 << 20
        env = injected(*SETTLED_CLOCK, setting("hfs.mountd.fetch.sibling_watch:FIRST_S", 0.0))
        hfs = hfs_mount(source.path, "-o", "buffer=8M", chunk_bytes=256 << 10, cache_size="64M", env=env)
        order = random.Random(1).sample(range(count), count)

        def read() -> None:
            for name in order:
                assert (hfs.path / str(name)).read_bytes() == pattern(name + 1, 0, size)

        read()
        status = hfs.status()
        assert status["staged"]["files"] == 0
        assert status["ahead"]["sibling_files"] > 10
        assert source.counters()["read_bytes"] == count * size
        first.give_back(0, 0)
        while not hfs.status()["staged"]["files"]:  # its room is found by the next file that needs some
            for name_of_file in order:
                drop_pages(hfs.path / str(name_of_file))
            read()
        first.close()
