"""LocalityAwareSampler: each sample of a global batch once, where it is cached; gradients as of the regular one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import logging
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfs.client.cluster_map import ClusterMap
from hfs.hint import hinted
from hfs.layouts.layout import Layout, LayoutError
from hfs.mountd.core.errors import ConfigError
from hfs.policies.cluster.cost_model import expected_imbalance
from hfs.policies.cluster.placement import Nodes
from hfs.samplers import Locality, LocalityAwareSampler
from tests.conftest import Logs
from tests.hfs.daemon import FakeCommands, serving
from tests.hfs.training.learners import listening


def nodes(count: int) -> ClusterMap:
    return ClusterMap(Nodes(tuple(range(1, count + 1)), (1.0,) * count))


def answer(count: int, **more: Any) -> dict[str, Any]:
    names, hashes = [f"n{number}" for number in range(count)], list(range(1, count + 1))
    said = {"nodes": names, "hashes": hashes, "weights": [1.0] * count, "node": None, "placement": "partition"}
    return {**said, "data": 0, "chunk_bytes": 8 << 20, "gone": [], **more}


def known(count: int, **more: Any) -> ClusterMap:
    return ClusterMap.of(answer(count, **more))


def files(count: int) -> list[str]:
    return [f"class_{number % 7}/{number}.jpg" for number in range(count)]


def learners(n: int, batch: int, of: list[int], epoch: int = 0, **more: Any) -> list[LocalityAwareSampler]:
    """All learners of a job, where `of` says the node of each."""
    locality = Locality(nodes(max(of) + 1), files=files(n), learners=of)
    return at_epoch(
        epoch, [LocalityAwareSampler(n, batch, 3, rank, len(of), locality, **more) for rank in range(len(of))]
    )


def regular(n: int, batch: int, world: int, epoch: int = 0, **more: Any) -> list[LocalityAwareSampler]:
    return at_epoch(epoch, [LocalityAwareSampler(n, batch, 3, rank, world, **more) for rank in range(world)])


def at_epoch(epoch: int, samplers: list[LocalityAwareSampler]) -> list[LocalityAwareSampler]:
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


tables = mock.patch.object(Nodes, "table", functools.cache(Nodes.table))  # each takes 10 ms
maps = st.sampled_from([None, nodes(5), nodes(6), known(3), known(5, weights=range(5), data=20), known(1, alone="x")])
placed = st.lists(st.integers(0, 4), min_size=1, max_size=8)


def renewed(samplers: list[LocalityAwareSampler], maps: list[ClusterMap | None]) -> None:
    """All of them ask for the nodes again, and learner r is told `maps[r]`; None: its daemon does not answer."""
    said: list[str] = []

    def gather(text: str) -> list[str]:
        said.append(text)
        raise InterruptedError

    for sampler, found in zip(samplers, maps, strict=True):
        assert sampler._locality is not None
        sampler._locality = dataclasses.replace(sampler._locality, directory=found or "/nowhere")
        with pytest.raises(InterruptedError):
            sampler.renew(gather)
    for sampler in samplers:
        sampler.renew(lambda _: said)


@tables
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 120), st.integers(1, 6), placed, st.booleans(), st.integers(0, 9), st.data())
def test_a_global_batch_is_trained_on_once_by_learners_of_equal_size_whatever_each_hears_of_the_nodes(
    logs: Logs, n: int, each: int, of: list[int], drop_last: bool, epoch: int, data: st.DataObject
) -> None:
    logs.expect("all learners go on with the nodes that they knew|takes its slice of each batch")
    world, batch = len(of), each * len(of)
    samplers = at_epoch(epoch, learners(n, batch, of, drop_last=drop_last))
    for one in data.draw(st.lists(st.booleans(), max_size=2)):
        renewed(samplers, [data.draw(maps)] * world if one else [data.draw(maps) for _ in of])
    epochs = [list(sampler) for sampler in samplers]
    order = samplers[0].global_order().tolist()
    assert {len(sampler) for sampler in samplers} == {len(own) for own in epochs} == {-(-len(order) // batch)}
    for step, local in enumerate(zip(*epochs, strict=True)):
        assert len({len(own) for own in local}) == 1
        assert sorted(index for own in local for index in own) == sorted(order[step * batch : (step + 1) * batch])
    drawn = Counter(order)
    if drop_last:
        assert len(order) == n // batch * batch
        assert max(drawn.values(), default=1) == 1
    else:
        assert set(drawn) == set(range(n))
        assert len(order) - n == -n % batch % world, "filled up to what the learners divide, and no further"
    plain = regular(n, batch, world, drop_last=drop_last, epoch=epoch)
    assert [sampler.global_order().tolist() for sampler in plain] == [order] * world
    assert len({sampler.digest for sampler in samplers}) == 1


def test_samples_are_trained_on_where_they_are_cached() -> None:
    of = [0, 0, 1, 1, 2, 2, 3, 3]
    samplers = learners(1000, 64, of)
    owners = nodes(4).owners(Layout("\0".join(files(1000)).encode()))
    order = samplers[0].global_order()
    epochs = [list(sampler) for sampler in samplers]
    for step in range(len(samplers[0])):
        batch = order[step * 64 : (step + 1) * 64]
        moved = sum(owners[index] != of[rank] for rank, own in enumerate(epochs) for index in own[step])
        assert moved == np.maximum(np.bincount(owners[batch], minlength=4) - len(batch) // 4, 0).sum()
        assert moved / len(batch) == samplers[5].moved()[step]
    assert 0.5 < samplers[0].moved().mean() / expected_imbalance(4, 16) < 1.5


def test_what_comes_from_other_nodes_is_spread_over_the_learners_of_a_node() -> None:
    samplers = learners(4000, 200, [0] * 4 + [1] * 4)
    owners = nodes(2).owners(Layout("\0".join(files(4000)).encode()))
    taken = np.array([[sum(owners[own] != rank // 4) for own in s] for rank, s in enumerate(samplers)])
    assert taken.sum() > 0
    for node in (taken[:4], taken[4:]):
        assert np.all(node.max(axis=0) - node.min(axis=0) <= 1)


def test_epochs_differ_and_depend_on_seed_and_epoch_alone() -> None:
    sampler = learners(200, 20, [0, 1])[0]
    first = list(sampler)
    begun = iter(sampler)
    sampler.set_epoch(1)
    assert list(begun) == first
    second = list(sampler)
    assert second != first
    assert list(learners(200, 20, [0, 1], epoch=1)[0]) == second
    other = LocalityAwareSampler(200, 20, 4, 0, 2, Locality(nodes(2), files(200), learners=[0, 1]))
    assert list(other) != first


def test_copies_are_independent_and_pickles_alike() -> None:
    sampler = learners(200, 20, [0, 1, 1, 0])[2]
    ahead = copy.copy(sampler)
    ahead.set_epoch(4)
    assert sampler.epoch == 0
    assert list(pickle.loads(pickle.dumps(ahead))) == list(ahead) != list(sampler)


# -- Theorem 1 -------------------------------------------------------------------------------------------------------


def gradient(weights: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Summed over the samples: of half the squared error of tanh(x A) b, with A (4 x 3) and b (3) in `weights`."""
    first, second = weights[:12].reshape(4, 3), weights[12:]
    hidden = np.tanh(inputs @ first)
    error = hidden @ second - targets
    back = error[:, None] * second * (1 - hidden**2)
    return np.concatenate([(inputs.T @ back).ravel(), hidden.T @ error])


@pytest.mark.parametrize("of", [[0, 1, 2, 3], [2, 0, 0, 1, 1, 1]])
def test_theorem_1_the_gradients_of_each_step_are_the_regular_samplers(of: list[int]) -> None:
    n, batch, world = 250, 8 * len(of), len(of)
    draw = np.random.default_rng(5)
    inputs, weights = draw.normal(size=(n, 4)), draw.normal(size=15)
    targets = np.sin(inputs.sum(axis=1))
    ours, theirs = learners(n, batch, of), regular(n, batch, world)
    kinds = {"ours": weights.copy(), "theirs": weights.copy()}
    different = 0
    for epoch in range(3):
        for sampler in (*ours, *theirs):
            sampler.set_epoch(epoch)
        for local, slices in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
            different += local != slices
            sums = {}
            for kind, parts in (("ours", local), ("theirs", slices)):
                sums[kind] = sum(gradient(kinds[kind], inputs[part], targets[part]) for part in parts)
                kinds[kind] = kinds[kind] - 0.05 / batch * sums[kind]
            np.testing.assert_allclose(sums["ours"], sums["theirs"], rtol=1e-9, atol=1e-11)
    assert different > 10, "the two divide the batches in different ways"
    np.testing.assert_allclose(kinds["ours"], kinds["theirs"], rtol=1e-9)
    assert not np.allclose(kinds["ours"], weights)


# -- The regular sampler ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "directory", [None, nodes(1), known(4, placement="replicate"), known(4, weights=[0.0] * 4), known(1)]
)
def test_where_it_does_not_matter_it_is_the_regular_sampler(directory: ClusterMap | None) -> None:
    locality = None if directory is None else Locality(directory, files(100))
    for rank, theirs in enumerate(regular(100, 12, 4)):
        ours = LocalityAwareSampler(100, 12, 3, rank, 4, locality)
        assert not ours.local
        assert list(ours) == list(theirs)
        assert np.isnan(ours.moved()).all()
        order = ours.global_order()
        assert next(iter(ours)) == order[rank * 3 : rank * 3 + 3].tolist()


def test_without_a_daemon_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, logs: Logs) -> None:
    logs.expect("takes its slice of each batch")
    for path in (tmp_path, tmp_path / "missing"):
        caplog.clear()
        sampler = LocalityAwareSampler(100, 12, 3, 1, 4, Locality(path, files(100)))
        assert list(sampler) == list(regular(100, 12, 4)[1])
        sampler.set_epoch(1)
        assert len(list(sampler)) == 9
        assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "hfs.samplers")]
        assert "takes its slice of each batch" in caplog.text


def test_a_daemon_that_does_not_know_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture, logs: Logs) -> None:
    logs.expect("means nothing: KeyError.*; each learner takes its slice")
    commands = FakeCommands("/m")
    commands.nodes = {"nodes": 5}
    with serving(tmp_path / "s", commands):
        sampler = LocalityAwareSampler(8, 4, 3, 0, 4, Locality("/m", files(8), control=str(tmp_path / "s")))
    assert not sampler.local
    assert len(caplog.records) == 1


def test_a_daemon_that_does(tmp_path: Path) -> None:
    commands = FakeCommands("/m")
    commands.nodes = answer(3, node=2, gone=[0])
    locality = Locality("/m", files(90), learners=["n0", "n1.site", "n2"], control=str(tmp_path / "s"))
    with serving(tmp_path / "s", commands):
        sampler = LocalityAwareSampler(90, 9, 3, 2, 3, locality)
    assert list(sampler) == list(learners(90, 9, [0, 1, 2])[2]), "a node that is lost still counts"


def test_a_daemon_that_has_lost_its_peers_must_not_divide_otherwise_than_others() -> None:
    lone = known(1, alone="started again")
    with pytest.raises(
        ValueError, match=r"no peers \(started again\), and the learners are on 2 nodes: .* mount again"
    ):
        LocalityAwareSampler(100, 12, 3, 1, 4, Locality(lone, files(100), learners=["n0", "n0", "n1", "n1"]))
    one_node = LocalityAwareSampler(100, 12, 3, 1, 4, Locality(lone, files(100), learners=["n0"] * 4))
    assert list(one_node) == list(regular(100, 12, 4)[1])


# -- Nodes that come and go -------------------------------------------------------------------------------------------


def test_all_take_the_new_owners_or_all_keep_those_that_they_had(logs: Logs) -> None:
    logs.expect("all learners go on with the nodes that they knew|takes its slice of each batch")
    samplers = learners(200, 20, [0, 1])
    first = [list(sampler) for sampler in samplers]
    for one_does_not_know in ([nodes(3), nodes(2)], [nodes(3), None], [None, None], [known(1, alone="x"), nodes(3)]):
        renewed(samplers, one_does_not_know)
        assert [list(sampler) for sampler in samplers] == first
    renewed(samplers, [nodes(3)] * 2)
    wanted = nodes(3).owners(Layout("\0".join(files(200)).encode()))
    assert all(sampler._division and np.array_equal(sampler._division.owners, wanted) for sampler in samplers)
    renewed(samplers, [known(3, placement="replicate")] * 2)
    assert not any(sampler.local for sampler in samplers)
    apart = [samplers[0], learners(200, 20, [0, 1])[1]]
    renewed(apart, [None, nodes(4)])
    assert [list(sampler) for sampler in apart] == [list(own) for own in regular(200, 20, 2)], "what all know"


@pytest.mark.parametrize("said", [[], ["a b c"], ["a b c", "d e f"], ["a b c"] * 3])
def test_other_arguments_and_a_gather_that_does_not_gather(said: list[str]) -> None:
    with pytest.raises(ValueError, match="must be the same for all, and gather give the texts of all"):
        learners(200, 20, [0, 1])[0].renew(lambda _: said)


# -- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 3}, "must be a multiple of 4, so that all train on as many samples; give 4"),
        ({"batch": 6}, "give 8"),
        ({"rank": 4}, r"rank is 4: it must be in \[0, 4\)"),
        ({"rank": None}, "give both or none"),
        ({"world": 0}, "world is 0"),
        ({"files": None}, "either files= or layout="),
        ({"layout": Layout(b"a")}, "either files= or layout="),
        ({"files": "abc"}, "must be a list"),
        ({"files": files(9)}, "n is 100, and there are 9 samples in files="),
        ({"files": None, "layout": Layout(b"a")}, "there are 1 samples in layout="),
        ({"learners": None}, "cannot be known here: give learners="),
        ({"learners": [0, 1, 2]}, "the nodes of 3 learners, and there are 4"),
        ({"learners": [0, 1, 2, 3]}, "3 is none of the 3 nodes"),
        ({"learners": ["n0", "n1", "n2", "n9"]}, "'n9' is none of the 3 nodes"),
        ({"directory": known(3, node=1)}, "learner 2 is on node 1 of the mount and not on node 2"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    usual: dict[str, Any] = {"n": 100, "batch": 8, "rank": 2, "world": 4}
    where: dict[str, Any] = {"directory": known(3), "files": files(100), "layout": None, "learners": [0, 1, 2, 2]}
    for name, value in arguments.items():
        (where if name in where else usual)[name] = value
    with pytest.raises(ValueError, match=message):
        LocalityAwareSampler(**usual, locality=Locality(**where))


def test_an_epoch_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="epoch is -1"):
        regular(100, 12, 4)[0].set_epoch(-1)


def test_what_is_no_directory_no_file_and_no_layout(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not int"):
        Locality(7, files=["a"])  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ConfigError):
        LocalityAwareSampler(1, 1, 0, 0, 1, Locality(nodes(2), files=["../a"], learners=[0]))
    with pytest.raises(LayoutError):
        LocalityAwareSampler(1, 1, 0, 0, 1, Locality(nodes(2), layout=tmp_path / "none", learners=[0]))
    with pytest.raises(TypeError):
        LocalityAwareSampler(1.5, 1)  # type: ignore[arg-type] # wrong on purpose


def test_arrays_will_do() -> None:
    listed = learners(50, 10, [0, 1])[1]
    arrays = Locality(nodes(2), np.array(files(50)), learners=np.array([0, 1]))  # type: ignore[arg-type] # like lists
    found = LocalityAwareSampler(50, 10, 3, 1, 2, arrays)
    assert list(found) == list(listed)


def test_a_learner_that_is_alone_needs_no_map() -> None:
    sampler = LocalityAwareSampler(50, 10, 3, 0, 1, Locality(known(4, node=2), files(50)))
    assert sorted(index for batch in sampler for index in batch) == list(range(50))


def test_rank_and_nodes_by_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 5), ("WORLD_SIZE", 6), ("LOCAL_WORLD_SIZE", 2), ("LOCAL_RANK", 1)):
        monkeypatch.setenv(name, str(value))
    sampler = LocalityAwareSampler(60, 12, 3, locality=Locality(known(3, node=2), files(60)))
    assert (sampler.rank, sampler.num_replicas) == (5, 6)
    assert list(sampler) == list(learners(60, 12, [0, 0, 1, 1, 2, 2])[5])
    with pytest.raises(ValueError, match="learner 5 is on node 1 of the mount and not on node 2"):
        LocalityAwareSampler(60, 12, 3, locality=Locality(known(3, node=1), files(60)))


# -- With others -----------------------------------------------------------------------------------------------------


def test_beside_hinted_which_tells_this_learners_order_and_the_next(tmp_path: Path) -> None:
    sampler = learners(60, 12, [0, 1, 2])[1]
    with listening(tmp_path / "s") as daemon:
        told = hinted(sampler, files=files(60), control=daemon.path, mount="/data")
        batches = list(told)
        ahead = copy.copy(sampler)
        ahead.set_epoch(1)
        assert batches == list(sampler)
        assert len(told) == len(sampler) == 5
        assert (daemon.only.join.rank, daemon.only.join.world) == (1, 3)
        daemon.wait(lambda: daemon.only.overs() == [0])  # all is said before that
        assert daemon.only.orders() == [(0, sampler.order().tolist())]
        assert daemon.only.orders(following=True) == [(1, ahead.order().tolist())]
        told.set_epoch(1)
        assert list(told) == list(ahead)
        del told
        gc.collect()


def test_no_framework_is_imported() -> None:
    code = "import sys, hfs.samplers; print(*{'trio', 'pyfuse3', 'torch', 'mpi4py', 'click'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
