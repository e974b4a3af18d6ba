"""ThreadedFetch: alone, and with the real DataLoader, its workers forked and spawned."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.loading import ThreadedFetch


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hfs-fetch")]


class Squares:
    """Sample i is i * i; those of `wrong` raise ValueError. Remembers which threads it saw."""

    def __init__(self, count: int, wrong: tuple[int, ...] = (), together: int = 0) -> None:
        self.count, self.wrong = count, wrong
        self.classes = ["even", "odd"]
        self.threads: set[str] = set()
        self.meet = threading.Barrier(together) if together else None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.threads.add(threading.current_thread().name)
        if self.meet is not None:
            self.meet.wait(20)
        if index in self.wrong:
            raise ValueError(f"sample {index}")
        return index * index


class Whole(Squares):
    """Gives batches itself."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * index for index in indices]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_the_samples_in_their_order(indices: list[int], threads: int) -> None:
    fetch = ThreadedFetch(Squares(51), threads)
    assert fetch.__getitems__(indices) == [index * index for index in indices]
    whole = Whole(51)
    batched = ThreadedFetch(whole, threads)
    assert batched.__getitems__(indices) == [index * index for index in indices]
    assert len(whole.asked) <= threads
    assert sorted(index for part in whole.asked for index in part) == sorted(indices)
    fetch.close()
    batched.close()
    assert not ours()


def test_so_many_threads_work_at_a_time() -> None:
    squares = Squares(12, together=4)
    fetch = ThreadedFetch(squares, 4)
    assert fetch.__getitems__(range(12)) == [index * index for index in range(12)]
    assert len(squares.threads) == 4
    assert threading.current_thread().name in squares.threads
    fetch.close()


@given(st.sets(st.integers(0, 29), min_size=1, max_size=6), st.integers(1, 5))
def test_the_first_error_is_the_bare_data_sets(wrong: set[int], threads: int) -> None:
    fetch = ThreadedFetch(Squares(30, tuple(wrong)), threads)
    with pytest.raises(ValueError, match=f"^sample {min(wrong)}$"):
        fetch.__getitems__(range(30))
    assert fetch.__getitems__([30, 31]) == [900, 961], "it goes on"
    fetch.close()


def test_of_two_errors_at_a_time_the_first_sample_has_it() -> None:
    later = threading.Event()

    class Both(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 0:
                assert later.wait(20)
            else:
                later.set()
            raise ValueError(f"sample {index}")

    fetch = ThreadedFetch(Both(2), 2)
    with pytest.raises(ValueError, match=r"^sample 0$"):
        fetch.__getitems__([0, 1])
    fetch.close()


def test_an_exit_in_a_thread_is_not_lost() -> None:
    class Exits(Squares):
        def __getitem__(self, index: int) -> int:
            super().__getitem__(index)
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit(3)
            return 0

    fetch = ThreadedFetch(Exits(2, together=2), 2)
    with pytest.raises(SystemExit):
        fetch.__getitems__([0, 1])
    fetch.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As a program at a terminal: one that a script has started in the background ignores SIGINT, and so do we then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_batch_and_leaves_nobody_working() -> None:
    begun = threading.Event()
    seen: list[int] = []

    class Slow(Squares):
        def __getitem__(self, index: int) -> int:
            seen.append(index)
            if threading.current_thread() is threading.main_thread():
                begun.set()
                signal.raise_signal(signal.SIGINT)
            begun.wait(20)
            threading.Event().wait(0.01)  # not all are read before the interrupt arrives
            return index

    fetch = ThreadedFetch(Slow(1000), 2)
    with pytest.raises(KeyboardInterrupt):
        fetch.__getitems__(range(1000))
    after = len(seen)
    assert after < 1000
    fetch.close()
    assert len(seen) == after
    assert not ours()


def test_its_threads_end_with_it() -> None:
    fetch = ThreadedFetch(Squares(9), 3)
    fetch.__getitems__(range(9))
    threads = ours()
    assert threads
    del fetch
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_it_passes_for_the_data_set() -> None:
    fetch = ThreadedFetch(Squares(9), 3)
    assert (len(fetch), fetch[4], fetch.classes, fetch.count) == (9, 16, ["even", "odd"], 9)
    with pytest.raises(AttributeError):
        fetch.missing  # noqa: B018 - the access is the test
    fetch.__getitems__(range(9))
    for other in (copy.copy(fetch), copy.deepcopy(fetch), pickle.loads(pickle.dumps(fetch))):
        assert other.threads == 3
        assert other.__getitems__([3, 2]) == [9, 4]
        other.close()
    fetch.close()
    fetch.close()


def test_after_a_fork_the_child_has_threads_of_its_own() -> None:
    fetch = ThreadedFetch(Squares(9), 3)
    fetch.__getitems__(range(9))
    fetch._lock.acquire()  # as if another thread of the parent were at it
    child = os.fork()
    if not child:
        right = fetch.__getitems__(range(9)) == [index * index for index in range(9)]
        os._exit(0 if right and ours() else 1)
    fetch._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fetch.close()


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_numbers_of_threads(threads: int) -> None:
    with pytest.raises(ValueError, match=r"must be in \[1, 1024\]"):
        ThreadedFetch([1], threads)


@pytest.mark.parametrize(("dataset", "threads"), [(iter([1]), 2), ({1}, 2), ([1], 1.5), ([1], "2")])
def test_what_is_no_data_set_and_no_number(dataset: Any, threads: Any) -> None:
    with pytest.raises(TypeError):
        ThreadedFetch(dataset, threads)


# -- PyTorch ----------------------------------------------------------------------------------------------------------


class Where(Squares):
    """Sample i is (i, the process); each batch of four is read by two threads at a time."""

    def __getitem__(self, index: int) -> tuple[int, int]:  # type: ignore[override] # another kind of sample
        super().__getitem__(index)
        return index, os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "meet": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.meet = threading.Barrier(2)


@pytest.fixture
def data() -> Any:
    return pytest.importorskip("torch.utils.data")


@pytest.mark.parametrize("method", [None, "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_loader(data: Any, method: str | None) -> None:
    fetch = ThreadedFetch(Where(16, together=2), 2)
    loader = data.DataLoader(
        fetch,
        4,
        num_workers=0 if method is None else 2,
        multiprocessing_context=method,
        timeout=30 * (method is not None),
    )
    batches = list(loader)
    assert [index for indices, _ in batches for index in indices.tolist()] == list(range(16))
    processes = {pid for _, pids in batches for pid in pids.tolist()}
    assert len(processes) == (1 if method is None else 2)
    assert (os.getpid() in processes) == (method is None)
    assert bool(ours()) == (method is None)
    fetch.close()
    assert not ours()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_errors_and_subsets_through_a_loader(data: Any, workers: int) -> None:
    fetch = ThreadedFetch(Squares(20, (13,)), 3)
    make: Callable[..., Any] = lambda dataset: data.DataLoader(dataset, 5, num_workers=workers)  # noqa: E731 - twice
    with pytest.raises(ValueError, match="sample 13"):
        list(make(fetch))
    subset = data.Subset(fetch, range(2, 12))
    assert [batch.tolist() for batch in make(subset)] == [[4, 9, 16, 25, 36], [49, 64, 81, 100, 121]]
    fetch.close()
    assert not ours()


def test_iterable_data_sets_are_refused(data: Any) -> None:
    class Stream(data.IterableDataset):  # type: ignore[misc,name-defined] # torch may be missing
        def __iter__(self) -> Any:
            return iter([1])

    with pytest.raises(TypeError, match="Stream has no samples by index"):
        ThreadedFetch(Stream(), 2)
