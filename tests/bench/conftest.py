"""Where benchmarks work that tests run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benchmarks import common


@pytest.fixture
def work(tmp_path: Path) -> Iterator[common.Work]:
    with common.work_folder(tmp_path / "bench") as work:
        work.data.mkdir()
        yield work
