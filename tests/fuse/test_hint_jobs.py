"""Hints end to end: a script with two more lines, and `hfs-hint` beside one without, on a real mount."""

import sys
from pathlib import Path

import pytest

from tests.fuse.harness import hfs_command, run

pytestmark = pytest.mark.fuse

JOB = """
import random, sys
from hfs.exposed import timed
from hfs.hint import hinted
mount, count = sys.argv[1], int(sys.argv[2])
files = [f"{mount}/{i:04d}" for i in range(count)]
class Sampler(list):
    pass
order = Sampler(random.Random(1).sample(range(count), count))
sampler = hinted(order, files=files, name="job")
class Loader:
    def __init__(self):
        self.sampler = sampler
    def __iter__(self):
        for i in self.sampler:
            yield i, open(files[i], "rb").read()
for epoch in range(2):
    for i, data in timed(Loader()):
        assert data == b"%04d" % i * (1 + i), i
"""


def tree(folder: Path, count: int = 50) -> Path:
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:04d}").write_bytes(b"%04d" % i * (1 + i))
    return folder


def test_the_summary_of_a_run_says_where_the_time_went(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    (tmp_path / "m").mkdir()
    places = ("--source", source, "--at", tmp_path / "m", "--cache", tmp_path / "c", "--cache-size", "1G")
    done = run(hfs_command(), "run", *places, "--", sys.executable, "-c", JOB, str(tmp_path / "m"), "50")
    assert done.returncode == 0, done.stderr
    assert "exposed" in done.stderr
    assert done.stderr.count("job, rank 0 of 1") == 2
