"""The longest turn of the event loop under what another user may say, at a size at which one turn for all of it would
be twice too long. CPU time of the loop's thread, so that what else the machine does is not counted.

`scripts/bench trust --only turns` has every case at its allowed maximum.
"""

import tempfile
from pathlib import Path

import pytest

from scripts.benchmarks.trust_turns import BAR_S, measured
from tests.conftest import Logs

CASES = ("a list of files", "a layout that is none", "parts of", "requests", "many learners")


@pytest.mark.slow
def test_nobody_keeps_the_event_loop_for_long(logs: Logs) -> None:
    logs.expect("is not followed")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)  # the client is nobody
        longest, _late_s = measured(directory, 400_000, 16, *CASES)
    longest_s = dict(longest.longest_s)
    longest_s.pop("")  # before the first case, and after the last
    assert len(longest_s) >= len(CASES)
    assert not {case: turn_s for case, turn_s in longest_s.items() if turn_s > BAR_S}
