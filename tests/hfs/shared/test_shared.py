"""What hfs.shared does without MPI: its window and its reader, with threads in place of ranks."""

import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.layouts.layout import Layout, LayoutError
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.shared import reader as reader_module
from hfs.shared import samples as samples_module
from hfs.shared import window as window_module
from hfs.shared.batch import Batch
from hfs.shared.reader import SampleReader, indices_of, portable
from hfs.shared.samples import FunctionSamples, LayoutSamples, SamplePiece, _after
from hfs.shared.window import (
    SEMAPHORE_BYTES,
    Liveness,
    RankLost,
    Semaphore,
    State,
    Window,
    WindowEntry,
    WindowKind,
    control_bytes,
)
from tests.support.pattern import pattern, write_pattern


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reader_module, window_module):
        monkeypatch.setattr(module, "_LOOK_S", 0.01)


def windows(ranks: int, data_bytes: int, timeout_s: float = 30) -> list[Window]:
    """One for each rank, all in this process."""
    memory = memoryview(mmap.mmap(-1, control_bytes(ranks) + data_bytes))
    names = [f"rank {rank}" for rank in range(ranks)]
    made = [Window(memory, rank, names, timeout_s=timeout_s, first=not rank) for rank in range(ranks)]
    for window in made:
        window.enter()
    return made


def identity(indices: Any, out: Any) -> None:
    out[:] = indices[:, None]


def fixed_samples() -> FunctionSamples:
    return FunctionSamples(identity, (2,), np.dtype(np.int64), None)


def nothing() -> None:
    pass


def taken(window: Window, sequence: int) -> WindowEntry:
    return window.wait_entry(sequence, nothing)


def rows(window: Window, entry: WindowEntry) -> list[int]:
    """The indices of an entry, checked against its data."""
    batch = Batch(
        entry,
        range_=(0, entry.count),
        rows=(0, entry.rows),
        held=window.readable(entry.offset, entry.size),
        shape=(2,),
        dtype=np.dtype(np.int64),
        on_release=nothing,
    )
    assert batch.data.tolist() == [[i, i] for i in batch.indices.tolist()]
    return batch.indices.tolist()


# --- The reader and the ring -------------------------------------------------------------------------------------


def read_all(window: Window, found: list[Any], faults: list[BaseException]) -> None:
    try:
        for sequence in range(10**9):
            entry = taken(window, sequence)
            if entry.kind is WindowKind.BATCH:
                found.append(rows(window, entry))
            window.freed[window.rank].post()
            if entry.kind is not WindowKind.BATCH:
                return
    except BaseException as error:  # noqa: BLE001 - shown by the test
        faults.append(error)


@pytest.mark.parametrize("coalesces", [False, True])
def test_all_ranks_see_all_batches_through_a_ring_of_one(coalesces: bool) -> None:
    order = [[n, n + 1, n + 2][: n % 4] for n in range(300)]
    ranks = windows(3, 256)
    samples = fixed_samples()
    samples.coalesces = coalesces  # type: ignore[misc]  # of this one
    reader = SampleReader(ranks[0], samples, members=None, world=1, sample_bytes=16)
    reader.start(order)
    found: list[list[Any]] = [[] for _ in ranks]
    faults: list[BaseException] = []
    threads = [
        threading.Thread(target=read_all, args=(window, seen, faults))
        for window, seen in zip(ranks, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert found == [order] * 3
    assert reader.stop(30)


def test_what_is_read_ahead_is_bounded_by_the_ring_and_nothing_is_used_twice() -> None:
    """Rank 1 has released nothing: what it has not seen stays, whatever rank 0 does."""
    drawn = threading.Semaphore(0)

    def order() -> Iterator[list[int]]:
        for n in range(100):
            drawn.release()
            yield [n]

    first, second = windows(2, 5 * 64)  # a batch takes 64 bytes of head and 16 of data: two fit
    reader = SampleReader(first, fixed_samples(), members=None, world=1, sample_bytes=16)
    reader.start(order())
    for sequence in range(2):
        assert rows(first, taken(first, sequence)) == [sequence]
        first.freed[0].post()
    assert not first.filled[0].take_nowait()
    assert [rows(second, taken(second, sequence)) for sequence in range(2)] == [[0], [1]]
    second.freed[1].post()
    assert rows(first, taken(first, 2)) == [2]
    assert reader.stop(30)


def test_a_batch_is_divided_among_all_and_a_node_reads_its_own_rows() -> None:
    (window,) = windows(1, 4096)
    reader = SampleReader(window, fixed_samples(), members=[1, 3], world=4, sample_bytes=16)
    reader.start([range(10)])
    entry = taken(window, 0)
    assert (entry.count, rows(window, WindowEntry(entry.kind, entry.offset, entry.size, entry.rows, entry.rows))) == (
        10,
        [2, 3, 4, 7, 8, 9],
    )
    assert reader.bytes_read == 6 * 16
    assert reader.stop(30)


class _Twice(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_ends_the_order_after_what_came_before_it_and_the_next_order_works() -> None:
    def order() -> Iterator[list[int]]:
        yield [1]
        yield [2]
        raise LookupError("no third")

    (window,) = windows(1, 4096)
    reader = SampleReader(window, fixed_samples(), members=None, world=1, sample_bytes=16)
    reader.start(order())
    assert [rows(window, taken(window, n)) for n in range(2)] == [[1], [2]]
    entry = taken(window, 2)
    error = pickle.loads(bytes(window.readable(entry.offset, entry.size)))
    assert (entry.kind, type(error), str(error)) == (WindowKind.ERROR, LookupError, "no third")
    reader.start([[5]])
    assert rows(window, taken(window, 3)) == [5]
    assert taken(window, 4).kind is WindowKind.END
    assert reader.stop(30)


def test_errors_that_do_not_travel_are_told_in_words() -> None:
    assert isinstance(pickle.loads(portable(FileNotFoundError(2, "no", "x"))), FileNotFoundError)
    for error in (_Twice(1, 2), type("Local", (Exception,), {})("1 and 2")):
        told = pickle.loads(portable(error))
        assert type(told) is HfsError
        assert str(told) == f"{type(error).__name__}: 1 and 2"


def test_an_order_that_is_skipped_ends() -> None:
    (window,) = windows(1, 4096)
    reader = SampleReader(window, fixed_samples(), members=None, world=1, sample_bytes=16)
    going = threading.Event()

    def endless() -> Iterator[list[int]]:
        while True:
            yield [1]
            going.wait()

    reader.start(endless())
    reader.skip()
    going.set()
    entry = next(entry for n in range(100) if (entry := taken(window, n)).kind is not WindowKind.BATCH)
    assert entry.kind is WindowKind.END
    assert reader.stop(30)


@pytest.mark.parametrize("batch", [[[1, 2]], ["a"], [0.5], 3, None, [True]])
def test_batches_that_are_none(batch: object) -> None:
    with pytest.raises(TypeError, match="list of integers"):
        indices_of(batch)


def test_batches_by_any_name() -> None:
    assert indices_of([]).tolist() == []
    assert indices_of(range(3)).tolist() == [0, 1, 2]
    assert indices_of(np.array([1, 2], np.uint8)).dtype == np.int64


# --- Losing ranks ------------------------------------------------------------------------------------------------


def test_a_rank_that_has_closed_is_not_waited_for() -> None:
    first, second = windows(2, 256)
    reader = SampleReader(first, fixed_samples(), members=None, world=1, sample_bytes=16)
    reader.start([[n] for n in range(10)])
    second.leave(State.CLOSED)
    seen = []
    for sequence in range(10):
        seen += rows(first, taken(first, sequence))
        first.freed[0].post()
    assert seen == list(range(10))
    assert reader.stop(30)
    assert first.wait_closed(nothing) == []


def test_who_waits_for_a_rank_that_has_left_hears_its_words() -> None:
    first, second, third = windows(3, 256)
    second.leave(State.FAILED, "OSError: " + "long " * 200)
    with pytest.raises(RankLost, match=r"rank 1 has left: OSError: long long"):
        taken(third, 0)
    with pytest.raises(RankLost, match="rank 1 has left"):
        taken(first, 0)
    third.leave(State.CLOSED)
    (fault,) = first.wait_closed(nothing)
    assert fault.startswith("rank 1 has left: OSError")


def test_who_waits_for_a_root_that_has_closed_hears_it() -> None:
    first, second = windows(2, 256)
    first.leave(State.CLOSED)
    with pytest.raises(RankLost, match=r"rank 0, which reads for this node, has closed"):
        taken(second, 0)


def test_a_process_that_has_ended_is_recognised_and_its_successor_is_not_it() -> None:
    here = Liveness.mine()
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()[19])
    there = Liveness(child.pid, started, here.namespace)
    assert not there.gone(here)
    assert Liveness(child.pid, started - 1, here.namespace).gone(here)  # its number was given again
    assert not Liveness(child.pid, started - 1, here.namespace + 1).gone(here)  # another container: nothing is known
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert there.gone(here)  # still a zombie
    child.communicate()
    assert there.gone(here)


def test_a_rank_that_does_not_take_its_batches_is_named_to_all() -> None:
    first, second = windows(2, 256, timeout_s=0.01)
    reader = SampleReader(first, fixed_samples(), members=None, world=1, sample_bytes=16)
    reader.start([[n] for n in range(10)])
    for sequence in range(2):
        taken(first, sequence)
        first.freed[0].post()
    with pytest.raises(RankLost, match="rank 1 has not taken its next batch"):
        taken(first, 2)
    for sequence in range(2):  # what it has been given it may still see
        assert rows(second, taken(second, sequence)) == [sequence]
    with pytest.raises(RankLost, match="rank 1 has not taken its next batch"):
        taken(second, 2)
    assert first.wait_closed(nothing) == ["rank 1 has not closed its NodeBatches in 0.01 s (timeout_s)"]
    assert reader.stop(30)


def test_a_root_that_delivers_nothing_is_named() -> None:
    _, second = windows(2, 256, timeout_s=0.01)
    with pytest.raises(RankLost, match=r"rank 0, which reads for this node, has not delivered batch 0 in 0\.01 s"):
        taken(second, 0)


# --- Semaphores --------------------------------------------------------------------------------------------------


def test_a_semaphore_counts_waits_and_gives_up() -> None:
    memory = np.zeros(SEMAPHORE_BYTES // 8, np.int64)
    one = Semaphore(memory.ctypes.data)
    one.init()
    assert not one.take_nowait()
    assert not one.take(0.001)
    one.post()
    one.post()
    assert one.take(0)
    assert one.take_nowait()
    assert not one.take_nowait()
    other = threading.Thread(target=one.post)
    other.start()
    assert one.take(30)
    other.join()


# --- Samples -----------------------------------------------------------------------------------------------------

SEEDS = (5, 6)
FILE_BYTES = 200_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for number, seed in enumerate(SEEDS):
        write_pattern(made / str(number), seed, FILE_BYTES)
    return made


extents_of_samples = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, FILE_BYTES - 1), st.integers(1, 30_000)), max_size=4),
    min_size=1,
    max_size=8,
).filter(any)


@given(extents_of_samples, st.data(), st.sampled_from([1, 3]))
def test_any_extents_are_read_as_they_are(
    folder: Path, extents: list[list[tuple[int, int, int]]], data: st.DataObject, threads: int
) -> None:
    flat = [(file, at, min(size, FILE_BYTES - at)) for sample in extents for file, at, size in sample]
    files, offsets, sizes = (np.array(column) for column in zip(*flat, strict=True))
    starts = np.cumsum([0, *map(len, extents)])
    layout = Layout(b"0\x001", np.array([FILE_BYTES] * 2), extents=files, offsets=offsets, sizes=sizes, starts=starts)
    batches = data.draw(st.lists(st.lists(st.integers(0, len(extents) - 1), max_size=6), min_size=1, max_size=3))
    samples = LayoutSamples(layout, str(folder), threads)
    try:
        at, pieces = 7, []
        for batch in batches:
            indices = np.array(batch, np.int64)
            pieces.append(SamplePiece(indices, at, int(samples.sizes(indices).sum())))
            at += pieces[-1].size + 3
        memory = np.zeros(at, np.uint8)
        samples.read(memory, [piece for piece in pieces if piece.size] or pieces)
        for piece in pieces:
            want = b"".join(
                pattern(SEEDS[files[e]], int(offsets[e]), int(sizes[e]))
                for i in piece.indices
                for e in range(starts[i], starts[i + 1])
            )
            assert memory[piece.at : piece.at + piece.size].tobytes() == want
            assert not memory[piece.at + piece.size :][:3].any()
    finally:
        samples.close()


def test_neighbours_are_read_in_one_call_and_files_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(
        b"0",
        np.array([FILE_BYTES]),
        extents=np.zeros(100, np.int64),
        offsets=np.arange(100) * 1000,
        sizes=np.full(100, 900),
    )
    samples = LayoutSamples(layout, str(folder), 1)
    memory = np.zeros(90_000, np.uint8)
    backwards = np.arange(100)[::-1].copy()
    samples.read(memory, [SamplePiece(backwards[:50], 0, 45_000), SamplePiece(backwards[50:], 45_000, 45_000)])
    assert samples.reads == 1
    assert memory[:900].tobytes() == pattern(SEEDS[0], 99_000, 900)
    monkeypatch.setattr(samples_module.os, "preadv", _short_preadv)
    again = np.zeros(90_000, np.uint8)
    samples.read(again, [SamplePiece(backwards, 0, 90_000)])
    assert again.tobytes() == memory.tobytes()
    samples.close()


_preadv = os.preadv


def _short_preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """As a file system that gives less than was asked for."""
    return _preadv(descriptor, [buffers[0][:333]], offset)


def test_whole_files_and_files_that_have_changed(folder: Path) -> None:
    samples = LayoutSamples(Layout(b"0\x001"), str(folder), 2)
    assert samples.sizes(np.array([1, 0, 1])).tolist() == [FILE_BYTES] * 3
    memory = np.zeros(FILE_BYTES, np.uint8)
    samples.read(memory, [SamplePiece(np.array([1]), 0, FILE_BYTES)])
    assert memory.tobytes() == pattern(SEEDS[1], 0, FILE_BYTES)
    samples.close()
    shorter = LayoutSamples(Layout(b"0", np.array([FILE_BYTES + 1])), str(folder), 1)
    with pytest.raises(LayoutError, match=r"/0: changed since the layout was made; build it again"):
        shorter.read(np.zeros(FILE_BYTES + 1, np.uint8), [SamplePiece(np.array([0]), 0, FILE_BYTES + 1)])
    with pytest.raises(IndexError, match="sample -1: there are 1, from 0"):
        shorter.sizes(np.array([0, -1]))
    shorter.close()


def test_of_many_files_none_stays_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "_OPEN_FILES", 1)
    samples = LayoutSamples(Layout(b"0\x001"), str(folder), 1)
    before = len(os.listdir("/proc/self/fd"))
    samples.read(np.zeros(2 * FILE_BYTES, np.uint8), [SamplePiece(np.array([1, 0]), 0, 2 * FILE_BYTES)])
    assert len(os.listdir("/proc/self/fd")) == before
    samples.close()


def test_buffers_after_a_short_read() -> None:
    buffers = [memoryview(b"abc"), memoryview(b"de")]
    assert [b"".join(_after(buffers, got)) for got in range(6)] == [b"abcde", b"bcde", b"cde", b"de", b"e", b""]


def test_sizes_of_a_function_are_checked() -> None:
    samples = FunctionSamples(identity, None, np.dtype(np.uint8), lambda indices: [1, 2])
    assert samples.sizes(np.array([7, 8])).tolist() == [1, 2]
    with pytest.raises(ValueError, match="sizes gives"):
        samples.sizes(np.array([7]))


def test_samples_that_do_not_fit_what_was_said_are_named() -> None:
    (window,) = windows(1, 4096)
    reader = SampleReader(
        window, FunctionSamples(identity, None, np.dtype(np.uint8), [16, 17]), members=None, world=1, sample_bytes=16
    )
    wrong = ([[0, 1]], "batch 0: sample 1 is 17 bytes"), ([[0] * 500], "more than the 4,096")
    for sequence, (order, words) in enumerate(wrong):
        reader.start(order)
        entry = taken(window, sequence)
        error = pickle.loads(bytes(window.readable(entry.offset, entry.size)))
        assert isinstance(error, ConfigError)
        assert words in str(error)
    assert reader.stop(30)


def test_importing_starts_no_mpi() -> None:
    code = "import sys, hfs.shared; sys.exit('mpi4py' in sys.modules or 'trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
