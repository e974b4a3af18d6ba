"""No descriptor to give: caches let go of theirs, calls are tried again, and no file is taken to be at fault."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from hfs.mountd.cache.objects.disk import Descriptors, Disk
from hfs.mountd.core import limits
from hfs.mountd.core.errors import SourceError
from hfs.mountd.core.limits import OpenFiles, is_refusal, read_small
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.source.threads import SourceThreads
from tests.support.faults import SIZE, healthy_staging, stage
from tests.support.thread_script import Script

REFUSALS = pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])


class Opener:
    """Has no descriptor the first `refusals` times."""

    def __init__(self, number: int, refusals: int) -> None:
        self.number, self.left = number, refusals

    def __call__(self) -> int:
        self.left -= 1
        if self.left >= 0:
            raise OSError(self.number, os.strerror(self.number))
        return 7


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_PAUSES_S", (0.0,) * 5)


@REFUSALS
@pytest.mark.usefixtures("_no_pauses")
def test_a_thread_tries_again_once_the_caches_have_let_go(number: int) -> None:
    found, let_go = OpenFiles(1024), list[int]()
    found.add(lambda: let_go.append(1))
    assert found.patiently(Opener(number, 3)) == 7
    assert (len(let_go), found.statistics()) == (3, {"limit": 1024, "refused": 3})
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        found.patiently(Opener(number, 100))
    assert is_refusal(caught.value)


def test_what_ails_the_file_is_told_at_once() -> None:
    found = OpenFiles(1024)
    with pytest.raises(FileNotFoundError):
        found.patiently(lambda: os.open("/no/such/file", os.O_RDONLY))
    assert found.refused == 0


@REFUSALS
async def test_a_call_of_the_source_is_tried_again_without_counting_against_the_source(number: int) -> None:
    metrics, let_go = Metrics(), list[int]()
    rows = [(0.0, OSError(number, "")) for _ in range(9)]
    threads = SourceThreads(metrics, demand=2, prefetch=1, time_limit_s=600, run_in_thread=Script(*rows, (0.0, 5)))
    threads.open_files.add(lambda: let_go.append(1))
    assert await threads.call("demand", "read", lambda: None) == 5
    assert (len(let_go), metrics["source_retries"], metrics["source_errors"]) == (9, 0, 0)


@REFUSALS
async def test_past_half_a_minute_the_reader_hears_why(number: int) -> None:
    script = Script((0.0, OSError(number, "")))
    threads = SourceThreads(Metrics(), demand=2, prefetch=1, time_limit_s=0, run_in_thread=script)
    start = trio.current_time()
    with pytest.raises(SourceError) as caught:
        await threads.call("demand", "read", lambda: None)
    assert caught.value.errno == number
    assert 29 <= trio.current_time() - start <= 30


async def test_no_memory_in_the_source_is_tried_again() -> None:
    metrics = Metrics()
    script = Script((0.0, OSError(errno.ENOMEM, "")), (0.0, OSError(errno.ENOMEM, "")), (0.0, 5))
    threads = SourceThreads(metrics, demand=2, prefetch=1, time_limit_s=10, run_in_thread=script)
    assert await threads.call("demand", "read", lambda: None) == 5
    assert metrics["source_retries"] == 2


@REFUSALS
@pytest.mark.usefixtures("_no_pauses")
async def test_the_cache_stages_and_reads_though_descriptors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Every open of an object is refused twice before it is granted: nothing is dropped, nothing forgotten."""
    opened, tries, metrics = os.open, dict[object, int](), Metrics()

    def scarce(path: object, flags: int, *more: object, dir_fd: int | None = None) -> int:
        if dir_fd is not None and "/" in os.fsdecode(path):  # type: ignore[arg-type]  # a path
            tries[path] = tries.get(path, 0) + 1
            if tries[path] % 3:
                raise OSError(number, os.strerror(number))
        return opened(path, flags, *more, dir_fd=dir_fd)  # type: ignore[call-overload, no-any-return]  # as it came

    async with healthy_staging(tmp_path, disk=Disk(str(tmp_path)), metrics=metrics) as staging:
        await staging.ready.wait()
        monkeypatch.setattr("hfs.mountd.cache.objects.disk.os.open", scarce)
        file = await stage(staging, 1)
        assert file.committed.full
        staging.descriptors.let_go()
        staging.descriptors.let_go()
        assert len(await staging.reader.read_chunk(file, 0)) == file.chunk(0).size
        monkeypatch.undo()
    assert len(tries) > 0
    assert metrics["staging_errors"] == metrics["staging_dropped"] == 0
    assert file.size == SIZE


def test_the_cache_lets_go_of_what_is_not_in_use() -> None:
    closed: list[int] = []
    held = Descriptors(closed.append, limit=100)
    for number in range(8):
        held.put(number, 100 + number)
    used = held.acquire(0)
    assert used is not None
    held.acquire(1)
    for _ in range(4):
        held.let_go()
    assert len(held) == 0
    assert closed == [102, 103, 104, 105, 106, 107]
    held.release(used)
    assert closed[-1] == 100


def test_a_small_file_is_read_with_the_last_descriptor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"17\n")
    spare = [os.open(os.devnull, os.O_RDONLY)]
    read = limits._read

    def scarce(path: str) -> bytes:
        if spare:
            raise OSError(errno.EMFILE, "no descriptor")
        return read(path)

    monkeypatch.setattr(limits, "_read", scarce)
    monkeypatch.setattr(limits, "_spare", spare)
    assert read_small(str(tmp_path / "small")) == b"17\n"
    assert len(spare) == 1
    os.close(spare.pop())
    refuses = Opener(errno.EMFILE, 10)
    monkeypatch.setattr(limits, "_read", lambda path: refuses())
    with pytest.raises(OSError, match="Too many open files"):
        read_small(str(tmp_path / "small"))
