"""Threads run out, or hang in one part of the source: what can be answered is answered."""

import os
import threading
from pathlib import Path

from hfs.client.client import Client
from tests.fuse.harness import HfsMount
from tests.fuse.injection import injected, raising
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import check, write_pattern

FOR_EVER = 10**9
LARGE_BYTES = 700_000
STARTED = 16
"""Threads before the first read: those that are kept for this, and what the start itself takes."""

HUNG = 100
"""Readers that hang: more than there are threads for metadata."""


def test_reads_go_on_when_no_more_threads_can_be_started(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """As with pids.max or ulimit -u: everything is read, staged and listed, with the threads that there are."""
    backing = tmp_path / "backing"
    for number in range(100):
        (backing / f"{number % 10}").mkdir(parents=True, exist_ok=True)
        write_pattern(backing / f"{number % 10}" / f"{number}", 100 + number, 4000 + number)
    write_pattern(backing / "large", 7, LARGE_BYTES)
    source = slow_source(backing).path
    fault = raising("hfs.mountd.core.workers:threading.Thread.start", FOR_EVER, after=STARTED)
    hfs = hfs_mount(source, env=injected(fault))
    hfs.expect_warning("no more threads can be started|can't start new thread|RuntimeError: injected|Traceback")
    hfs.expect_warning("unforeseen error in the background .residency sample")

    def read(part: int) -> None:
        for number in range(part, 100, 4):
            check(100 + number, 0, (hfs.path / f"{number % 10}" / f"{number}").read_bytes())

    readers = [threading.Thread(target=read, args=(part,)) for part in range(4)]
    for reader in readers:
        reader.start()
    check(7, 0, (hfs.path / "large").read_bytes())
    for reader in readers:
        reader.join()
    assert sum(len(os.listdir(hfs.path / f"{number}")) for number in range(10)) == 100
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    status = Client(str(hfs.socket)).status()
    assert status["queues"]["threads_refused"] > 0
    assert status["staged"]["files"] == 101


def test_a_part_of_the_source_that_hangs_leaves_threads_to_the_rest(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """More look-ups hang in one directory than there are threads: names that nobody knows yet are found elsewhere."""
    backing = tmp_path / "backing"
    for directory in ("hung", "healthy"):
        (backing / directory).mkdir(parents=True)
    for number in range(20):
        write_pattern(backing / "healthy" / f"{number}", 100 + number, 4000)
    source = slow_source(backing)
    hfs = hfs_mount(source.path)
    os.stat(hfs.path / "hung")
    source.order("fault lookup hang path /hung/")

    def look_up(number: int) -> None:
        assert not os.path.exists(hfs.path / "hung" / f"{number}")

    readers = [threading.Thread(target=look_up, args=(number,)) for number in range(HUNG)]
    for reader in readers:
        reader.start()
    try:
        client = Client(str(hfs.socket))
        while client.status()["queues"]["metadata_running"] < 64:
            pass  # until they have taken all there are
        for number in range(20):
            check(100 + number, 0, (hfs.path / "healthy" / f"{number}").read_bytes())
        assert client.status()["queues"]["hanging"] >= 64
    finally:
        source.order("release")
        for reader in readers:
            reader.join()
    assert client.status()["queues"]["hanging"] == 0


def test_all_threads_step_back_as_far_as_was_asked(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "source").mkdir()
    write_pattern(tmp_path / "source" / "file", 1, 5000)
    hfs = hfs_mount(tmp_path / "source", "-o", "nice=7")
    check(1, 0, (hfs.path / "file").read_bytes())
    wanted = min(19, os.nice(0) + 7)
    assert {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{hfs.pid}/task")} == {wanted}
    assert os.getpriority(os.PRIO_PROCESS, hfs.keeper) == os.nice(0)
