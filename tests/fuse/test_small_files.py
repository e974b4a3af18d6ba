"""Small files read in one call, from a source that is slow and changes meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hfs.mountd.source import small as source_small
from hfs.mountd.source.small import BatchProgress, SmallRead, read_files
from tests.fuse.slowfs import SlowFs

LIMIT = 64 << 10
PATIENCE_S = 20.0


class Call(threading.Thread):
    """`read_files` of these names, in a thread."""

    def __init__(self, source: SlowFs, *names: bytes) -> None:
        super().__init__(daemon=True)
        self.progress = BatchProgress()
        self.found: list[SmallRead] = []
        self._source = source
        self._names = names
        self.start()

    def run(self) -> None:
        directory = os.open(self._source.path, os.O_PATH | os.O_DIRECTORY)
        try:
            into = memoryview(bytearray(1 << 20))
            directories = [directory] * len(self._names)
            self.found = read_files(directories, self._names, into, self.progress, LIMIT, careful=False)
        finally:
            os.close(directory)

    def wait(self) -> list[SmallRead]:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.found


def until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture(params=["the extension", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the extension."""
    if request.param == "plain":
        monkeypatch.setattr(source_small, "_extension", None)
    elif source_small._extension is None:
        assert not os.environ.get("CI"), "it must be there where everything is checked"
        pytest.skip("the extension was not built")


@pytest.fixture
def slow(tmp_path: Path, slow_source: Callable[..., SlowFs]) -> SlowFs:
    """A source with three files."""
    (tmp_path / "backing").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "backing" / name).write_bytes(name.encode() * 5000)
    return slow_source(tmp_path / "backing")


def test_a_file_that_changes_while_it_is_read_has_no_bytes(slow: SlowFs, either: None) -> None:
    slow.order("fault read slow 1500 path /b")  # longer than its client remembers attributes
    call = Call(slow, b"a", b"b", b"c")
    until(lambda: slow.counters()["faults_struck"])
    (slow.backing / "b").write_bytes(b"x" * 6000)
    assert [one.data for one in call.wait()] == [b"a" * 5000, None, b"c" * 5000]
    assert call.found[1] == SmallRead(None, None)


def test_hurried_in_the_middle_it_ends_after_the_file_it_is_at(slow: SlowFs, either: None) -> None:
    slow.order("fault read hang path /b")
    call = Call(slow, b"a", b"b", b"c")
    until(lambda: slow.counters()["parked"])
    assert call.progress.hurry() == 1
    slow.order("release")
    assert [one.data for one in call.wait()] == [b"a" * 5000, b"b" * 5000]


def test_an_error_of_the_source_belongs_to_its_file(slow: SlowFs, either: None) -> None:
    slow.order("fault read eio 1 forever path /b")
    assert [one.data for one in Call(slow, b"a", b"b", b"c").wait()] == [b"a" * 5000, None, b"c" * 5000]
