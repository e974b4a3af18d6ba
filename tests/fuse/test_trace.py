"""A recorded epoch of a real mount, simulated: what the trace tells, and that another mount then has these hits."""

import json
import sys
from pathlib import Path

import pytest

from hfs.layouts.trace import Trace
from tests.fuse.harness import BIN, HfsMount, must
from tests.fuse.hinted import total_of, tree
from tests.fuse.slowfs import SlowSource

COUNT = 240

READER = """
import os, random, sys
from concurrent.futures import ThreadPoolExecutor
root, seed, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
random.Random(seed).shuffle(names)
def read(mine):
    for name in mine:
        with open(os.path.join(root, name), "rb", buffering=0) as file:
            file.read()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(read, (names[::2], names[1::2])))
"""


@pytest.mark.fuse
@pytest.mark.long
def test_a_recorded_epoch_tells_the_hits_of_a_smaller_cache(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    names = tree(tmp_path / "tree", COUNT)
    slow = slow_source(tmp_path / "tree", "none", "--set", "read_us=4000")
    large = hfs_mount(slow.path, "-o", "siblings=0")
    command = (sys.executable, "-c", READER, large.path, "1", *names)
    must(BIN / "hfs-hint", "record", "--mount", large.path, "-o", tmp_path / "trace", "--", *command)
    trace = Trace.load(str(tmp_path / "trace"))
    assert trace.samples == COUNT
    assert trace.threads is not None
    assert sorted(set(trace.threads.tolist())) == [1, 2]
    assert trace.source_waits is not None
    assert COUNT <= trace.source_waits.waits <= COUNT * 1.1
    assert trace.source_waits.waited_us >= COUNT * 4000

    size = total_of(names) // 2
    given = ("--cache-size", str(size), "--eviction", "fill-once", "--epochs", "2", "-o", "siblings=0,chunk=64K")
    found = json.loads(must(BIN / "hfs", "trace", "simulate", tmp_path / "trace", *given, "--json"))
    assert found["inputs"]["readers"]["value"] == 2
    assert {found["inputs"][name]["origin"] for name in ("latency_s", "between_s")} == {"recorded"}

    small = hfs_mount(slow.path, "-o", "siblings=0", cache=tmp_path / "small", cache_size=str(size))
    must(sys.executable, "-c", READER, small.path, "2", *names)
    assert small.source_bytes() == total_of(names)
    small.umount()
    again = hfs_mount(slow.path, "-o", "siblings=0", cache=tmp_path / "small", cache_size=str(size))
    must(sys.executable, "-c", READER, again.path, "3", *names)
    real = 1 - again.source_bytes() / total_of(names)
    assert found["rows"][0]["hit_share"] == pytest.approx(real, abs=0.05)
