"""Where the time of an epoch goes, on a clock that the test turns."""

import gc
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs import exposed
from hfs.exposed import EpochTimes, Waiting, timed, waiting
from hfs.hint import hinted
from tests.hfs.training.learners import listening


class Clock:
    now = 100.0
    computed = 0.0

    def process_time(self) -> float:
        return self.computed

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exposed, "time", clock)
    return clock


class Loader:
    """Three batches: 1 s to set up, 10 s for each batch, 5 s to find the end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.dataset = "the dataset"

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        self.clock.now += 1
        return self.batches()

    def batches(self) -> Iterator[int]:
        for i in range(3):
            self.clock.now += 10
            yield i
        self.clock.now += 5


def test_all_of_an_epochs_time_is_one_of_three(clock: Clock) -> None:
    loader = timed(Loader(clock))
    assert (len(loader), loader.dataset) == (3, "the dataset")
    clock.now += 7  # making the model
    for epoch in range(2):
        for _ in loader:
            clock.now += 100
        clock.now += 50  # validation
        assert len(loader.epochs) == epoch + 1
    assert loader.epochs == [EpochTimes(0, 30, 300, 7 + 1 + 5, 3, 10), EpochTimes(1, 30, 300, 50 + 1 + 5, 3, 10)]


def test_a_loop_that_is_left_and_a_loader_that_fails(clock: Clock) -> None:
    loader = timed(Loader(clock))
    for _ in loader:
        clock.now += 100
        break
    gc.collect()
    assert loader.epochs == [EpochTimes(0, 10, 100, 1, 1, 10)]

    def failing() -> Iterator[int]:
        clock.now += 10
        yield 0
        clock.now += 3
        raise OSError("no more")

    loader = timed(failing())
    with pytest.raises(OSError, match="no more"):
        list(loader)
    assert loader.epochs == [EpochTimes(0, 10, 0, 3, 1, 10)]


def test_a_loop_that_calls_next_itself(clock: Clock) -> None:
    account = Waiting()
    batches = iter(Loader(clock))
    while True:
        try:
            with account:
                next(batches)
        except StopIteration:
            break
        clock.now += 100
    assert account.epochs == [EpochTimes(0, 30, 300, 1 + 5, 3, 10)]
    with account:
        clock.now += 2
    clock.now += 3
    assert account.end_epoch() == EpochTimes(1, 2, 3, 0, 1, 2)
    assert waiting() is waiting()
    assert waiting() is waiting([1])


def test_the_daemon_is_told_once_a_second(tmp_path: Path, clock: Clock) -> None:
    with listening(tmp_path / "s") as daemon:
        sampler = hinted(range(3), files=["/m/a"] * 3, mount="/m", control=daemon.path)

        class WithSampler(Loader):
            def __init__(self) -> None:
                super().__init__(clock)
                self.sampler = sampler

            def batches(self) -> Iterator[int]:
                for index in sampler:
                    clock.now += 0.25
                    yield index

        loader = timed(WithSampler())
        for _ in loader:
            clock.now += 0.5
        daemon.wait(lambda: daemon.only.overs() == [0] and len(daemon.only.waited()) == 3)
        first, second, last = daemon.only.waited()
        assert (first.epoch, first.exposed_s, first.compute_s, first.other_s, first.batches) == (0, 0.25, 0, 1, 1)
        assert (second.exposed_s, second.compute_s, second.batches) == (0.75, 1, 3)
        assert (last.exposed_s, last.compute_s, last.batches) == (0.75, 1.5, 3)

        # The same in a loop of one's own, without StopIteration: the sampler's next epoch is the account's next.
        account = waiting(sampler)
        assert account is waiting(sampler)
        for _ in range(2):
            batches = iter(sampler)
            for _ in range(3):
                with account:
                    clock.now += 1
                    next(batches)
                clock.now += 10
            del batches  # left
        account.end_epoch()
        assert account.epochs == [EpochTimes(1, 3, 30, 0, 3, 1), EpochTimes(2, 3, 30, 0, 3, 1)]
        del loader
        gc.collect()


@pytest.mark.parametrize(("computed_s", "workers"), [(0.5, 2), (9.0, None)], ids=["in processes", "in threads"])
def test_the_daemon_is_told_how_many_load(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, computed_s: float, workers: int | None
) -> None:
    """The most that there were: they may have ended before the epoch. Threads nobody can count."""
    started = [0, 0]
    monkeypatch.setattr(multiprocessing, "active_children", lambda: started)
    with listening(tmp_path / "s") as daemon:
        sampler = hinted(range(3), files=["/m/a"] * 3, mount="/m", control=daemon.path)
        for index in timed((index for index in sampler), sampler):
            clock.now += 2
            clock.computed += computed_s if index else 0
            started = started[:1]
        daemon.wait(lambda: len(daemon.only.waited()) == 4)
        assert next(told.workers for told in daemon.only.waited()) == 2
        assert [told.workers for told in daemon.only.waited()][-1] == workers
        assert {told.cores for told in daemon.only.waited()} == {len(os.sched_getaffinity(0))}


def test_timed_keeps_no_batch(clock: Clock) -> None:
    class Batch:
        live = most = 0

        def __init__(self) -> None:
            Batch.live += 1
            Batch.most = max(Batch.most, Batch.live)

        def __del__(self) -> None:
            Batch.live -= 1

    for batch in timed(Batch() for _ in range(5)):
        del batch  # as a loop with large batches would
    assert Batch.most == 1
