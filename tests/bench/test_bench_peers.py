"""The parts of `scripts/bench peers`: rows that need no daemon, the learner, and one job of two nodes."""

import pytest

from scripts.benchmarks import peers_data
from scripts.benchmarks.common import BenchError, Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_nodes import Data, Learners, learners

QUICK = Options(quick=True, runs=1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, work: Work) -> Data:
    monkeypatch.setattr(peers_data, "TINY_QUICK", 64)
    return peers_data.tiny(work, QUICK)


def test_a_wrong_file_is_noticed_and_the_others_are_read(few: Data) -> None:
    (few.folder / "class_3" / "000013.bin").write_bytes(bytes(peers_data.TINY_BYTES))
    (few.folder / "class_4" / "000014.bin").unlink()
    with learners([few.folder], few) as group:
        answer = group.readers[0].do(how="regular", seed=1, batch=8)
        with pytest.raises(BenchError, match="reads have failed"):
            Learners(group.readers).epoch(how="all", seed=1, batch=8)
    assert (answer["samples"], answer["failed"]) == (few.samples, 2)
