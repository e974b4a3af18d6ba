"""The directory of a job: what a daemon says, and the owners of samples against a plain computation of them."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hfs.client.client import DaemonSilent
from hfs.client.cluster_map import ClusterMap, NoClusterMap
from hfs.layouts.files import files_layout
from hfs.layouts.layout import Layout
from hfs.policies.cluster.placement import NOBODY, Nodes, keys, owners

ANSWER: dict[str, Any] = {
    "nodes": ["a.site", "b.site", "c.site"],
    "hashes": [11, 12, 13],
    "weights": [1, 2.5, 0],
    "data": 0,
    "node": 1,
    "placement": "partition",
    "chunk_bytes": 100,
    "gone": [2],
}
TABLES = {data: Nodes((11, 12, 13), (1.0, 2.5, 0.0), data).table() for data in (0, 7)}


@functools.cache
def home(path: bytes, index: int, data: int = 0) -> int:
    """Of one chunk, by itself."""
    key = keys(np.array([xxhash.xxh3_64_intdigest(path)], np.uint64), np.array([index]))
    return max(NOBODY, int(owners(TABLES[data], key)[0]))


def test_a_path_in_no_mount(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DaemonSilent):
            ClusterMap.ask(str(path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hashes": []},
        {"hashes": [11, 11, 13]},
        {"hashes": "abc"},
        {"weights": [1, 2]},
        {"data": None},
        {"weights": [1, 2, -1]},
        {"weights": [1, 2, float("nan")]},
        {"nodes": ["a"]},
        {"nodes": None},
        {"node": 3},
        {"node": "x"},
        {"chunk_bytes": 0},
        {"placement": "scatter"},
    ],
)
def test_answers_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(NoClusterMap, match="about its nodes"):
        ClusterMap.of({**ANSWER, **wrong})
    with pytest.raises(NoClusterMap):
        ClusterMap.of({})


def test_where_it_matters_who_reads() -> None:
    assert ClusterMap.of(ANSWER).divided
    assert not ClusterMap.of({**ANSWER, "placement": "replicate"}).divided
    assert not ClusterMap.of({**ANSWER, "weights": [0, 0, 0]}).divided
    assert not ClusterMap.of({**ANSWER, "nodes": ["a"], "hashes": [1], "weights": [1], "node": 0}).divided


def test_nodes_by_name_and_number() -> None:
    found = ClusterMap.of(ANSWER)
    assert found.numbers(["b.site", "b", 0, np.int64(2), "c.other"]) == [1, 1, 0, 2, 2]
    twice = ClusterMap.of({**ANSWER, "nodes": ["a.x", "a.y", "c"]})
    assert twice.numbers(["a.y", "c"]) == [1, 2]
    for wrong in ("d", "", -1, 3):
        with pytest.raises(ValueError, match=r"none of the 3 nodes .*a\.site, b\.site"):
            found.numbers([wrong])
    with pytest.raises(ValueError, match="none of the 3"):
        twice.numbers(["a"])


def test_homes_of_small_files_are_of_their_paths_below_the_mount() -> None:
    found = ClusterMap.of(ANSWER, "/data")
    layout = files_layout(["/data/x/1", "x/2", "/data//x/./3"], found.root)
    assert found.owners(layout).tolist() == [home(name, 0) for name in (b"x/1", b"x/2", b"x/3")]


@pytest.mark.slow
@given(st.integers(0, 99), st.integers(1, 30), st.integers(1, 4), st.integers(1, 700), st.sampled_from([0, 7]))
def test_a_sample_is_at_home_where_most_of_its_bytes_are(
    seed: int, samples: int, most: int, largest: int, data: int
) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, most, samples) if most > 1 else np.ones(samples, np.int64)
    counts[0] = 1
    extents = int(counts.sum())
    names, file_sizes = [b"one", b"two"], [3000, 2000]
    files = draw.integers(0, 2, extents)
    offsets, sizes = draw.integers(0, 1000, extents), draw.integers(1, largest + 1, extents)
    starts = np.concatenate([[0], np.cumsum(counts)])
    layout = Layout(b"\0".join(names), np.array(file_sizes), np.array([-1, -1]), files, offsets, sizes, starts)
    found = ClusterMap.of({**ANSWER, "data": data}).owners(layout)
    for sample in range(samples):
        owned: Counter[int] = Counter()
        for file, offset, size in layout.extents_of(sample):
            for at in range(offset, offset + size):
                owned[home(names[file], at // 100, data)] += 1
        wanted = max(sorted(owned), key=lambda node: owned[node]) if owned else sample % 3
        assert found[sample] == wanted


def test_large_whole_files_count_by_all_their_chunks() -> None:
    layout = Layout(b"p\0q\0r", np.array([250, 0, -1]))
    owned = Counter({home(b"p", 0): 100}) + Counter({home(b"p", 1): 100}) + Counter({home(b"p", 2): 50})
    assert ClusterMap.of(ANSWER).owners(layout).tolist()[1:] == [home(b"q", 0), home(b"r", 0)]
    layout = Layout(b"p\0q", np.array([250, 0]))
    wanted = [max(sorted(owned), key=lambda node: owned[node]), home(b"q", 0)]
    assert ClusterMap.of(ANSWER).owners(layout).tolist() == wanted


def test_one_huge_sample_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 100 << 12
    layout = Layout(b"big", np.array([size]), np.array([-1]), np.zeros(9, int), np.zeros(9, int), np.full(9, size))
    at_once = ClusterMap.of(ANSWER).owners(layout).tolist()
    monkeypatch.setattr("hfs.client.cluster_map._PIECES", 1 << 13)
    assert ClusterMap.of(ANSWER).owners(layout).tolist() == at_once == [at_once[0]] * 9
