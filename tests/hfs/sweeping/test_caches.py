"""Caches that nobody has used for longer than `expire` are emptied, also those of other users; no other."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hfs.mountd.cache import CacheSettings, open_cache
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.ledger import CacheRoot
from hfs.mountd.ledger.record import Quota, write_grant
from hfs.sweeping import TimeForOthers, caches

DAY_S = 86400.0
OTHERS = TimeForOthers(1000.0, 1000.0)


def add_cache(root_path: Path, name: str, age_s: float, uid: int) -> None:
    """A cache that holds an object that the index does not know, which stands for what is staged."""
    root = CacheRoot(str(root_path))
    try:
        fd = os.open(f"{root_path}/ledger/{name}", os.O_RDWR | os.O_CREAT, 0o644)
        write_grant(fd, Quota(4096, 4096, int(time.time() - age_s)))
        os.fchown(fd, uid, -1)
        os.close(fd)
    finally:
        root.close()

    async def make() -> None:
        (root_path / name).mkdir(0o700)
        async with open_cache(str(root_path / name), CacheSettings(1 << 30), metrics=Metrics()) as cache:
            await cache.ready.wait()

    trio.run(make)
    for folder, folders, files in os.walk(root_path / name):
        for each in (".", *folders, *files):
            os.chown(os.path.join(folder, each), uid, -1)


def used_bytes(root_path: Path) -> dict[str, int]:
    root = CacheRoot(str(root_path))
    try:
        return {entry.name: entry.grant.used_bytes for entry in root.ledger.listed()}
    finally:
        root.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Which other users can reach, as they cannot pytest's own."""
    with tempfile.TemporaryDirectory(prefix="hfs-sweep-", dir="/tmp") as folder:
        yield Path(folder)


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    uid = os.geteuid()
    old, new = f"{uid}-{'a' * 16}", f"{uid}-{'b' * 16}"
    add_cache(tmp_path, old, 3 * DAY_S, uid)
    add_cache(tmp_path, new, DAY_S, uid)
    (would,) = caches.sweep(str(tmp_path), 2 * DAY_S, dry_run=True, others=OTHERS)
    assert used_bytes(tmp_path) == {old: 4096, new: 4096}
    (swept,) = caches.sweep(str(tmp_path), 2 * DAY_S, dry_run=False, others=OTHERS)
    assert would == swept
    assert (swept.where, swept.kept) == (f"{tmp_path}/{old}", "")
    assert "3.0 days" in swept.text
    assert used_bytes(tmp_path)[old] == 0
    assert list(caches.sweep(str(tmp_path), 2 * DAY_S, dry_run=False, others=OTHERS)) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root sweeps caches of others")
def test_root_sweeps_as_the_owner(open_folder: Path) -> None:
    """What belongs to somebody is opened by nobody else, and stays that one's."""
    root_path = open_folder
    root_path.chmod(0o1777)
    name = f"65534-{'a' * 16}"
    add_cache(root_path, name, 3 * DAY_S, 65534)
    (swept,) = caches.sweep(str(root_path), 2 * DAY_S, dry_run=False, others=OTHERS)
    assert swept.kept == ""
    assert used_bytes(root_path)[name] == 0
    assert {path.stat().st_uid for path in (root_path / name).rglob("*")} == {65534}


def test_a_root_that_is_none(tmp_path: Path) -> None:
    assert list(caches.sweep(str(tmp_path), 1.0, dry_run=False, others=OTHERS)) == []
    assert os.listdir(tmp_path) == []
