"""`hfs cache` on a directory without a mount: a cache made by the real staging, without a daemon."""

import json
from pathlib import Path

import pytest
import trio

from hfs.mountd.cache import CacheSettings, open_cache
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.errors import CacheInUse, ConfigError
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.wire.protocol import Progress, Rows
from hfs.mounting import offline
from tests.hfs.cli.running import hfs
from tests.support.pattern import pattern

CHUNK_BYTES = 65536
SIZES = {b"a": 10, b"d/b\xe9": 3 * CHUNK_BYTES + 1}


async def stage(path: Path) -> None:
    """All of a, the first and last chunks of d/b."""
    async with open_cache(str(path), CacheSettings(1 << 30, chunk_bytes=CHUNK_BYTES), metrics=Metrics()) as staging:
        await staging.ready.wait()
        for seed, (name, size) in enumerate(SIZES.items(), start=1):
            file = await staging.files.get(Version("0" * 16, seed, size, 0, 0), name)
            for index in sorted({0, file.present.count - 1}):
                extent = file.chunk(index)
                data = memoryview(pattern(seed, extent.start, extent.size))
                assert staging.writer.put_nowait(file, index, data)
        await staging.committer.wait_committed()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    trio.run(stage, tmp_path / "cache")
    return tmp_path / "cache"


def listed(cache: Path, *paths: str) -> dict[str, int]:
    rows = [json.loads(line) for line in hfs("cache", "list", "--cache", cache, "--json", *paths).stdout.splitlines()]
    assert rows.pop()["final"]
    return {row["path"]: row["staged_bytes"] for row in rows}


def test_list(cache: Path) -> None:
    assert listed(cache) == {"a": 10, "d/b\udce9": CHUNK_BYTES + 1}
    assert listed(cache, "d") == listed(cache, "/d/") == {"d/b\udce9": CHUNK_BYTES + 1}
    assert listed(cache, "absent") == {}
    text = hfs("cache", "list", "--cache", cache).stdout.splitlines()
    assert text[0].split() == ["10", "10", "complete", "a"]
    assert text[1].split() == ["65,537", "196,609", "33%", "d/b\\udce9"]


def test_check(cache: Path) -> None:
    news: list[Progress | Rows] = []
    result = offline.check(str(cache), [], news.append)
    assert (result.files, result.bytes, result.failed, len(news)) == (2, 10 + CHUNK_BYTES + 1, 0, 2)
    assert offline.check(str(cache), [b"a"], news.append).files == 1


def test_check_finds_what_is_damaged(cache: Path) -> None:
    (damaged,) = [path for path in (cache / "objects").rglob("*") if path.is_file() and path.stat().st_size == 10]
    damaged.write_bytes(b"x" * 10)
    result = hfs("cache", "check", "--cache", cache)
    assert result.exit_code == 3
    assert result.stderr == "hfs: a: 1 of 1 chunks were damaged and are dropped\n"
    assert "checked 1 file," in result.stdout
    assert "1 failed" in result.stdout
    assert listed(cache, "a") in ({}, {"a": 0})


def test_evict(cache: Path) -> None:
    assert hfs("cache", "evict", "--cache", cache, "d/b\udce9").exit_code == 0
    assert listed(cache) == {"a": 10}
    result = hfs("cache", "evict", "--cache", cache, "--all")
    assert result.exit_code == 0
    assert result.stdout.startswith("evicted 1 file,")
    assert listed(cache) == {}


def test_a_cache_in_use_and_a_directory_that_is_none(cache: Path, tmp_path: Path) -> None:
    async def hold() -> None:
        async with open_cache(str(cache), CacheSettings(1 << 30), metrics=Metrics()):
            with pytest.raises(CacheInUse):
                await trio.to_thread.run_sync(offline.list_rows, str(cache), [], lambda _rows: None)

    trio.run(hold)
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="holds no cache"):
            offline.check(str(place), [], lambda _news: None)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("arguments", [("du",), ("evict", "--to", "0")])
def test_a_directory_that_is_no_root_stays_as_it_is(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = hfs("cache", *arguments, "--cache", tmp_path)
    assert result.exit_code == 2
    assert f"--cache {tmp_path}: holds no cache" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir(0o700)
    (tmp_path / "ledger" / "lock").mkdir(0o700)
    result = hfs("cache", "du", "--cache", tmp_path)
    assert result.exit_code == 1
    assert f"the cache {tmp_path} cannot be used" in result.stderr
