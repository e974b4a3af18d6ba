"""Hinted samplers in the hands of frameworks: loaders that resume in mid-epoch, and those that make samplers again."""

import gc
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hfs.hint import hinted, hints_of
from hfs.layouts.layout import Layout
from hfs.mountd.wire.hints import PART_BYTES, encode_layout, encode_layout_pieces
from hfs.training import told_order
from tests.conftest import Logs
from tests.hfs.training.learners import FakeDaemon
from tests.hfs.training.sampler_kinds import COUNT, Files, Stateful, data, kinds, seeded, shuffled_own, stateful, torch
from tests.support.late_module import LateModule

loading = LateModule("torchdata.stateful_dataloader")
lightning = LateModule("lightning.pytorch.utilities.data")
KINDS = kinds()


def with_hint(sampler: Any, daemon: FakeDaemon, **options: Any) -> Any:
    return hinted(sampler, files=[f"/m/{i}" for i in range(COUNT)], mount="/m", control=daemon.path, **options)


class StatefulBatches:
    """A batch sampler that counts its batches."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(COUNT))
        random.Random(4).shuffle(order)
        for start in range(self.done * 5, COUNT, 5):
            self.done += 1
            yield order[start : start + 5]
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


RESUMED: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"sampler": data.RandomSampler(range(COUNT), generator=seeded()), "batch_size": 4},
    "stateful": lambda: {"sampler": Stateful(shuffled_own), "batch_size": 4},
    "batches": lambda: {"batch_sampler": StatefulBatches()},
    "torchdata's random": lambda: {
        "sampler": stateful.RandomSampler(range(COUNT), generator=seeded()),
        "batch_size": 4,
    },
    "torchdata's distributed": lambda: {
        "sampler": stateful.StatefulDistributedSampler(range(COUNT), 2, 1),
        "batch_size": 4,
    },
    "plain batches": lambda: {
        "batch_sampler": data.BatchSampler(data.SequentialSampler(range(COUNT)), 6, drop_last=False)
    },
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("kind", RESUMED)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_loader_resumes_in_mid_epoch_as_with_the_bare_sampler(daemon: FakeDaemon, kind: str, workers: int) -> None:
    def loader(hint: bool) -> Any:
        options = RESUMED[kind]()
        name = "batch_sampler" if "batch_sampler" in options else "sampler"
        if hint:
            options[name] = with_hint(options[name], daemon)
        return loading.StatefulDataLoader(Files(), num_workers=workers, collate_fn=list, **options)

    def seen(hint: bool) -> list[Any]:
        first = loader(hint)
        torch.manual_seed(1)
        before = list(itertools.islice(first, 3))
        state = first.state_dict()
        second = loader(hint)
        second.load_state_dict(state)
        return [before, list(second), list(second)]

    expected = seen(hint=False)
    assert seen(hint=True) == expected
    daemon.wait(lambda: any(heard.orders() for heard in daemon.heard))


def test_an_iterator_has_the_state_of_the_samplers_own(daemon: FakeDaemon) -> None:
    sampler, bare = (
        with_hint(KINDS["has a state and is its own iterator"](), daemon),
        KINDS["has a state and is its own iterator"](),
    )
    iterator, expected = iter(sampler), iter(bare)
    assert [next(iterator) for _ in range(4)] == [next(expected) for _ in range(4)]
    assert iterator.state_dict() == expected.state_dict() == sampler.state_dict()
    iterator.load_state_dict(expected.state_dict())
    iterator.at = 28  # as every attribute it is the sampler's
    expected.at = 28
    assert [*itertools.islice(iterator, 9)] == [*itertools.islice(expected, 9)]
    assert not hasattr(iter(with_hint([1], daemon)), "state_dict")


def test_a_batch_sampler_is_made_again(daemon: FakeDaemon) -> None:
    """As Lightning does it to predict, or to give each rank its part."""
    sampler = with_hint(
        data.BatchSampler(data.RandomSampler(range(COUNT), generator=seeded()), 8, drop_last=True), daemon
    )
    order = data.distributed.DistributedSampler(range(COUNT), 2, 1, shuffle=False)
    again = type(sampler)(order, batch_size=sampler.batch_size, drop_last=False)
    expected = list(data.BatchSampler(order, 8, drop_last=False))
    assert isinstance(again, data.BatchSampler)
    assert hints_of(again) is not hints_of(sampler)
    assert list(again) == expected
    daemon.wait(lambda: daemon.only.overs() == [0])
    assert daemon.only.orders() == [(0, [index for batch in expected for index in batch])]
    with pytest.raises(TypeError, match="batch_size"):
        type(sampler)(order)
    with pytest.raises(TypeError, match="__init__"):
        type(sampler)(order, 8, False, nothing=1)
    assert vars(sampler) is vars(sampler._hfs_bare)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_index_is_not_taken_for_one(daemon: FakeDaemon, logs: Logs, workers: int) -> None:
    logs.expect("gives out tuple.*, which is no index: tell hinted with index_of= what the index is")
    for kind in ("tuples", "batches of tuples"):
        bare = list(KINDS[kind]())
        bare = list(itertools.chain.from_iterable(bare)) if "batches" in kind else bare
        how = {"batch_sampler": KINDS[kind]()} if "batches" in kind else {"sampler": KINDS[kind](), "batch_size": 4}
        name = next(iter(how))
        how[name] = with_hint(how[name], daemon)
        loader = data.DataLoader(Files(), num_workers=workers, collate_fn=list, **how)
        for _ in range(2):
            assert [item for batch in loader for item in batch] == bare
    gc.collect()
    assert len(logs.records) == 2
    assert not any(heard.orders() for heard in daemon.heard)
    with_index = with_hint(KINDS["tuples"](), daemon, index_of=lambda item: item[1], ahead=True)
    assert list(with_index) == list(KINDS["tuples"]())
    batches = with_hint(
        KINDS["batches of tuples"](), daemon, index_of=lambda batch: [i for _, i, _ in batch], ahead=True
    )
    assert list(batches) == list(KINDS["batches of tuples"]())
    daemon.wait(lambda: [order for heard in daemon.heard for _, order in heard.orders()] == [list(range(20))] * 2)


def test_ten_million_samples_are_told_by_parts(daemon: FakeDaemon) -> None:
    """Nothing of a large permutation is drawn before the job has its first index."""
    sampler = data.RandomSampler(range(COUNT), replacement=True, num_samples=10**7, generator=seeded())
    iterator = iter(with_hint(sampler, daemon))
    given = [next(iterator) for _ in range(100)]
    del iterator
    gc.collect()
    daemon.wait(lambda: daemon.only.overs() == [0])
    ((first, indices),) = daemon.only.windows()
    assert first == 0
    assert len(indices) <= told_order.MOST + 1
    assert indices[:100] == given


def test_a_long_list_of_files_is_written_out_in_steps(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has items between them; what one epoch has not done the next one goes on with, and one that is in time
    is told from where it is."""
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    monkeypatch.setattr(told_order, "_FIRST_S", 0.0)
    monkeypatch.setattr(told_order, "_STEP_S", 0.0)
    monkeypatch.setattr(told_order, "_SHARE", 0.0)
    monkeypatch.setattr(told_order, "_FIRST_STEPS", 40)
    monkeypatch.setattr("hfs.layouts.files._STEP_FILES", 10)
    monkeypatch.setattr("hfs.mountd.wire.hints.PART_BYTES", 100)
    files = [f"/m/a/{i:03}" if i % 2 else f"b/{i:03}" for i in range(1000)]
    sampler = hinted(list(range(60)), files=files, mount="/m", control=daemon.path)
    for _ in range(2):
        assert list(sampler) == list(range(60))
        assert not daemon.heard  # not yet
    while not daemon.heard or len(daemon.only.overs()) < 2:  # which waits for the daemon, that answers when it can
        assert list(sampler) == list(range(60))
        gc.collect()
    first, indices = daemon.only.windows()[0]
    assert indices == list(range(first, 60))
    (layout,) = daemon.layouts.values()
    assert layout.files == b"\0".join(name.removeprefix("/m/").encode() for name in files)


def test_a_layout_is_the_same_in_pieces() -> None:
    numbers = np.arange(60_000)
    layout = Layout(b"a\0b", np.array([1 << 40] * 2), np.array([1, 2]), numbers % 2, numbers * 7, numbers + 1)
    for each in (layout, Layout(b"a\0" * 200_000 + b"b")):
        pieces = list(encode_layout_pieces(each.fields_in_pieces()))
        assert b"".join(pieces) == encode_layout(each.frame())
        assert max(map(len, pieces)) <= PART_BYTES


def test_a_data_set_is_not_asked_by_a_copy(daemon: FakeDaemon) -> None:
    class Weighted(Stateful):
        def __init__(self) -> None:
            super().__init__(lambda own: (i for i in range(len(own.dataset))))
            self.dataset = Files()

    sampler = Weighted()
    sampler.begin = _all_of
    assert list(with_hint(sampler, daemon, ahead=True)) == list(range(COUNT))
    daemon.wait(lambda: daemon.only.overs() == [0])
    assert daemon.only.orders()[0] == (0, list(range(COUNT)))
    assert sampler.dataset.asked == 0


def _all_of(own: Any) -> Iterator[int]:
    return iter(range(len(own.dataset)))


def test_why_nothing_is_told_ahead_is_in_the_log(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "hfs.hint"):
        list(with_hint(KINDS["reshuffles beside it"](), daemon, ahead=True))
    assert "nothing is told ahead: NotCopied: a function of it holds" in caplog.text
