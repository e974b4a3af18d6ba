"""Large reads of staged files that pass through the page cache of the mount: answered without Python, copied once."""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount
from tests.support.pattern import explain, pattern, write_pattern

SEED, SIZE = 11, (6 << 20) + 777


def has_cachestat() -> bool:
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor)) >= (6, 5)


@pytest.mark.skipif(not has_cachestat(), reason="cachestat(2) is of Linux 6.5")
def test_any_reads_give_the_sources_bytes(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_pattern(source / "large", SEED, SIZE)
    hfs = hfs_mount(source, "--io-mode", "daemon", "-o", "push=off")
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    chance = random.Random(5)
    with (hfs.path / "large").open("rb", buffering=0) as file:
        for _ in range(60):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            offset = chance.choice([0, SIZE - 100_000, chance.randrange(SIZE), chance.randrange(SIZE // 4096) * 4096])
            size = chance.choice([4096, 65_536, 131_072, 600_000, SIZE])
            data = os.pread(file.fileno(), size, offset)
            assert data == pattern(SEED, offset, min(size, SIZE - offset)), explain(SEED, offset, data)
    figures = hfs.status()["data_plane"]
    assert 0 < figures["spliced"] < figures["reads"]
    with (hfs.path / "large").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read(SIZE) == pattern(SEED, 0, SIZE)
        objects = [
            path for path in (hfs.own_cache / "objects").rglob("*") if path.is_file() and path.stat().st_size == SIZE
        ]
        with objects[0].open("r+b") as damaged:  # what is in memory of it is not right any more
            damaged.write(b"?" * SIZE)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        hfs.expect_warning("wrong checksum")
        assert os.pread(file.fileno(), SIZE, 0) == pattern(SEED, 0, SIZE)
