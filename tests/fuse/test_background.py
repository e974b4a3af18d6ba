"""A fault of any background task costs that task: reads go on with right bytes, and status tells of it."""

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from hfs.client.client import Client
from hfs.mountd.core.errors import HfsError
from tests.fuse.harness import Hfs, HfsMount
from tests.fuse.injection import injected, raising, setting
from tests.support.pattern import check, pattern, write_pattern

FOR_EVER = 10**9
SMALL = 120
LARGE_BYTES = 1_500_000

# What each task calls, and fails in. In the order in which a reader brings the tasks about.
FAULTS = {
    "staging: clean-up": "hfs.mountd.cache.cache:Cache._prepare",
    "staging: object ids": "hfs.mountd.cache.objects.numbers:ObjectIdAllocator.settled_id",
    "staging: watch of the disk": "hfs.mountd.cache.evictor:Evictor.look",
    "staging: last uses": "hfs.mountd.cache.rows:RowUpdates.flush",
    "sweep of names": "hfs.mountd.namespace.nodes.names:Names.sweep",
    "second looks": "hfs.mountd.source.second_looks:SecondLooks.run",
    "prefetch": "hfs.mountd.fetch.prefetch:Prefetch.run",
    "prefetch worker": "hfs.mountd.fetch.prefetch:Prefetch._next_work",
    "hints": "hfs.mountd.hints.hints:HintFollower.run",
    "watch of the connection": "hfs.mountd.fuse.fuse:Fuse._watch",
    "sibling list": "hfs.mountd.namespace.tree:Listings.whole",
    "push": "hfs.mountd.fetch.chunks.page_pusher:PagePusher.push",
    "supersede": "hfs.mountd.cache.files:StagedFileTable.supersede",
}
# These are called in threads, or by no task of their name.
ELSEWHERE = {
    "staging: writer": "hfs.mountd.cache.writer:write_batch",
    "staging: committer": "hfs.mountd.cache.committer:sync_objects",
    "residency sample": "hfs.mountd.files.residency:resident",
    "control connection": "hfs.mountd.control.control:_Gate._serve",
}


# Without these nothing is ever staged; the client that asks for the faults must be answered some time.
ONCE = {"staging: clean-up", "staging: object ids", "control connection"}
# Where what comes before them fails for ever: nothing is written, no worker starts.
NEVER_REACHED = {"staging: committer", "prefetch worker"}


def tree(source: Path) -> None:
    (source / "many").mkdir(parents=True)
    for number in range(SMALL):
        write_pattern(source / "many" / f"{number:03}", 100 + number, 3000 + number)
    for number in range(2):
        write_pattern(source / f"large-{number}", 10 + number, LARGE_BYTES)
    write_pattern(source / "changed", 1, 3000)


def read_all(hfs: Hfs) -> None:
    """List, look up and read everything, each byte checked."""
    with os.scandir(hfs.path / "many") as entries:
        assert sum(entry.stat().st_size > 0 for entry in entries) == SMALL
    for number in range(SMALL):
        check(100 + number, 0, (hfs.path / "many" / f"{number:03}").read_bytes())
    rng = random.Random(7)
    for number in range(2):
        with open(hfs.path / f"large-{number}", "rb", buffering=0) as file:
            for _ in range(20):
                offset = rng.randrange(LARGE_BYTES)
                expected = pattern(10 + number, offset, min(5000, LARGE_BYTES - offset))
                assert os.pread(file.fileno(), 5000, offset) == expected
            check(10 + number, 0, file.readall())


def status(hfs: Hfs) -> dict[str, Any]:
    """As soon as a connection is answered."""
    while True:
        with contextlib.suppress(HfsError):
            return Client(str(hfs.socket)).status(page_cache=True)


@pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "for ever"])
def test_reads_go_on_whatever_fails_in_the_background(tmp_path: Path, hfs_mount: HfsMount, times: int) -> None:
    """Every background task in turn meets an error that no rule foresees."""
    source = tmp_path / "source"
    tree(source)
    faults = [raising(at, 1 if task in ONCE else times, task=task) for task, at in FAULTS.items()]
    elsewhere = [raising(at, 1 if task in ONCE else times) for task, at in ELSEWHERE.items()]
    settings = [
        setting(at, 0.05) for at in ("hfs.mountd.daemon.service:_SWEEP_S", "hfs.mountd.cache.rows:USES_FLUSHED_EVERY_S")
    ]
    hfs = hfs_mount(source, "--ttl", "0.5", env=injected(*settings, *faults, *elsewhere))
    hfs.expect_warning(".*")
    read_all(hfs)
    check(1, 0, (hfs.path / "changed").read_bytes())
    write_pattern(source / "changed", 2, 3000)
    while (hfs.path / "changed").read_bytes() != pattern(2, 0, 3000):
        pass  # until the time-to-live of the version before is over
    read_all(hfs)
    number = 0
    wanted = {*FAULTS, *ELSEWHERE} - (NEVER_REACHED if times > 1 else set())
    while missing := wanted - set(status(hfs)["background_faults"]):
        number += 1  # it is staged only once the cache has rested
        write_pattern(source / f"new-{number}", 1000 + number, 3000)
        check(1000 + number, 0, (hfs.path / f"new-{number}").read_bytes())
        assert number < 3000, missing
    read_all(hfs)
    assert Client(str(hfs.socket)).pid() == hfs.pid, "another daemon has taken the place of one that had ended"
