"""`hinted` with the real DataLoader: its samplers, workers forked and spawned, workers that stay."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.client.cluster_map import ClusterMap
from hfs.hint import hinted
from hfs.policies.cluster.placement import Nodes
from hfs.samplers import GroupShuffleSampler, Locality, LocalityAwareSampler
from tests.conftest import Logs
from tests.hfs.training.learners import FakeDaemon
from tests.support.late_module import LateModule
from tests.support.pages import ROOT, blocks

torch = LateModule("torch")
data = LateModule("torch.utils.data")

COUNT = 64


class Numbers:
    """A data set of torch: sample i is (i, the process that read it)."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def with_hint(sampler: Any, daemon: FakeDaemon) -> Any:
    return hinted(sampler, files=[f"/m/{i}" for i in range(COUNT)], mount="/m", control=daemon.path)


def samples(loader: Any) -> list[list[int]]:
    return [indices.tolist() for indices, _ in loader]


def samplers() -> dict[str, Any]:
    return {
        "distributed": lambda: data.distributed.DistributedSampler(Numbers(), 2, 1),
        "group": lambda: GroupShuffleSampler(COUNT, 8, rank=1, world=2),
    }


@pytest.mark.parametrize("name", ["distributed", "group", "batches"])
def test_the_epoch_after_is_known_where_the_sampler_is_seeded_by_it(daemon: FakeDaemon, name: str) -> None:
    def make() -> Any:
        if name == "batches":
            return data.BatchSampler(samplers()["distributed"](), 5, drop_last=False)
        return samplers()[name]()

    sampler, bare = with_hint(make(), daemon), make()
    list(sampler)
    (bare.sampler if name == "batches" else bare).set_epoch(1)
    expected = torch.tensor([index for each in bare for index in (each if name == "batches" else [each])]).tolist()
    daemon.wait(lambda: daemon.only.orders(following=True) == [(1, expected)])
    assert (sampler.sampler if name == "batches" else sampler).epoch == 0
    assert (daemon.only.join.rank, daemon.only.join.world) == (1, 2)


def test_the_epoch_after_is_not_drawn_where_that_would_change_the_training(daemon: FakeDaemon) -> None:
    class Noisy(data.distributed.DistributedSampler):  # type: ignore[misc,name-defined]  # torch may be missing
        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(COUNT).tolist())

    torch.manual_seed(0)
    expected = [list(Noisy(Numbers(), 1, 0)), torch.rand(1).item()]
    torch.manual_seed(0)
    assert [list(with_hint(Noisy(Numbers(), 1, 0), daemon)), torch.rand(1).item()] == expected
    torch.manual_seed(0)
    expected = samples(data.DataLoader(Numbers(), shuffle=True))
    torch.manual_seed(0)
    assert samples(data.DataLoader(Numbers(), sampler=with_hint(data.RandomSampler(Numbers()), daemon))) == expected
    gc.collect()
    daemon.wait(lambda: sum(len(heard.overs()) for heard in daemon.heard) == 2)
    assert not any(heard.orders(following=True) for heard in daemon.heard)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("batches", [False, True])
def test_workers_do_not_speak_on_the_connection(daemon: FakeDaemon, method: str, batches: bool) -> None:
    def make(sampler: Any) -> dict[str, Any]:
        return {"batch_sampler": sampler} if batches else {"sampler": sampler, "batch_size": 4}

    bare = samplers()["distributed"]()
    if batches:
        bare = data.BatchSampler(bare, 4, drop_last=True)
    sampler = with_hint(bare, daemon)
    loader = data.DataLoader(
        Numbers(), num_workers=2, multiprocessing_context=method, persistent_workers=True, **make(sampler)
    )
    expected = samples(data.DataLoader(Numbers(), **make(bare)))
    pids = set()
    for _ in range(2):
        got = []
        for indices, readers in loader:
            got.append(indices.tolist())
            pids.update(readers.tolist())
        assert got == expected
    assert len(pids) == 2
    assert os.getpid() not in pids
    for indices, _ in loader:  # left early, workers stay
        assert indices.tolist() == expected[0]
        break
    # The epoch that was left is over at the latest when the next one begins or the loader goes.
    del loader
    gc.collect()
    daemon.wait(lambda: sum(len(heard.overs()) for heard in daemon.heard) == 3)
    assert {heard.join.process for heard in daemon.heard} == {daemon.heard[0].join.process}
    del sampler
    gc.collect()
    # The workers were forked with the connection open, and it ends all the same.
    daemon.wait(lambda: all(heard.gone for heard in daemon.heard))


def test_a_forked_child_is_a_learner_of_its_own(daemon: FakeDaemon) -> None:
    sampler = with_hint(range(COUNT), daemon)
    iterator = iter(sampler)
    assert next(iterator) == 0
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(list(iterator) != list(range(1, COUNT)) or list(sampler) != list(range(COUNT)))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(iterator) == list(range(1, COUNT))
    daemon.wait(lambda: len(daemon.heard) == 2 and all(heard.overs() for heard in daemon.heard))
    parent, other = daemon.heard
    assert parent.join.process != other.join.process
    assert parent.overs() == [0]
    assert [order for _, order in other.orders()] == [list(range(COUNT))]


def test_batches_that_are_local_through_the_loader(daemon: FakeDaemon) -> None:
    files = [f"/m/{i}" for i in range(COUNT)]
    nodes = ClusterMap(Nodes((1, 2, 3), (1.0,) * 3))
    sampler = LocalityAwareSampler(COUNT, 12, 0, 1, 3, Locality(nodes, files, learners=[0, 1, 2]))
    bare = list(sampler)
    for batches in (sampler, with_hint(sampler, daemon)):
        loader = data.DataLoader(Numbers(), batch_sampler=batches, num_workers=1)
        assert len(loader) == len(bare) == 6
        assert samples(loader) == bare
    daemon.wait(lambda: daemon.only.overs() == [0])
    assert daemon.only.orders() == [(0, [index for batch in bare for index in batch])]


def test_the_example_of_the_readme_runs_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: Logs
) -> None:
    """On one GPU or none, and here without a daemon: in no process group, with the sampler that it names."""
    assert torch.utils
    logs.expect("the training goes on without hints")
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jpg").write_bytes(b"picture")
    (program,) = [code for language, code in blocks((ROOT / "README.md").read_text()) if language == "python"]
    exec(compile(program.replace("/data", str(tmp_path)), "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == ["0 3", "1 3"]
