"""The parts of `scripts/bench trust`: its groups, and the pattern by which readers tell a wrong byte."""

from pathlib import Path

import pytest

from scripts.benchmarks import common, trust_faults
from scripts.benchmarks.common import BenchError, Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.readers.pattern import block, wrong_bytes
from scripts.benchmarks.trust_soak import Watch


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 4095, 4096, 123_457])
def test_a_piece_is_the_same_wherever_it_begins(offset: int) -> None:
    whole = block(3, 0, 200_000)
    assert block(3, offset, 1000).tobytes() == whole[offset : offset + 1000].tobytes()


def test_a_wrong_byte_another_file_and_another_place_are_seen() -> None:
    data = bytearray(block(3, 4096, 4096).tobytes())
    assert wrong_bytes(3, 4096, data) == 0
    data[100] ^= 1
    assert wrong_bytes(3, 4096, data) == 1
    assert wrong_bytes(4, 4096, block(3, 4096, 4096).tobytes()) > 3000
    assert wrong_bytes(3, 8192, block(3, 4096, 4096).tobytes()) > 3000


def test_growth_is_of_the_last_half() -> None:
    watch = Watch(1)
    watch.samples["threads"] = [1.0] * 8 + [100.0] * 4 + [103.0] * 4
    assert watch.growth("threads") == pytest.approx(3.0)
    watch.samples["threads"] = [100.0] * 12 + [90.0] * 4
    assert watch.growth("threads") == 0
    with pytest.raises(BenchError):
        watch.growth("descriptors")


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("where", ["source", pytest.param("cache", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "for_ever", [pytest.param(False, id="once"), pytest.param(True, id="for ever", marks=pytest.mark.long)]
)
def test_a_mount_lives_through_any_failed_call(
    work: Work, monkeypatch: pytest.MonkeyPatch, where: str, *, for_ever: bool
) -> None:
    """The Nth I/O of a daemon fails: no wrong byte, no hang, nothing lost. For each N: `scripts/bench trust`."""
    monkeypatch.setattr(trust_faults, "STRIDE_QUICK", 23)
    found = trust_faults.Found()
    trust_faults.serving(work, Options(quick=True, runs=1), where, for_ever, found)
    assert found.rounds >= 2, "too few calls to prove much"
    assert not any(found.figures().values()), found.said
    if where == "source" and for_ever:  # one fault is mended by asking again; what the cache fails no reader notices
        assert found.failed_meanwhile


@pytest.mark.parametrize("damaged", [False, True])
def test_calls_at_random_find_a_wrong_byte_and_only_that(tmp_path: Path, damaged: bool) -> None:
    (tmp_path / "files").mkdir()
    for number, size in enumerate((0, 5000, 70_000)):
        data = bytearray(block(number, 0, size).tobytes())
        if damaged and number:
            data[size // 2] ^= 1
        (tmp_path / "files" / str(number)).write_bytes(data)
    (tmp_path / "beat").write_bytes(bytes(16))
    with common.reader("calls.py", tmp_path / "files", 1, tmp_path / "beat") as caller:
        answer = caller.do(seconds=0.5)
    assert (tmp_path / "beat").read_bytes()[:8] == bytes(8)
    assert answer["calls"] > 20
    assert (answer.get("wrong", 0) > 0) == damaged
    assert answer.get("failed", 0) == answer.get("stale", 0) == answer.get("ended", 0) == 0, answer["said"]
