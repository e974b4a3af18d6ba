"""Hints over real mounts: what a learner announces is read once, ahead, in its order, and never changes a byte.

Learners are this process, or tests/fuse/clients/hinted_training.py with the real DataLoader.
"""

import errno
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.client.client import Client
from hfs.hint import hinted
from hfs.samplers import GroupShuffleSampler
from tests.conftest import Logs
from tests.fuse.harness import ROOT, HfsMount, drop_pages, environment, must, stopped, unmount_lazily
from tests.fuse.hinted import all_staged, begun, content, counter, learner_of, total_of, tree, wait_until
from tests.fuse.injection import SETTLED
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

CLIENT = Path(__file__).parent / "clients" / "hinted_training.py"

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

needs_h5py = pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="h5py is not installed")

pytestmark = pytest.mark.usefixtures("connections_end")


def digests_of(names: Sequence[str]) -> list[str]:
    return [hashlib.sha256(content(number)).hexdigest() for number in range(len(names))]


def train(**settings: Any) -> dict[str, Any]:
    return dict(json.loads(must(sys.executable, CLIENT, json.dumps(settings), env={"PYTHONPATH": str(ROOT)})))


@needs_torch
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env", [pytest.param(None, id="young"), pytest.param(SETTLED, id="delegated")])
def test_a_training_reads_what_it_would_read_and_the_source_once(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, workers: int, env: dict[str, str] | None
) -> None:
    names = tree(tmp_path / "tree", 90)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path, env=env)
    bare = train(root=str(tmp_path / "tree"), names=names, workers=workers, epochs=2, hinted=False)
    through = train(root=str(hfs.path), names=names, workers=workers, epochs=2)
    assert through["epochs"] == bare["epochs"]
    assert sorted(through["epochs"][0]) == sorted(digests_of(names))
    assert slow.counters()["read_bytes"] == total_of(names)
    status = hfs.status()
    assert status["source"]["bytes"] == total_of(names)
    assert counter(status, "hinted_bytes") > 0
    (layout,) = status["hints"]["layouts"]
    assert (layout["files"], layout["samples"], layout["missing"], layout["ahead_bytes"]) == (90, 90, 0, 0)
    (learner,) = status["hints"]["past"]
    assert (learner["name"], learner["rank"], learner["world"], learner["epoch"]) == ("train", 0, 1, 1)
    told = [
        [each["epoch"], each["exposed_s"], each["compute_s"], each["other_s"], each["batches"]]
        for each in learner["epochs"]
    ]
    assert np.allclose(told, through["times"], atol=1e-5)
    assert [each[4] for each in told] == [23, 23]
    assert "train, rank 0 of 1" in must("hfs", "status", "--all", hfs.path)


def test_all_is_staged_in_its_order_before_anybody_reads(
    tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount
) -> None:
    """The last half of the order cannot be read for now, and comes first in the listing: the first half is staged."""
    names = tree(tmp_path / "tree", 64)
    late = [number for number in range(64) if number % 4 < 2]
    early = [number for number in range(64) if number % 4 >= 2]
    random.Random(1).shuffle(early)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path)
    slow.order("fault read hang path /d0/", "fault read hang path /d1/")
    sampler = hinted(early + late, files=[hfs.path / name for name in names])
    with begun(sampler) as (first, rest):
        while slow.counters()["read_bytes"] < sum(len(content(number)) for number in early):
            pass
        slow.order("clear")
        status = wait_until(hfs, all_staged)
        assert counter(status, "hinted_bytes") == total_of(names)
        reads = slow.counters()["read"]
        for number in [first, *rest]:
            assert (hfs.path / names[number]).read_bytes() == content(number)
    assert slow.counters()["read"] == reads
    assert slow.counters()["read_bytes"] == total_of(names)
    assert hfs.status()["reads"]["source"] == 0


@needs_h5py
@pytest.mark.parametrize("order", ["groups", "random"])
def test_samples_of_an_hdf5_file(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount, order: str) -> None:
    import h5py

    samples = np.frombuffer(pattern(9, 0, 300 * 19_000), np.uint8).reshape(300, 19_000)
    (tmp_path / "tree").mkdir()
    with h5py.File(tmp_path / "tree" / "train.h5", "w") as file:
        file.create_dataset("x", data=samples)
        file.create_dataset("y", data=np.arange(300))
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path, chunk_bytes=1 << 19)
    layout = tmp_path / "train.h5.layout"
    must("hfs", "layout", "build", hfs.path / "train.h5", "--dataset", "x", "--dataset", "y", "-o", layout)
    indices: Any = GroupShuffleSampler(300, 50, seed=3)
    if order == "random":
        indices = np.random.default_rng(2).permutation(300)
    sampler = hinted(indices, layout=layout, mount=os.path.relpath(hfs.path))
    with h5py.File(hfs.path / "train.h5", "r") as file, begun(sampler) as (first, rest):
        # The first chunks that are needed; then the reader and what is fetched ahead go side by side.
        wait_until(hfs, lambda status: learner_of(status).get("staged_share", 0) > 0.5)
        for index in [first, *rest]:
            assert np.array_equal(file["x"][index], samples[index])
            assert file["y"][index] == index
    size = (tmp_path / "tree" / "train.h5").stat().st_size
    assert slow.counters()["read_bytes"] <= 1.1 * size
    (told,) = hfs.status()["hints"]["layouts"]
    assert (told["files"], told["samples"], told["bytes"], told["missing"]) == (1, 300, size, 0)


def test_a_cache_smaller_than_the_data(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """Three epochs whose orders are known early: much of the cache is kept from one epoch to the next.

    Files of 20 KB take 28 KB of a cache (blocks and inodes), so at best 1.4 caches full of their bytes are saved in two
    epochs; a fast reader saves more, since what is held in memory counts for much in a cache so small.
    """
    names = tree(tmp_path / "tree", 80)
    total, cache = total_of(names), 1 << 19
    hfs = hfs_mount(tmp_path / "tree", cache_size=str(cache))
    sampler = hinted(GroupShuffleSampler(80, 1, seed=4), files=[hfs.path / name for name in names])
    client = Client(str(hfs.socket))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen = []
        for index in sampler:
            seen.append(index)
            assert (hfs.path / names[index]).read_bytes() == content(index)
            drop_pages(hfs.path / names[index])
            if index % 4 == 0:
                assert client.status()["staged"]["bytes"] <= cache
        assert sorted(seen) == list(range(80))
    status = client.status()
    assert status["source"]["bytes"] < 3 * total - cache
    (layout,) = status["hints"]["layouts"]
    assert 0 <= layout["ahead_bytes"] <= cache


def warnings_of(logs: Logs) -> list[str]:
    return [record.getMessage() for record in logs.records if record.name == "hfs.hint"]


def test_the_daemon_dies_in_mid_epoch(tmp_path: Path, hfs_mount: HfsMount, logs: Logs) -> None:
    """Its reads fail as those of any dead mount do; the sampler fails never, and says it once."""
    names = tree(tmp_path / "tree", 40)
    hfs = hfs_mount(tmp_path / "tree")
    sampler = hinted(GroupShuffleSampler(40, 4, seed=1), files=[hfs.path / name for name in names])
    expected = list(GroupShuffleSampler(40, 4, seed=1))
    logs.expect("the training goes on without hints")
    got = []
    for index in sampler:
        got.append(index)
        if len(got) <= 20:
            assert (hfs.path / names[index]).read_bytes() == content(index)
        else:
            with pytest.raises(OSError, match="not connected") as raised:
                (hfs.path / names[index]).read_bytes()
            assert raised.value.errno == errno.ENOTCONN
        if len(got) == 20:
            hfs.kill()
    assert got == expected
    assert list(sampler) == expected  # the mount is dead
    unmount_lazily(hfs.path)
    assert list(sampler) == expected  # the mount has gone
    assert len(warnings_of(logs)) == 1
    hfs.mount()
    with begun(sampler) as (_, _):  # and with its successor there are hints again
        wait_until(hfs, all_staged)


@pytest.mark.parametrize("when", ["before", "in mid-epoch"])
def test_a_daemon_that_does_not_answer(tmp_path: Path, hfs_mount: HfsMount, logs: Logs, when: str) -> None:
    names = tree(tmp_path / "tree", 40)
    hfs = hfs_mount(tmp_path / "tree")
    sampler = hinted(GroupShuffleSampler(40, 4, seed=1), files=[hfs.path / name for name in names], mount=str(hfs.path))
    expected = list(GroupShuffleSampler(40, 4, seed=1))
    if when == "before":
        logs.expect("the training goes on without hints")
    else:
        iterator = iter(sampler)
        assert next(iterator) == expected[0]
    with stopped(hfs.pid, hfs.keeper):
        if when == "in mid-epoch":
            assert list(iterator) == expected[1:]
        assert list(sampler) == expected
        assert list(sampler) == expected
    with begun(sampler) as (_, _):
        wait_until(hfs, all_staged)
    assert len(warnings_of(logs)) == (when == "before")


@needs_torch
def test_two_learners_of_a_job(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    names = tree(tmp_path / "tree", 80)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path)
    learners = [
        start(root=str(hfs.path), names=names, epochs=2, seeded=True, rank=rank, world=2, held=True) for rank in (0, 1)
    ]
    with learners[0] as one, learners[1] as other:
        for learner in (one, other):
            assert learner.stdout.readline() == "begun\n"
        shown = hfs.status()["hints"]["learners"]
        assert sorted((each["rank"], each["world"], each["total"]) for each in shown) == [(0, 2, 40), (1, 2, 40)]
        found = [finish(learner) for learner in (one, other)]
    assert [warnings for _, warnings in found] == ["", ""]
    for epoch in range(2):
        read = [digest for result, _ in found for digest in result["epochs"][epoch]]
        assert sorted(read) == sorted(digests_of(names))
    assert slow.counters()["read_bytes"] == total_of(names)
    assert sorted(each["rank"] for each in hfs.status()["hints"]["past"]) == [0, 1]


def start(**settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CLIENT), json.dumps(settings)],
        env=environment({"PYTHONPATH": str(ROOT)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(training: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """Let it go on to its end. What it has read, and what it said on stderr."""
    out, error = training.communicate("\n")
    assert training.returncode == 0, error
    return dict(json.loads(out)), error


def test_files_that_cannot_be_had_and_a_file_outside(tmp_path: Path, hfs_mount: HfsMount, logs: Logs) -> None:
    names = tree(tmp_path / "tree", 40)
    hfs = hfs_mount(tmp_path / "tree")
    hfs.expect_warning("a hint names what cannot be had, b'd3/7'")
    (tmp_path / "tree" / "d3" / "7").unlink()
    paths = [hfs.path / name for name in names]
    sampler = hinted(range(40), files=paths)
    for index in sampler:
        if index == 7:
            with pytest.raises(FileNotFoundError):
                paths[index].read_bytes()
        else:
            assert paths[index].read_bytes() == content(index)
        if index == 20:
            status = wait_until(hfs, lambda status: status["ahead"]["hints_missing"])
            assert status["hints"]["layouts"][0]["missing"] == 1
    logs.expect("1 of 41 files are not below .*the training goes on without hints")
    assert list(hinted(range(41), files=[*paths, tmp_path / "plain"])) == list(range(41))
    assert len(warnings_of(logs)) == 1


@pytest.mark.parametrize("staged", [True, False])
def test_files_that_are_replaced_in_mid_epoch(tmp_path: Path, hfs_mount: HfsMount, staged: bool) -> None:
    """Whoever opens a file after its time to live gets the new version, whatever was staged or pushed ahead of it."""
    names = tree(tmp_path / "tree", 60)
    hfs = hfs_mount(tmp_path / "tree", "--ttl", "0")
    hfs.expect_warning("the file has changed at the source")  # while it was fetched
    sampler = hinted(range(60), files=[hfs.path / name for name in names])
    with begun(sampler) as (first, rest):
        if staged:
            wait_until(hfs, all_staged)
        assert (hfs.path / names[first]).read_bytes() == content(first)
        for number in range(30, 60):
            (tmp_path / "new").write_bytes(content(number + 500)[::-1])
            os.replace(tmp_path / "new", tmp_path / "tree" / names[number])
        for index in rest:
            expected = content(index) if index < 30 else content(index + 500)[::-1]
            assert (hfs.path / names[index]).read_bytes() == expected, index
