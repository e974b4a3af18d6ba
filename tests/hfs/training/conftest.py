"""A daemon that hinted samplers tell of themselves."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hfs.training.learners import FakeDaemon, listening


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with listening(tmp_path / "s") as daemon:
        yield daemon
        gc.collect()  # samplers that were dropped leave
