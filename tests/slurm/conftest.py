"""Fixtures of tests with a real Slurm: one cluster for all tests of a file, below /tmp, where every user may go.

Without Slurm's programs these tests are skipped with the reason; in CI they fail.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import why_not


@pytest.fixture(scope="module")
def cluster_folder() -> Iterator[Path]:
    """Gone after the tests, whatever they have left in it."""
    if (reason := why_not()) is not None:
        if os.environ.get("CI"):
            pytest.fail(f"in CI no test may skip for this: {reason}", pytrace=False)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="hfs-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
