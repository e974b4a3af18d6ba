"""The Nth operation of opening a cache fails, until none is left: a daemon that follows another starts all the same."""

import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.cache import Cache, open_cache
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import CacheInUse, ConfigError, MountError
from hfs.mountd.core.limits import Memory, OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.core.workers import Workers
from hfs.mountd.daemon import storage as storage_module
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.storage import Storage, open_storage
from hfs.mountd.ledger import CacheRoot, folder
from hfs.mountd.ledger import ledger as ledger_module
from hfs.mountd.namespace import Journal
from hfs.mountd.wire.handover import Handover
from tests.conftest import Logs
from tests.fuse.users import needs_root
from tests.support.faults import CHUNK_BYTES, stage

_MANY = 1 << 30
CALLS = (
    *("open", "mkdir", "listdir", "lstat", "stat", "fstat", "fstatvfs", "pread", "pwrite"),
    *("rename", "unlink", "ftruncate", "fchmod", "fdatasync"),
)


class Faults:
    """Between `begin` and `end` the Nth counted call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._left = -1

    def failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            self.count()
            return function(*args, **how)

        return call

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error

    def begin(self, number: int) -> None:
        self._left = number

    def end(self) -> int:
        """How many are left to the one that fails; negative: it did."""
        left, self._left = self._left, -1
        return left


def of_calls(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults(OSError(errno.EIO, os.strerror(errno.EIO)))
    for name in CALLS:
        monkeypatch.setattr(os, name, faults.failing(getattr(os, name)))
    monkeypatch.setattr(fcntl, "flock", faults.failing(fcntl.flock))
    return faults


def of_the_index(monkeypatch: pytest.MonkeyPatch) -> Faults:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    faults = Faults(error)

    class Failing(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            faults.count()
            return super().execute(*args)

    monkeypatch.setattr(
        storage_module, "open_cache", partial(open_cache, connect=partial(sqlite3.connect, factory=Failing))
    )
    return faults


def basics_of(tmp_path: Path, workers: Workers, *, asked: bool, generation: int) -> Basics:
    for name in ("source", "mount", "cache"):
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)
    config = Config(
        source=str(tmp_path / "source"),
        mountpoint=str(tmp_path / "mount"),
        cache=str(tmp_path / "cache"),
        cache_size_bytes=64 * CHUNK_BYTES,
        chunk_bytes=CHUNK_BYTES,
        scrub_bytes_s=0,
    )
    source_fd = os.open(tmp_path / "source", os.O_RDONLY)
    handover = Handover(-1, b"", source_fd, (-1, -1), generation, asked=asked)
    return Basics(config, {}, handover, Journal(), Metrics(), Memory(trio.current_time), workers, OpenFiles(1024))


@asynccontextmanager
async def opened(
    tmp_path: Path, workers: Workers, *, asked: bool = False, generation: int = 1
) -> AsyncIterator[Storage]:
    basics = basics_of(tmp_path, workers, asked=asked, generation=generation)
    assert basics.handover is not None
    try:
        async with open_storage(basics) as storage:
            yield storage
    finally:
        os.close(basics.handover.source_fd)


@pytest.mark.usefixtures("real_clock")
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [of_calls, of_the_index])
async def test_whatever_fails_while_the_cache_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs, kind: Callable[[pytest.MonkeyPatch], Faults], step: int
) -> None:
    logs.expect("")
    faults = kind(monkeypatch)
    open_as_can_be, start = storage_module._open_as_can_be, Cache.start
    number, without, left = _MANY, 0, 0

    async def striking(*args: Any) -> Any:
        faults.begin(number)
        try:
            return await open_as_can_be(*args)
        finally:
            faults.end()

    def started(cache: Cache) -> None:
        nonlocal left
        left = faults.end()  # what it does from here on has tests of its own
        start(cache)

    monkeypatch.setattr(Cache, "start", started)
    workers = Workers()
    with trio.fail_after(50):
        async with workers.running():
            with monkeypatch.context() as struck:
                struck.setattr(storage_module, "_open_as_can_be", striking)
                async with opened(tmp_path, workers):
                    calls = _MANY - left
                for failing in range(1, calls, step):
                    number = failing
                    async with opened(tmp_path, workers) as storage:
                        staged, own = storage.cache.statistics(), storage.own_cache
                        if own.absent is not None:
                            without += 1
                            assert (staged.state, staged.last_error) == ("off", own.absent)
                            assert not storage.cache.admission.fits_nowait(1)
                            own.answers_at("nowhere")
            assert without > calls / step / 3
            async with opened(tmp_path, workers) as storage:
                await storage.cache.ready.wait()
                await stage(storage.cache, 1, CHUNK_BYTES)


@pytest.mark.usefixtures("real_clock")
async def test_who_takes_a_mount_over_hears_what_is_wrong(tmp_path: Path) -> None:
    workers = Workers()
    (tmp_path / "cache").mkdir(mode=0o755)
    (tmp_path / "cache" / "ledger").touch()
    async with workers.running():
        with pytest.raises(MountError, match="cannot be used: Not a directory"):
            async with opened(tmp_path, workers, asked=True):
                pass


@pytest.mark.usefixtures("real_clock")
async def test_a_mount_begins_without_a_cache_unless_that_was_given_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    logs.expect("there is no cache")
    monkeypatch.setattr(ledger_module, "_DAEMON_S", 0.0)
    workers = Workers()
    begun = partial(opened, tmp_path, workers, asked=True, generation=0)
    async with workers.running():
        async with begun() as storage:
            assert storage.own_cache.absent is None
            with pytest.raises(CacheInUse):
                async with begun():
                    pass
        (tmp_path / "cache").chmod(0o777)
        with pytest.raises(ConfigError, match="written to by others"):
            async with begun():
                pass
        (tmp_path / "cache").chmod(0o700)
        shutil.rmtree(tmp_path / "cache" / "ledger")
        (tmp_path / "cache" / "ledger").touch()
        async with begun() as storage:
            assert "Not a directory" in str(storage.own_cache.absent)


@needs_root
@pytest.mark.usefixtures("real_clock")
@pytest.mark.parametrize("what", ["directory", "file", "link", "open directory of ours", "locks"])
async def test_in_a_root_that_several_share_a_mount_goes_without_a_cache_whose_place_another_user_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs, what: str
) -> None:
    """As he can where the victim is not root, and in any moment where it is."""
    logs.expect("there is no cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)

    def taken(root: CacheRoot, name: str) -> None:
        place = Path(root.path_of(name))
        if what == "file":
            place.touch()
        elif what == "link":
            place.symlink_to("/etc")
        elif what == "locks":
            (place := tmp_path / "cache" / "ledger" / "own-0").touch()
        else:
            place.mkdir()
        if what == "open directory of ours":
            place.chmod(0o777)
        else:
            os.chown(place, 4242, 4242, follow_symlinks=False)

    monkeypatch.setattr(CacheRoot, "make_way", taken)
    monkeypatch.setattr(folder, "move_away", lambda *_arguments: None)
    workers = Workers()
    async with workers.running(), opened(tmp_path, workers, asked=True, generation=0) as storage:
        assert storage.own_cache.absent is not None
