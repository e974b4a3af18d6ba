"""`hinted` changes nothing that is trained on: all kinds of samplers, with a daemon, without one, with one that dies.

Orders, random states, the samplers' own states and what they raise are those of the bare sampler.
"""

import copy
import gc
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.hint import hinted
from hfs.training import copied_sampler, told_order
from tests.hfs.training.learners import FakeDaemon, Heard, listening
from tests.hfs.training.sampler_kinds import COUNT, MOST_ITEMS, Files, data, kinds, torch

FILES = [f"/m/{i}" for i in range(COUNT)]
KINDS = kinds()


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with listening(tmp_path_factory.mktemp("daemon") / "s") as daemon:
        yield daemon


@pytest.fixture
def daemon(listener: FakeDaemon) -> Iterator[FakeDaemon]:
    listener.heard.clear()
    yield listener
    gc.collect()


@pytest.fixture(autouse=True)
def _often_and_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every item is progress, and an epoch is told in many parts. Warnings are looked at elsewhere."""
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    monkeypatch.setattr(told_order, "MOST", 16)
    monkeypatch.setattr(told_order, "_BEHIND", 5)
    monkeypatch.setattr(told_order, "_SAMPLES_A_S", 1e18)
    monkeypatch.setattr(logging.getLogger("hfs.hint"), "disabled", True)


def plain(item: Any) -> Any:
    """What an item is now: it may be a buffer that is filled anew."""
    return (type(item).__name__, item.tolist()) if hasattr(item, "tolist") else copy.deepcopy(item)


def plain_state(state: Any) -> Any:
    return {key: plain_state(value) for key, value in state.items()} if isinstance(state, dict) else plain(state)


def states() -> Any:
    return random.random(), np.random.rand(), torch.rand(1).item()


def state_of(sampler: Any) -> Any:
    try:
        return plain_state(sampler.state_dict())
    except Exception as error:  # noqa: BLE001 - it has none, or raises anything
        return type(error).__name__


def trained(
    make: Callable[[], Any], hint: Callable[[Any], Any] | None, after: Callable[[int], object] = lambda _: None
) -> list[Any]:
    """What a training sees in three epochs, the second of which is left early."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    bare = make()
    sampler = bare if hint is None else hint(bare)
    tell = getattr(type(bare), "told", None)
    seen: list[Any] = []
    for epoch, most in enumerate((MOST_ITEMS, 5, MOST_ITEMS)):
        try:
            seen.append(len(sampler))
        except Exception as error:  # noqa: BLE001 - compared
            seen.append((type(error).__name__, *map(str, error.args if type(error) is not TypeError else ())))
        if type(bare).__name__ == "DistributedSampler":
            sampler.set_epoch(epoch)
        try:
            iterator = iter(sampler)
            states()  # as a loader does between `iter` and the first `next`
            for number in range(most):
                item = next(iterator)
                seen.append(plain(item))
                after(number)
                if tell is not None:
                    bare.told(item)
                states()  # dropout, augmentation
                seen.append((state_of(sampler), state_of(iterator)) if number % 3 == 0 else None)
        except StopIteration:
            seen.append("its end")
        except Exception as error:  # noqa: BLE001 - compared
            seen.append(repr(error))
        iterator = None
        seen.append((states(), state_of(sampler)))
    return seen


def hint_with(daemon: FakeDaemon, how: str = "there", **options: Any) -> Callable[[Any], Any]:
    control = daemon.path + (".none" if how == "none" else "")
    return lambda sampler: hinted(sampler, files=FILES, mount="/m", control=control, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_sees_what_the_bare_sampler_gives(daemon: FakeDaemon, kind: str) -> None:
    expected = trained(KINDS[kind], None)
    assert len(expected) > 6
    assert trained(KINDS[kind], hint_with(daemon)) == expected
    assert trained(KINDS[kind], hint_with(daemon, "none")) == expected
    assert (
        trained(KINDS[kind], hint_with(daemon), lambda number: daemon.die() if number in {2, 8} else None) == expected
    )


VOUCHED = [
    *("shuffled by itself", "shuffled by global states", "draws lazily", "draws lazily by NumPy", "follows the losses"),
    *(
        "follows the steps",
        "endless",
        "raises",
        "raises when it begins",
        "other each time",
        "a list cleared and filled",
    ),
    *("an array overwritten", "reshuffles at its end", "few-shot categories", "a subclass that draws otherwise"),
    *("its attributes raise", "its properties raise", "no attributes of its own", "the old protocol", "tuples"),
    *("has a state and is resumed", "batches of a sampler that follows", "endless batches", "a generator", "random"),
    *("reshuffles beside it", "waits for the training", "has a state and waits", "has a state and takes turns"),
    *("torchdata's random", "torchdata's distributed", "torchdata's batches", "batches of batches"),
]


@pytest.mark.parametrize("kind", VOUCHED)
def test_a_training_sees_the_same_where_its_sampler_may_be_drawn(daemon: FakeDaemon, kind: str) -> None:
    expected = trained(KINDS[kind], None)
    assert trained(KINDS[kind], hint_with(daemon, ahead=True)) == expected
    for deaths in ({0}, {4, 9}):  # the copy ends in the middle of its epoch
        seen = trained(KINDS[kind], hint_with(daemon, ahead=True), lambda n: daemon.die() if n in deaths else None)  # noqa: B023 - called at once
        assert seen == expected


def loaded(make: Callable[[], Any], hint: Callable[[Any], Any] | None, workers: int, die: Any = None) -> list[Any]:
    """What a training sees through a loader with workers, in two epochs."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    first = next(iter(make()), 0)
    is_batch = not isinstance(first, int) and getattr(first, "ndim", 1) > 0
    sampler = make() if hint is None else hint(make())
    how = {"batch_sampler": sampler} if is_batch else {"sampler": sampler, "batch_size": 4}
    seen: list[Any] = []
    try:
        loader = data.DataLoader(Files(), num_workers=workers, collate_fn=list, **how)
        for _ in range(2):
            for number, batch in enumerate(itertools.islice(loader, 20)):
                seen.append([plain(each) for each in batch])
                if die is not None and number == 2:
                    die()
                states()
            seen.append(states())
    except Exception as error:  # noqa: BLE001 - compared
        seen.append((type(error).__name__, str(error).splitlines()[-1:]))
    return seen


LOADED = [kind for kind in KINDS if "waits" not in kind and "begins" not in kind and kind != "dictionaries"]
"""Who waits for the training cannot be drawn ahead by a loader either."""
REFILLED = {"a list cleared and filled", "an array overwritten", "a tensor filled anew", "has a state and a buffer"}
"""Their buffer is filled anew while the loader's queue may still have to write the batch before: with workers what the
bare sampler gives differs from run to run."""
FEW = ["random", "batches of random", "draws lazily", "few-shot categories", "has a state", "endless batches"]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        pytest.param(kind, workers, marks=([pytest.mark.slow] if workers else []) if kind in FEW else pytest.mark.long)
        for workers in (0, 2)
        for kind in LOADED
        if not (workers and kind in REFILLED)
    ],
)
def test_a_loader_gives_what_it_gives_with_the_bare_sampler(daemon: FakeDaemon, kind: str, workers: int) -> None:
    expected = loaded(KINDS[kind], None, workers)
    assert expected
    assert loaded(KINDS[kind], hint_with(daemon), workers) == expected
    assert loaded(KINDS[kind], hint_with(daemon), workers, daemon.die) == expected
    if kind not in FEW:
        assert loaded(KINDS[kind], hint_with(daemon, "none"), workers) == expected


# --- What the daemon hears


def heard(daemon: FakeDaemon) -> Heard:
    daemon.wait(lambda: len(daemon.heard) == 1 and daemon.only.overs()[-1:] == [0])
    return daemon.only


AHEAD = {
    **{
        kind: False for kind in KINDS if kind.split(",")[0].split()[0] in {"sequential", "random", "replaced", "subset"}
    },
    **{kind: False for kind in KINDS if kind.split(",")[0].split()[0] in {"weighted", "distributed", "torchdata's"}},
    **dict.fromkeys(["batches of random", "batches with a generator", "batches, dropped", "a tensor", "groups"], False),
    **dict.fromkeys(["batches of distributed", "batches of a list", "rows of a tensor", "local batches"], False),
    **dict.fromkeys(["a list", "a range", "an array", "rows of an array", "lists in a list"], False),
    **dict.fromkeys(["has a state", "has a state and is resumed", "has a state and is its own iterator"], True),
    **dict.fromkeys(["shuffled by itself", "shuffled by global states", "endless", "endless batches"], True),
    **dict.fromkeys(["a list cleared and filled", "a tensor filled anew", "reshuffles at its end"], True),
}


@pytest.mark.parametrize("kind", AHEAD)
def test_what_is_told_ahead_is_what_comes(
    daemon: FakeDaemon, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Told once, before the second item; nothing that was given out has to withdraw it."""
    monkeypatch.setattr(told_order, "MOST", 10_000)
    monkeypatch.setattr(told_order, "AT_S", 100.0)
    monkeypatch.setattr(told_order, "_FIRST_S", 100.0)
    monkeypatch.setattr(told_order, "_BEHIND", 4096)
    sampler = hint_with(daemon, ahead=AHEAD[kind])(KINDS[kind]())
    given: list[int] = []
    items = itertools.islice(iter(sampler), 2 * MOST_ITEMS)
    for item in items:
        given.extend(item if isinstance(item, list) else np.asarray(item).reshape(-1).tolist())
    del item, items
    gc.collect()
    found = heard(daemon)
    ((first, indices),) = found.windows()
    assert first == 0
    assert indices[: len(given)] == given
    assert len(indices) == len(given) or len(given) >= 2 * MOST_ITEMS
    assert not found.only_given()


@pytest.mark.parametrize(
    "kind", ["shuffled by itself", "a generator", "draws lazily", "follows the losses", "has a state"]
)
def test_of_what_is_not_known_what_was_given_out_is_told(daemon: FakeDaemon, kind: str) -> None:
    sampler = hint_with(daemon)(KINDS[kind]())
    given = list(itertools.islice(sampler, 12))
    gc.collect()
    found = heard(daemon)
    assert found.only_given()
    for first, indices in found.windows():
        assert indices == given[first : first + len(indices)]
        assert len(indices) <= 5
    first, indices = found.windows()[-1]
    assert first + len(indices) == len(given)


def test_to_tell_what_was_given_out_takes_a_part_of_the_time(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_order, "_FREE_S", 0.0)
    monkeypatch.setattr(told_order, "_PART", 1e-9)
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    assert len(list(itertools.islice(hint_with(daemon)(KINDS["draws lazily"]()), 12))) == 12
    gc.collect()
    assert len(heard(daemon).windows()) == 1


@pytest.mark.parametrize(
    "kind", ["has a state and draws lazily", "has a state and follows the losses", "other each time"]
)
def test_what_comes_otherwise_is_told_anew_twice_and_then_only_what_was_given_out(
    daemon: FakeDaemon, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_sampler, "_LONGEST_S", 50.0)  # a busy machine is no sampler that takes long

    def train(sampler: Any) -> None:
        for item in itertools.islice(sampler, 20):
            (sampler.told if hasattr(sampler, "told") else list)(item if hasattr(sampler, "told") else [])
            random.random()

    sampler = hint_with(daemon, ahead=True)(KINDS[kind]())
    if kind == "other each time":
        next(iter(sampler))
        train(sampler)
        gc.collect()
        daemon.wait(lambda: all(each.overs() for each in daemon.heard))
        assert not daemon.heard[-1].only_given()
        return
    while not (found := [each for each in daemon.heard if each.only_given()]):  # it may join late, and see few items
        train(sampler)
        gc.collect()
        daemon.wait(lambda: all(each.overs() for each in daemon.heard))
    ahead = [message.only_given for message in found[0].messages if hasattr(message, "only_given")].index(True)
    assert 2 <= ahead <= 3 * 2  # three times at most, each perhaps in two parts
