"""`hinted`: the daemon hears the order, and the training sees exactly what the bare sampler gives out."""

import copy
import gc
import itertools
import operator
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.hint import hinted, hints_of
from hfs.layouts.layout import Layout
from hfs.mountd.wire.hints import MAX_LAYOUT_BYTES
from hfs.mountd.wire.protocol import Failure, encode
from hfs.samplers import GroupShuffleSampler
from hfs.training import told_order
from tests.conftest import Logs
from tests.hfs.training.learners import FakeDaemon, listening
from tests.support.examples import examples

FILES = [f"/m/train/{i:03d}.jpg" for i in range(100)]


def with_hint(sampler: Any, daemon: FakeDaemon, **options: Any) -> Any:
    options = {"files": FILES, "mount": "/m", "control": daemon.path, **options}
    return hinted(sampler, **options)


class Shuffled:
    """A sampler as torch's DistributedSampler is, in few lines."""

    def __init__(self, count: int, rank: int = 0, num_replicas: int = 1) -> None:
        self.count, self.rank, self.num_replicas = count, rank, num_replicas
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(range(self.rank, self.count, self.num_replicas))

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        return iter(order[self.rank :: self.num_replicas])


def test_the_daemon_hears_all_and_the_training_sees_no_difference(daemon: FakeDaemon) -> None:
    bare = Shuffled(100, 1, 2)
    sampler = with_hint(Shuffled(100, 1, 2), daemon, name="train", ahead=True)
    for epoch in (0, 1):
        bare.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert list(sampler) == list(bare)
    daemon.wait(lambda: daemon.only.overs() == [0, 1])
    join = daemon.only.join
    assert (join.name, join.rank, join.world) == ("train", 1, 2)
    assert daemon.layouts[join.layout].files == b"\0".join(f"train/{i:03d}.jpg".encode() for i in range(100))
    assert daemon.uploads == 1
    orders = daemon.only.orders()
    assert [epoch for epoch, _ in orders] == [0, 1]
    assert orders[1][1] == list(bare)
    assert daemon.only.positions()[0] == 1
    assert not daemon.only.orders(following=True)  # nobody knows that this class can be looked ahead in


def test_an_epoch_is_the_one_of_iter_not_of_the_first_next(daemon: FakeDaemon) -> None:
    sampler = with_hint(Shuffled(10), daemon)
    iterator = iter(sampler)
    sampler.set_epoch(9)
    assert list(iterator) == list(Shuffled(10))
    daemon.wait(lambda: daemon.only.overs() == [0])


def test_the_daemon_sees_the_end_while_a_forked_child_lives(daemon: FakeDaemon) -> None:
    sampler = with_hint(range(3), daemon)
    assert list(sampler) == [0, 1, 2]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent has ended it
        os._exit(0)
    os.close(reading)
    try:
        del sampler
        gc.collect()
        daemon.wait(lambda: daemon.only.gone)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_progress_is_the_number_of_samples_given_out(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    batches = [[1, 2, 3], [4], [], [5, 6]]
    assert list(with_hint(batches, daemon)) == batches
    daemon.wait(lambda: daemon.only.overs() == [0])
    assert daemon.only.positions() == [3, 4, 4, 6]
    assert daemon.only.orders() == [(0, [1, 2, 3, 4, 5, 6])]


def test_an_early_stop_ends_the_epoch_and_the_connection_stays(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    sampler = with_hint(range(100), daemon)
    assert list(itertools.islice(sampler, 3)) == [0, 1, 2]
    gc.collect()
    daemon.wait(lambda: daemon.only.overs() == [0])
    assert next(iter(sampler)) == 0
    daemon.wait(lambda: daemon.only.overs() == [0, 1])
    # Of the second epoch nothing was taken but its first sample: for that the next order does not hold up the job.
    assert [epoch for epoch, _ in daemon.only.orders(following=True)] == [1]


def test_two_iterators_at_once_have_a_connection_each_and_more_than_four_have_not(daemon: FakeDaemon) -> None:
    sampler = with_hint([3, 1, 2], daemon)
    iterators = [iter(sampler) for _ in range(6)]
    assert [next(each) for each in iterators] == [3] * 6
    assert [list(each) for each in iterators] == [[1, 2]] * 6
    daemon.wait(lambda: len(daemon.heard) == 4 and sum(len(heard.overs()) for heard in daemon.heard) == 4)
    assert sum(len(heard.orders()) for heard in daemon.heard) == 6
    assert list(sampler) == [3, 1, 2]  # by one of those that are free now
    assert len({heard.join.process for heard in daemon.heard}) == 1


def test_a_length_that_is_too_short_and_a_sampler_that_fails(daemon: FakeDaemon) -> None:
    class Odd:
        def __init__(self, fault: Exception | None) -> None:
            self.fault = fault

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            yield from (5, 6)
            if self.fault is not None:
                raise self.fault
            yield from (7, 8, 9)

    assert list(with_hint(Odd(None), daemon, ahead=True)) == [5, 6, 7, 8, 9]
    got: list[int] = []
    with pytest.raises(OSError, match="no more"):
        got.extend(with_hint(Odd(OSError("no more")), daemon, ahead=True))
    assert got == [5, 6]
    gc.collect()
    daemon.wait(lambda: sum(len(heard.overs()) for heard in daemon.heard) == 2)
    assert [heard.orders() for heard in daemon.heard] == [[(0, [5, 6, 7, 8, 9])], [(0, [5, 6])]]


def test_an_endless_sampler_is_drawn_in_part(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_order, "MOST", 10)
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    sampler = with_hint(_Endless(), daemon, ahead=True)
    with pytest.raises(TypeError):
        len(sampler)
    assert list(itertools.islice(sampler, 25)) == [i % 7 for i in range(25)]
    gc.collect()
    daemon.wait(lambda: daemon.only.overs() == [0])
    orders = daemon.only.windows()
    assert orders[0][0] == 0
    assert all(
        len(order) <= 10 + 25 and order == [i % 7 for i in range(first, first + len(order))] for first, order in orders
    )
    assert orders[-1][0] + len(orders[-1][1]) > 25


class _Endless:
    def __iter__(self) -> Iterator[int]:
        return (i % 7 for i in itertools.count())


_integers = st.integers(0, 99)
_items = st.one_of(
    st.lists(_integers),
    st.lists(st.lists(_integers)),
    st.lists(st.one_of(_integers, st.lists(_integers), _integers.map(np.int32), st.tuples(_integers, _integers))),
    st.lists(st.lists(_integers, max_size=4).map(np.array)),
    st.lists(
        st.one_of(
            st.text(), st.floats(), st.integers(), st.none(), st.booleans(), st.dictionaries(_integers, _integers)
        )
    ),
)


@settings(max_examples=examples(150))
@given(items=_items, sized=st.booleans(), taken=st.integers(0, 40))
def test_any_sampler_gives_out_the_same_objects(items: list[Any], sized: bool, taken: int) -> None:
    class Sized:
        def __len__(self) -> int:
            return len(items)

        def __iter__(self) -> Iterator[Any]:
            return iter(items)

    class Unsized:
        def __iter__(self) -> Iterator[Any]:
            yield from items

    daemon = _shared_daemon()
    sampler = with_hint(Sized() if sized else Unsized(), daemon)
    hints = hints_of(sampler)
    assert hints is not None
    hints._warned = True  # what cannot be a hint is not told here
    for epoch in (None, taken):
        got = list(itertools.islice(sampler, epoch))
        assert len(got) == len(items[:epoch])
        assert all(map(operator.is_, got, items))


_daemons: list[FakeDaemon] = []


def _shared_daemon() -> FakeDaemon:
    return _daemons[-1]


@pytest.fixture(scope="module", autouse=True)
def _one_daemon_for_all_examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with listening(tmp_path_factory.mktemp("daemon") / "s") as daemon:
        _daemons.append(daemon)
        yield
        _daemons.pop()


def test_what_cannot_be_a_hint_is_told_once_and_given_out(daemon: FakeDaemon, logs: Logs) -> None:
    logs.expect("train: the sampler gives out 100 at position 1, and there are 100 samples; the training goes on")
    sampler = with_hint([1, 100, 2], daemon, name="train")
    assert [list(sampler), list(sampler)] == [[1, 100, 2]] * 2
    assert len(logs.records) == 1
    for sampler, reason in (
        ([1, -1], "gives out -1 at position 1"),
        ([0.5], "gives out float"),
        (["a"], "gives out str"),
        ([float("nan")], "gives out float"),
        ([1 << 70], "too large|too big"),
    ):
        logs.expect(reason)
        assert list(with_hint(sampler, daemon)) == sampler
    assert not any(heard.orders() for heard in daemon.heard)


def test_without_a_daemon(tmp_path: Path, logs: Logs) -> None:
    logs.expect(r"no daemon answers at .*; the training goes on without hints")
    sampler = hinted([2, 1], files=["/m/a", "/m/b"] * 2, mount="/m", control=str(tmp_path / "none"))
    assert [list(sampler), list(sampler)] == [[2, 1]] * 2
    assert len(logs.records) == 1
    logs.expect("in no mount of hfs")
    assert list(hinted([0], files=[str(tmp_path / "x")])) == [0]
    logs.expect("not in a mount of hfs; hfs status lists the mounts")
    assert list(hinted([0], files=[str(tmp_path / "x")], mount=str(tmp_path))) == [0]


def test_a_sampler_is_not_drawn_ahead_without_a_daemon(tmp_path: Path, logs: Logs) -> None:
    logs.expect("no daemon answers")
    drawn = []

    class Lazy:
        def __iter__(self) -> Iterator[int]:
            for i in range(5):
                drawn.append(i)
                yield i

    iterator = iter(hinted(Lazy(), files=FILES, mount="/m", control=str(tmp_path / "none")))
    assert next(iterator) == 0
    assert drawn == [0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Failure("it takes no hints"), "it takes no hints"),
        (b"\xff" * 20, "cannot be understood"),
        (encode(Failure("x"))[:3], "does not answer"),
        (None, "does not answer"),
    ],
)
def test_a_daemon_of_another_kind(
    daemon: FakeDaemon, logs: Logs, monkeypatch: pytest.MonkeyPatch, answer: Any, reason: str
) -> None:
    monkeypatch.setattr("hfs.training.hint_connection.JOIN_S", 0.05)
    daemon.on_join = lambda _join: answer
    logs.expect(reason)
    sampler = with_hint([1, 2], daemon)
    assert [list(sampler), list(sampler)] == [[1, 2]] * 2
    assert len(logs.records) == 1
    daemon.on_join = daemon.joined  # another daemon: the next epoch tries again
    assert list(sampler) == [1, 2]
    daemon.wait(lambda: daemon.heard[-1].orders() == [(0, [1, 2])])


def test_an_order_that_is_refused(daemon: FakeDaemon, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    daemon.on_order = lambda _order: Failure("this order is not followed")
    logs.expect("this order is not followed")
    iterator = iter(with_hint(list(range(100)) * 1000, daemon))
    got = [next(iterator)]
    daemon.wait(lambda: daemon.only.messages)
    while not logs.records:
        got.append(next(iterator))
    assert got == (list(range(100)) * 1000)[: len(got)]


def test_the_daemon_dies_in_mid_epoch(daemon: FakeDaemon, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_order, "AT_S", 0.0)
    logs.expect("is gone")
    sampler = with_hint(range(100), daemon)
    iterator = iter(sampler)
    got = [next(iterator) for _ in range(10)]
    daemon.wait(lambda: daemon.only.positions())
    daemon.die()
    daemon.wait(lambda: daemon.only.gone)
    assert got + list(iterator) == list(range(100))
    assert len(logs.records) == 1
    assert list(sampler) == list(range(100))
    daemon.wait(lambda: daemon.heard[-1].overs() == [1])
    assert daemon.uploads == 1
    assert len(logs.records) == 1


def test_a_daemon_that_stops_reading_holds_nobody(
    daemon: FakeDaemon, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfs.training.hint_connection.ORDER_S", 0.05)
    logs.expect("does not listen")
    order = list(range(100)) * 100
    sampler = with_hint(order, daemon)
    assert list(sampler) == order
    daemon.wait(lambda: daemon.only.overs() == [0])
    daemon.pause.clear()
    for _ in range(5):
        assert list(sampler) == order
    daemon.pause.set()
    daemon.wait(lambda: daemon.heard[0].gone)
    # Whatever had arrived was whole frames, but for the last.
    assert all(part == order for heard in daemon.heard for _, part in heard.orders())


def test_all_else_is_the_samplers(daemon: FakeDaemon) -> None:
    bare = Shuffled(10)
    sampler = with_hint(bare, daemon)
    assert isinstance(sampler, Shuffled)
    assert not isinstance(with_hint([1], daemon), list)
    sampler.set_epoch(4)
    assert (sampler.epoch, bare.epoch, len(sampler)) == (4, 4, 10)
    sampler.epoch = 5
    assert bare.epoch == 5
    with pytest.raises(AttributeError, match="nothing"):
        _ = sampler.nothing
    del sampler.epoch
    assert not hasattr(bare, "epoch")
    assert "set_epoch" in dir(sampler)
    assert hints_of(sampler) is not None
    assert hints_of(bare) is None


def test_copies_and_pickles_leave_the_connection_here(daemon: FakeDaemon) -> None:
    sampler = with_hint(Shuffled(10), daemon, ahead=True)
    iterator = iter(sampler)
    next(iterator)
    for other in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler), copy.copy(sampler)):
        other.set_epoch(3)
        assert sampler.epoch == 0
        assert isinstance(other, Shuffled)
        assert sorted(other) == list(range(10))
    daemon.wait(lambda: len(daemon.heard) == 4 and daemon.heard[0].orders() == [(0, list(Shuffled(10)))])


def test_two_hinted_epochs_of_one_number_follow_themselves(daemon: FakeDaemon) -> None:
    sampler = with_hint(GroupShuffleSampler(10, 1), daemon)
    first = list(sampler)
    daemon.wait(lambda: daemon.only.overs() == [0])
    other = GroupShuffleSampler(10, 1)
    other.set_epoch(1)
    assert daemon.only.orders(following=True) == [(1, list(other))]
    assert list(sampler) == first  # set_epoch was forgotten
    daemon.wait(lambda: daemon.only.overs() == [0, 0])
    assert daemon.only.orders(following=True)[1] == (1, first)


def test_a_layout_of_a_changed_file_is_not_used(daemon: FakeDaemon, tmp_path: Path, logs: Logs) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    mtime = (tmp_path / "a").stat().st_mtime_ns
    layout = Layout(b"a", *(np.array([n]) for n in (10, mtime, 0, 0, 10)))
    layout.save(str(tmp_path / "l"))
    options = {"files": None, "layout": tmp_path / "l", "mount": str(tmp_path)}
    assert list(with_hint([0], daemon, **options)) == [0]
    assert daemon.uploads == 1
    (tmp_path / "a").write_bytes(b"x" * 11)
    logs.expect("changed since the layout was made")
    assert list(with_hint([0], daemon, **options)) == [0]
    logs.expect("no such file")
    assert list(with_hint([0], daemon, files=None, layout=str(tmp_path / "none"))) == [0]


def test_arguments_that_contradict_each_other() -> None:
    for options in (
        {},
        {"files": FILES, "layout": "x"},
        {"files": "/m/a"},
        {"files": iter(FILES)},
        {"files": FILES, "rank": 1},
        {"files": FILES, "rank": 2, "world": 2},
    ):
        with pytest.raises(ValueError, match=r"give|list of paths"):
            hinted([1], **options)


def test_a_layout_that_is_too_long(daemon: FakeDaemon, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LAYOUT_BYTES > 1000
    monkeypatch.setattr("hfs.mountd.wire.hints.MAX_LAYOUT_BYTES", 1000)
    logs.expect("is longer than 1000")
    assert list(with_hint([1], daemon)) == [1]
