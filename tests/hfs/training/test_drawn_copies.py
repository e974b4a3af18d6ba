"""The copy that shows what a sampler will give out: the job notices nothing of it, whatever its sampler does."""

import contextlib
import copy
import cProfile
import functools
import gc
import itertools
import logging
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfs.hint import hinted
from hfs.training import copied_sampler
from hfs.training.copied_sampler import (
    _LONGEST_S,
    CopiedSampler,
    Disturbs,
    DrawingAlone,
    NotCopied,
    copied_at_begin,
    copied_at_work,
)

FILES = [f"/m/{i}" for i in range(100)]
SHARED = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _warnings_are_looked_at_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("hfs.hint"), "disabled", True)


def alone(sampler: Any) -> Any:
    """Hinted, and no daemon is there."""
    return hinted(sampler, files=FILES, mount="/m", control="/nowhere")


def gives(sampler: Any, count: int = 30, *, ahead: bool = True) -> list[int]:
    """What a copy gives out."""
    copied = copied_at_begin(sampler, None, ahead=ahead)
    assert copied is not None
    return list(itertools.islice(itertools.chain.from_iterable(piece.tolist() for piece in copied.pieces()), count))


def process() -> Any:
    """What a copy must leave as it is."""
    return random.getstate(), gc.isenabled(), sys.getprofile(), list(warnings.filters)


class Saved:
    """With a state, as torchdata has them."""

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("nobody asks the job's own")

    def load_state_dict(self, _state: Any) -> None:
        raise AssertionError("nobody loads the job's own")


class DrawsFromItsModule(Saved):
    def __iter__(self) -> Iterator[int]:
        return iter(SHARED.permutation(6).tolist())


def test_one_with_a_state_may_share_a_generator_with_the_job() -> None:
    assert copied_at_begin(DrawsFromItsModule(), None, ahead=False) is None
    assert copied_at_work(DrawsFromItsModule(), iter([1]), None, ahead=False) is None
    global SHARED  # noqa: PLW0603 - as a job's module has it
    SHARED = np.random.default_rng(0)
    expected = [list(DrawsFromItsModule()) for _ in range(2)]
    SHARED = np.random.default_rng(0)
    sampler = alone(DrawsFromItsModule())
    assert [list(sampler) for _ in range(2)] == expected


# --- What has no name of its own


def test_a_sampler_that_nobody_keeps_is_not_ended() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    assert list(alone(numbers())) == list(range(5))
    iterator = iter(alone(numbers()))
    gc.collect()
    assert list(iterator) == list(range(5))


def test_a_sampler_is_ended_once_when_it_ends() -> None:
    ended = []

    class Closes:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

        def __del__(self) -> None:
            ended.append(id(self))

    sampler = Closes()
    around = alone(sampler)
    assert list(around) == [1, 2]
    del around
    gc.collect()
    assert ended == []
    del sampler
    gc.collect()
    assert len(ended) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: map(int, range(5)),
        lambda: itertools.islice(itertools.count(), 2, 9, 3),
        lambda: itertools.chain([1], [2]),
        lambda: zip([1, 2], [3, 4], strict=True),
        lambda: enumerate("ab"),
        lambda: filter(None, range(4)),
    ],
)
def test_iterators_of_all_kinds_are_handed_on(make: Callable[[], Iterator[Any]]) -> None:
    class Gives:
        def __iter__(self) -> Iterator[Any]:
            return make()

    assert list(alone(Gives())) == list(make())


# --- The states of the process


class Shuffles:
    def __iter__(self) -> Iterator[int]:
        order = list(range(6))
        random.shuffle(order)
        return iter(order)


def test_nothing_is_copied_while_a_profiler_is_at_work() -> None:
    random.seed(4)
    expected = list(Shuffles()), random.random()
    random.seed(4)
    with cProfile.Profile():
        found = list(hinted(Shuffles(), files=FILES, mount="/m", control="/nowhere", ahead=True)), random.random()
        if sys.getprofile() is not None:  # until Python 3.12
            with pytest.raises(Disturbs):
                gives(Shuffles())
    assert found == expected
    assert gc.isenabled()


def test_time_that_runs_out_in_our_own_code_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_sampler, "_LONGEST_S", -1.0)
    before = process()
    with DrawingAlone():
        pass
    assert process() == before
    with pytest.raises(Disturbs), DrawingAlone():
        random.random()
    assert process() == before
    assert _LONGEST_S > 0


def test_who_catches_all_is_not_drawn_on() -> None:
    class Catches:
        def __iter__(self) -> Iterator[int]:
            for number in itertools.count():
                with contextlib.suppress(BaseException):
                    time.sleep(0)
                yield number

    assert gives(Catches()) == []


def test_what_a_copy_does_at_its_end_it_does_alone() -> None:
    @contextlib.contextmanager
    def seeded(seed: int) -> Iterator[None]:
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)

    class Seeds:
        def __iter__(self) -> Iterator[int]:
            with seeded(7):
                while True:
                    yield random.randrange(100)

    random.seed(1)
    copied = copied_at_begin(Seeds(), None, ahead=True)
    assert copied is not None
    pieces = copied.pieces()
    del copied
    assert len(next(pieces))
    before = process()
    random.random()
    after = process()
    del pieces
    gc.collect()
    assert process() == after
    assert after != before


def test_only_the_main_thread_draws_from_copies() -> None:
    raised: list[type] = []

    def other() -> None:
        try:
            gives(Shuffles())
        except BaseException as error:  # noqa: BLE001 - looked at
            raised.append(type(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert raised == [Disturbs]


# --- What is copied


class DataSet:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index

    def length_of(self, index: int) -> int:
        return 10 - index

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("a data set is copied")


class Slots:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = DataSet()

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data)))


class Attribute(Slots):
    def __init__(self, value: Any) -> None:
        self.value = value

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(10), key=self.value))


def test_data_sets_are_not_copied(tmp_path: Path) -> None:
    assert gives(Slots()) == list(range(10))
    assert gives(Attribute(DataSet().length_of)) == list(range(9, -1, -1))
    assert gives(Attribute(functools.partial(DataSet.length_of, DataSet()))) == list(range(9, -1, -1))
    np.save(tmp_path / "a.npy", np.arange(10)[::-1])
    mapped = Attribute(None)
    mapped.data = np.load(tmp_path / "a.npy", mmap_mode="r")
    memory = copied_at_begin(mapped, None, ahead=True)
    assert memory is not None
    assert memory._copy.data is mapped.data


def test_large_arrays_are_not_copied() -> None:
    held = Attribute(None)
    held.data = np.zeros(1 << 26)
    with pytest.raises(NotCopied, match="large arrays"):
        gives(held)


@pytest.mark.parametrize("name", ["builtin", "closure", "default"])
def test_what_a_copy_would_share_is_not_copied(name: str) -> None:
    generator = random.Random(0)

    def by_default(_index: int, own: random.Random = generator) -> float:
        return own.random()

    values = {"builtin": generator.random, "closure": lambda _index: generator.random(), "default": by_default}
    with pytest.raises(NotCopied):
        CopiedSampler(Attribute(values[name]), None, ahead=True)


def test_a_state_is_taken_from_the_copy() -> None:
    class Counts(Slots):
        asked = 0

        def __init__(self) -> None:
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            Counts.asked += self is sampler
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

        def __iter__(self) -> Iterator[int]:
            while self.at < 9:
                self.at += 1
                yield self.at - 1

    sampler = Counts()
    iterator = iter(sampler)
    assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
    copied = copied_at_work(sampler, iterator, None, ahead=True)
    assert copied is not None
    assert [number for piece in copied.pieces() for number in piece.tolist()] == [4, 5, 6, 7, 8]
    assert Counts.asked == 0


# --- Sent to other processes


class Numbers:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def double(index: int) -> int:
    return 2 * index


def test_hints_that_cannot_be_sent_stay_behind() -> None:
    sent = hinted(Numbers(), files=FILES, mount="/m", control="/nowhere", index_of=double)
    assert "hinted" in repr(pickle.loads(pickle.dumps(sent)))
    kept = hinted(Numbers(), files=FILES, mount="/m", control="/nowhere", index_of=lambda index: index)
    alike = pickle.loads(pickle.dumps(kept))
    assert list(alike) == list(range(4))
    assert "hinted" not in repr(alike)
    assert list(copy.copy(kept)) == list(range(4))


def test_a_sampler_that_makes_its_generator_anew_each_epoch_is_copied() -> None:
    class Shuffled:
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng([7, 1]).permutation(100).tolist())

    copied = copied_at_begin(Shuffled(), None, ahead=True)
    assert copied is not None
    assert np.concatenate(list(copied.pieces())).tolist() == list(Shuffled())
