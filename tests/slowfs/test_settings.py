"""What slowfs is told at its start, and what it makes of that by itself.

Every fault test and benchmark believes it, so it is tested first.
"""

import subprocess
from pathlib import Path

import pytest

from tests.slowfs.mounted import PATIENCE_S, SLOWFS


def test_cost_model(built: None) -> None:
    subprocess.run([SLOWFS / "slowfs", "--self-test"], check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("wrong", ["read_us", "read_us=", "read_us=-1", "read_us=1x", "nothing_us=1", "inflight=0"])
def test_wrong_settings_are_refused(built: None, tmp_path: Path, wrong: str) -> None:
    command = [SLOWFS / "slowfs", "--set", wrong, tmp_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
