"""Hints end to end: a script with two more lines, and `hfs-hint` beside one without, on a real mount."""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.fuse.harness import Hfs, hfs_command, must, run

pytestmark = pytest.mark.fuse

HFS_HINT = (sys.executable, "-c", "from hfs.cli.hint import main; main()")

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


def test_a_hinted_job_is_followed_and_reads_its_bytes(tmp_path: Path, hfs_mount: Callable[..., Hfs]) -> None:
    hfs = hfs_mount(tree(tmp_path / "source"))
    must(sys.executable, "-c", JOB, hfs.path, "50")
    hints = json.loads(must(*HFS_HINT, "show", "--mount", hfs.path, "--json"))
    (learner,) = hints["past"]
    assert (learner["name"], learner["samples"], learner["epoch"]) == ("job", 50, 1)
    assert [(epoch["epoch"], epoch["batches"]) for epoch in learner["epochs"]] == [(0, 50), (1, 50)]
    assert "job, rank 0 of 1" in must(hfs_command(), "status", "--all", hfs.path)


def test_the_summary_of_a_run_says_where_the_time_went(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    (tmp_path / "m").mkdir()
    places = ("--source", source, "--at", tmp_path / "m", "--cache", tmp_path / "c", "--cache-size", "1G")
    done = run(hfs_command(), "run", *places, "--", sys.executable, "-c", JOB, str(tmp_path / "m"), "50")
    assert done.returncode == 0, done.stderr
    assert "exposed I/O" in done.stderr
    assert done.stderr.count("job, rank 0 of 1") == 2


def test_an_order_sent_from_outside_is_staged(tmp_path: Path, hfs_mount: Callable[..., Hfs]) -> None:
    hfs = hfs_mount(tree(tmp_path / "source"))
    order = random.Random(2).sample(range(50), 50)
    np.save(tmp_path / "order.npy", order)
    (tmp_path / "list").write_text("".join(f"{i:04d}\n" for i in range(50)))
    must(
        *(*HFS_HINT, "send", "--mount", hfs.path, "--order", tmp_path / "order.npy"),
        *("--files", tmp_path / "list", "--until-staged"),
    )
    assert hfs.status()["staged"]["files"] == 50


@pytest.mark.slow
def test_what_one_epoch_read_is_recorded_and_replayed(tmp_path: Path, hfs_mount: Callable[..., Hfs]) -> None:
    source = tree(tmp_path / "source")
    with h5py.File(source / "x.h5", "w") as file:
        file["x"] = np.arange(2 << 20, dtype=np.int64).reshape(-1, 1024)
    hfs = hfs_mount(source)
    read = "for i in 0003 0001 0002; do cat $0/$i; done; dd if=$0/x.h5 of=/dev/null bs=4096 skip=1000 count=10"
    trace = tmp_path / "trace"
    must(*HFS_HINT, "record", "--mount", hfs.path, "-o", trace, "--", "sh", "-c", read, hfs.path)
    files = os.fsdecode(np.load(trace)["names"].tobytes()).split("\0")
    assert files == ["0003", "0001", "0002", "x.h5"]
    hfs.umount()
    again = hfs_mount(source, cache=tmp_path / "cache-2")
    must(*HFS_HINT, "replay", trace, "--mount", again.path, "--until-staged")
    assert again.status()["staged"]["files"] == 4
    # The layout of the file finds the same bytes through the mount.
    layout = tmp_path / "x.layout"
    must(hfs_command(), "layout", "build", again.path / "x.h5", "--dataset", "x", "-o", layout)
    np.save(tmp_path / "order.npy", np.arange(2048)[::-1])
    sending = ("send", "--mount", again.path, "--order", tmp_path / "order.npy", "--layout", layout)
    must(*HFS_HINT, *sending, "--until-staged")
