"""Backing files: made once for all handles of a file, closed with the last, and never of a file that is not whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache import Cache
from hfs.mountd.cache.objects.file import StagedFile
from hfs.mountd.core.attributes import Version
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.kernel import fastpath
from tests.conftest import Logs
from tests.support.fake_source import ID
from tests.support.faults import healthy_staging, object_path, put, run, version_of

CONNECTION = 77
SIZE = 5000


class Kernel:
    """The two system calls: what is open, and a refusal."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.made = 0
        self.refusal: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def open_backing(self, connection_fd: int, fd: int) -> int:
        assert connection_fd == CONNECTION
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.meanwhile()
        self.made += 1
        self.open[self.made] = os.fstat(fd).st_ino
        return self.made

    def close_backing(self, connection_fd: int, backing_id: int) -> None:
        assert connection_fd == CONNECTION
        del self.open[backing_id]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(fastpath, "open_backing", made.open_backing)
    monkeypatch.setattr(fastpath, "close_backing", made.close_backing)
    return made


def with_staged_file(tmp_path: Path, test: Callable[[Passthrough, StagedFile, Cache, Metrics], Any]) -> None:
    async def main() -> None:
        metrics = Metrics()
        async with healthy_staging(tmp_path, metrics=metrics) as staging:
            file = await staging.files.get(version_of(1, SIZE), b"f")
            assert put(staging, file, 0)
            await staging.committer.wait_committed()
            passthrough = Passthrough(staging, metrics)
            passthrough.start(CONNECTION)
            staging.files.pin(file)
            await test(passthrough, file, staging, metrics)
            staging.files.unpin(file)

    run(main)


def test_one_backing_file_for_all_handles_closed_with_the_last(tmp_path: Path, kernel: Kernel) -> None:
    async def test(passthrough: Passthrough, file: StagedFile, staging: Cache, _: Metrics) -> None:
        first = await passthrough.acquire(file)
        assert first == passthrough.acquire_nowait(file) == await passthrough.acquire(file)
        assert list(kernel.open.values()) == [os.stat(object_path(staging, file)).st_ino]
        passthrough.release(file)
        passthrough.release(file)
        assert len(passthrough) == 1
        passthrough.release(file)
        assert (len(passthrough), kernel.open, file.passed) == (0, {}, 0)

    with_staged_file(tmp_path, test)


def test_opens_that_come_together_share_what_the_faster_one_made(tmp_path: Path, kernel: Kernel) -> None:
    async def test(passthrough: Passthrough, file: StagedFile, _staging: Cache, _: Metrics) -> None:
        found: list[int | None] = []

        async def acquire() -> None:
            found.append(await passthrough.acquire(file))

        kernel.meanwhile = lambda: (
            setattr(kernel, "meanwhile", lambda: None) or found.append(passthrough.acquire_nowait(file))
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquire)
            nursery.start_soon(acquire)
        assert len(set(found)) == 1
        assert found[0] is not None
        assert file.passed == len(found) == 3
        for _ in found:
            passthrough.release(file)
        assert kernel.open == {}

    with_staged_file(tmp_path, test)


def test_a_file_that_is_given_up_meanwhile_is_not_passed_through(tmp_path: Path, kernel: Kernel) -> None:
    async def test(passthrough: Passthrough, file: StagedFile, staging: Cache, _: Metrics) -> None:
        kernel.meanwhile = lambda: staging.reclaim_queue.give_up(file, [0])
        assert await passthrough.acquire(file) is None
        assert (kernel.open, file.passed) == ({}, 0)
        assert passthrough.acquire_nowait(file) is None

    with_staged_file(tmp_path, test)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP])
def test_a_refusal_is_counted_and_leaves_nothing(tmp_path: Path, kernel: Kernel, number: int) -> None:
    async def test(passthrough: Passthrough, file: StagedFile, _staging: Cache, metrics: Metrics) -> None:
        kernel.refusal = number
        assert passthrough.acquire_nowait(file) is None
        assert await passthrough.acquire(file) is None
        assert metrics["passthrough_refused"] == 1
        assert (len(passthrough), file.passed) == (0, 0)

    with_staged_file(tmp_path, test)


def test_an_object_that_is_too_short_is_no_backing_file(tmp_path: Path, kernel: Kernel, logs: Logs) -> None:
    logs.expect("it has another length")

    async def test(passthrough: Passthrough, file: StagedFile, staging: Cache, metrics: Metrics) -> None:
        os.truncate(object_path(staging, file), SIZE - 1)
        assert await passthrough.acquire(file) is None
        assert metrics["staging_errors"] == 1
        assert (kernel.made, file.passed) == (0, 0)
        assert not file.complete  # the next reader gets it from the source

    with_staged_file(tmp_path, test)


def test_after_the_mount_nothing_is_asked_of_the_kernel(tmp_path: Path, kernel: Kernel) -> None:
    async def test(passthrough: Passthrough, file: StagedFile, _staging: Cache, _: Metrics) -> None:
        assert await passthrough.acquire(file) is not None
        passthrough.stop()
        passthrough.release(file)
        assert len(kernel.open) == 1  # the connection has gone, and taken it with it
        assert passthrough.acquire_nowait(file) is None

    with_staged_file(tmp_path, test)


def test_what_an_earlier_daemon_kept_for_opens_that_did_not_come_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago its backing id was given out, unless a handle has it after all."""
    closed: list[tuple[int, int]] = []
    monkeypatch.setattr(fastpath, "close_backing", lambda connection_fd, number: closed.append((connection_fd, number)))
    nothing: Any = None
    file = StagedFile(Version(ID, 11, SIZE, 1, 1), SIZE, b"f")
    passthrough = Passthrough(nothing, Metrics())
    passthrough.start(5)
    passthrough.attach(file, 4, 99)
    for number in (3, 4, 700):
        passthrough.lose(number)
    passthrough.close_lost(2)
    assert sorted(closed) == [(5, 1), (5, 3), (5, 700)]
