"""What a trace says of a job: epochs, orders, pieces, readers and what their reads cost."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hfs.layouts.layout import Layout
from hfs.layouts.trace import Read, SourceWaits, Trace, traced, waits_of
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError
from hfs.planning.simulating import later_epochs, load, recorded

CHUNK = 1 << 20


def trace_of(tmp_path: Path, reads: Sequence[Read], waits: SourceWaits | None = None) -> Trace:
    for path in {read.path for read in reads}:
        file = tmp_path / path.decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            opened.truncate(max(read.offset + read.size for read in reads if read.path == path))
    return traced(reads, str(tmp_path), waits or SourceWaits())


def shuffled(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(count).tolist()


def files(order: Sequence[int]) -> list[Read]:
    return [Read(b"d/%03d" % number, 0, 100) for number in order]


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    reads = [
        Read(b"a", 0, 100, 5_000_000, 9),
        Read(b"b", 0, 50, 5_000_300, 8),
        Read(b"a", 100, 20, 5_000_200, 9),  # goes on where the thread was, though another has read meanwhile
        Read(b"b", 0, 50, 5_000_100, 9),
    ]
    made = trace_of(tmp_path, reads, SourceWaits(3, 4500))
    made.save(str(tmp_path / "trace"))
    for again in (made, Trace.load(str(tmp_path / "trace"))):
        assert (again.samples, again.sizes.tolist()) == (3, [120, 50, 50])
        assert again.times_us.tolist() == [0, 300, 300]  # clocks of threads may be a little apart; times never go back
        assert again.threads.tolist() == [1, 2, 1]
        assert again.source_waits == SourceWaits(3, 4500)
    # Who knows nothing of times reads the same file.
    assert Layout.load(str(tmp_path / "trace")).sizes.tolist() == [120, 50, 50]
    Layout(b"a\0b").save(str(tmp_path / "plain"))
    with pytest.raises(ConfigError, match="not a layout, or cut short; a trace is what"):
        load(str(tmp_path / "plain"))


def test_wrong_times_are_refused(tmp_path: Path) -> None:
    made = trace_of(tmp_path, files(range(3)))
    for times, threads in (([0, 1], [0, 0, 0]), ([0, 1, 2], [0]), ([0, 2, 1], [0, 0, 0])):
        with pytest.raises(LayoutError):
            made.with_reads(np.array(times), np.array(threads), SourceWaits())


def test_what_readers_have_waited_is_taken_from_the_status() -> None:
    status = {"counters": {"source_waits": {"value": 7}, "source_wait_ns": {"value": 9_500_000}}}
    assert waits_of(status) - SourceWaits(2, 500) == SourceWaits(5, 9000)
    assert waits_of({}) == SourceWaits(0, 0)


def test_epochs_are_told_apart_by_what_was_read_before(tmp_path: Path) -> None:
    first, second = shuffled(50, 1), shuffled(50, 2)
    mixed = first[:47] + second[:2] + first[47:] + second[2:]  # the workers of the next epoch begin early
    found = recorded(trace_of(tmp_path, files(mixed)), CHUNK)
    assert (len(found.epochs), found.in_order, found.notes) == (2, False, [])
    names = [int(found.pieces.names[piece]) for piece in found.epochs[0].pieces]
    assert names == first
    third = later_epochs(found, 3)[2]
    assert sorted(third.pieces.tolist()) == list(range(50))
    assert third.pieces.tolist() not in [epoch.pieces.tolist() for epoch in found.epochs]


def test_an_epoch_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    found = recorded(trace_of(tmp_path, files(shuffled(50, 1) + shuffled(50, 2)[:20])), CHUNK)
    assert len(found.epochs) == 1
    assert "epoch 2 of the trace has only 40% of the reads of the first" in found.notes[0]


def test_an_epoch_may_read_things_twice(tmp_path: Path) -> None:
    drawn = np.random.default_rng(3).integers(0, 50, 100).tolist()
    found = recorded(trace_of(tmp_path, files(drawn)), CHUNK)
    assert [len(epoch.pieces) for epoch in found.epochs] == [100]
    assert "several times" in found.notes[0]


def test_files_in_order_are_read_so_again(tmp_path: Path) -> None:
    found = recorded(trace_of(tmp_path, files(range(100))), CHUNK)
    assert found.in_order
    first, again = later_epochs(found, 2)
    assert first.pieces.tolist() == again.pieces.tolist()


def test_large_files_are_read_in_chunks(tmp_path: Path) -> None:
    reads = [
        Read(b"large", 0, 3 * CHUNK + 10),
        Read(b"large", 5 * CHUNK - 10, 30),
        Read(b"small", 0, 10),
        Read(b"large", 7 * CHUNK, 100),
    ]
    found = recorded(trace_of(tmp_path, reads), CHUNK)
    # The chunk that nobody has read is none of the data.
    assert found.pieces.sizes.tolist() == [CHUNK] * 6 + [100, 10]
    assert found.pieces.files.tolist() == [0] * 7 + [1]
    assert found.pieces.directories.tolist() == [-1] * 7 + [0]
    assert found.epochs[0].pieces.tolist() == [0, 1, 2, 3, 4, 5, 7, 6]
    assert found.epochs[0].sizes.tolist() == [CHUNK] * 3 + [10, 10, 20, 10, 100]
    assert len(set(found.pieces.keys.tolist())) == 8


def test_readers_and_costs_are_those_of_the_recording(tmp_path: Path) -> None:
    reads = [Read(b"d/%03d" % number, 0, 100, 1 + number // 4 * 30_000, 10 + number % 4) for number in shuffled(400, 1)]
    reads.sort(key=lambda read: read.at_us)
    found = recorded(trace_of(tmp_path, reads, SourceWaits(400, 400 * 20_000)), CHUNK)
    assert found.readers == 4
    assert found.latency_s == pytest.approx(0.02)
    assert found.between_s == pytest.approx(0.01, rel=0.05)
    assert found.source_rate is None
    few = recorded(trace_of(tmp_path, reads, SourceWaits(3, 60_000)), CHUNK)
    assert few.latency_s is None


def test_of_large_files_the_rate_counts(tmp_path: Path) -> None:
    size = 8 * CHUNK
    reads = [Read(b"large", i * size, size, 1 + i * 100_000, 5 + i % 2) for i in range(21)]
    found = recorded(trace_of(tmp_path, reads, SourceWaits(21, 21 * 50_000)), size)
    assert found.source_rate == pytest.approx(21 * size / 2.0)
