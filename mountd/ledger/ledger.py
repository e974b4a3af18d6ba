"""`Ledger`: the folder `ledger` of a cache root, read and changed under its lock.

    lock        held (flock) while sums are made; never longer than a few reads and one write take
    start-...   held by the command that starts a daemon for one source
    size        what all caches may hold together; nothing in it: as much as the disk leaves
    NAME        one cache: its grant, what it is of, who serves it; locked (flock) as long as that daemon lives

A cache's record says more than the cache holds or as much, never less: room is written down before it is used, and
given back when it is free. So a daemon that is killed at any moment leaves room that nobody uses, never more than the
size; whoever finds a record without a daemon may bring it down to what the cache holds (`Hold.settle`).

Where several users share a root each writes its own records only; what others write there is believed as far as sums
go. Everything blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mountd.base.errors import StagingError
from mountd.core.waits import Waits
from mountd.ledger.notice import write_notices
from mountd.ledger.record import (
    Grant,
    ServedSource,
    read_grant,
    read_pinned,
    read_serving,
    write_grant,
    write_pinned,
    write_serving,
)
from policies.cache.sharing import grant_bytes

FOLDER = "ledger"
_MODE = 0o644
"""Of its files. Whoever cannot enter the folder of a root of one user sees none of them."""
_LOCK, _SIZE, _START = "lock", "size", "start-"
_LOCK_S = 5.0
"""Whoever holds the lock needs microseconds; one that was stopped (SIGSTOP) must not stop all others."""
_START_S = 180.0
"""A start takes a second; of a source that does not answer a minute and a half."""
_DAEMON_S = 15.0
"""A daemon that ends writes what it holds for ten seconds at most. Without a daemon a cache is held for a second or
two, to make room (`idle_caches`), or for a moment, to be looked at."""
_LOOKED_S = 0.1
"""All daemons of the root look every second which caches have one, and lock each record for that, for microseconds."""
_AGAIN_S = 0.005


class LedgerBusy(StagingError):
    """Somebody holds the lock of the ledger for seconds."""


class Listed(NamedTuple):
    """One cache, as the ledger has it."""

    name: str
    grant: Grant
    serving: ServedSource | None
    running: bool
    """It has a daemon."""
    pinned_bytes: int = 0
    """Of what it holds, what it gives up for nobody."""

    @property
    def owner(self) -> int:
        """The user whose cache it is, who alone can have written this."""
        return int(self.name.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of asking for room."""

    granted_bytes: int
    size_bytes: int | None
    """Of the root; None: it has none, and nothing is shared out."""
    others: list[Listed]


def _make_folder(root_fd: int, mode: int) -> None:
    """There at once with its mode, or not at all: a kill in between would leave one that others cannot use."""
    try:
        os.stat(FOLDER, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        name = f".{FOLDER}-{os.getpid()}-{time.monotonic_ns()}"
        os.mkdir(name, 0o700, dir_fd=root_fd)
        os.chmod(name, mode, dir_fd=root_fd)
        try:
            os.rename(name, FOLDER, src_dir_fd=root_fd, dst_dir_fd=root_fd)
        except OSError:  # another was faster, and there is something in it by now
            os.rmdir(name, dir_fd=root_fd)


def _show(fd: int) -> None:
    """Have others read a file of ours, whatever the umask was: what they cannot read is in nobody's sums."""
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _MODE:
        os.fchmod(fd, _MODE)


def _flock(fd: int, limit_s: float) -> None:
    """Raises BlockingIOError when it cannot be had in time."""
    until_s = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_AGAIN_S)


class Ledger:
    """Of the root whose directory is open at `root_fd`. `shared`: several users keep caches there."""

    def __init__(self, root_fd: int, *, shared: bool = False) -> None:
        """Makes the folder if it is missing. Raises OSError."""
        _make_folder(root_fd, 0o1777 if shared else 0o700)
        self._fd = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root_fd)
        try:
            os.close(self._open(_LOCK))
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def listed(self) -> list[Listed]:
        """All caches that it knows, by name. Raises OSError."""
        found = []
        for name in sorted(os.listdir(self._fd)):
            if name not in {_LOCK, _SIZE} and (entry := self._read(name)) is not None:
                found.append(entry)
        return found

    def size_bytes(self) -> int | None:
        """What all caches may hold together; None: as much as the disk leaves. Raises OSError."""
        try:
            fd = os.open(_SIZE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return None  # there is none, or what another user has put there
        try:
            grant = read_grant(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)
        return grant.granted_bytes or None if grant is not None else None

    def register(
        self, name: str, serving: ServedSource, size_bytes: int | None, *, again: bool = False
    ) -> Registration:
        """Enter a daemon as that of the cache `name`, until the registration is closed.

        A size that is given holds from now on for all; none takes an old one away where no other daemon is there.
        `again`: one of that mount was there before, and the size stays as others may have set it since.
        Raises OSError, LedgerBusy; BlockingIOError where a daemon has that cache, after three seconds.
        """
        fd = self._open(name)
        try:
            _flock(fd, _DAEMON_S)
            with self.locked():
                others = [entry for entry in self.listed() if entry.name != name]
                if not again and (size_bytes is not None or not any(entry.running for entry in others)):
                    self._write_size(size_bytes)
                if (grant := read_grant(fd)) is None:
                    write_grant(fd, grant := Grant(0, 0, int(time.time())))
                write_serving(fd, serving)
            return Registration(self, name, fd, grant)
        except BaseException:
            os.close(fd)
            raise

    def start_turn(self, device: int, inode: int) -> contextlib.AbstractContextManager[None]:
        """One of those at a time that would start a daemon for the source of this device and inode. The block raises
        OSError, LedgerBusy."""
        name = f"{_START}{os.geteuid()}-{device:x}-{inode:x}"
        return self._alone(name, _START_S, "another command has been starting a daemon for this source for minutes")

    def hold(self, name: str) -> Hold:
        """Keep daemons away from a cache that has none. Raises OSError, BlockingIOError where it has one."""
        fd = self._open(name, make=False)
        try:
            _flock(fd, _LOOKED_S)
        except BaseException:
            os.close(fd)
            raise
        return Hold(self, fd)

    # -- inside ------------------------------------------------------------------------------------------------------

    def take(self, registration: Registration, used_bytes: int, wanted_bytes: int) -> Taken:
        """See `Registration.take`."""
        with self.locked():
            size_bytes = self.size_bytes()
            others = [entry for entry in self.listed() if entry.name != registration.name]
            granted_bytes = used_bytes
            if size_bytes is not None:
                theirs_bytes = sum(entry.grant.granted_bytes for entry in others)
                own_bytes = registration.grant.granted_bytes
                granted_bytes = grant_bytes(size_bytes, theirs_bytes, own_bytes, used_bytes, wanted_bytes)
            # What the others left may be less than what is here already: it is accounted until it has gone.
            registration.write(Grant(max(granted_bytes, used_bytes), used_bytes, int(time.time())))
        return Taken(granted_bytes, size_bytes, others)

    def _write_size(self, size_bytes: int | None) -> None:
        """Where another user's stands, it holds; where something else stands, there is none."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(_SIZE, dir_fd=self._fd, follow_symlinks=False).st_mode):
                return
        with contextlib.suppress(PermissionError):
            fd = self._open(_SIZE)
            try:
                write_grant(fd, Grant(size_bytes or 0))
            finally:
                os.close(fd)

    def _open(self, name: str, *, make: bool = True) -> int:
        """Ours, made if it is missing; a lock of another user's cannot be written to, and need not be."""
        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, os.O_RDWR | flags, dir_fd=self._fd)
        except FileNotFoundError:
            if not make:
                raise
            fd = os.open(name, os.O_RDWR | os.O_CREAT | flags, _MODE, dir_fd=self._fd)
        except PermissionError:
            if name != _LOCK:
                raise
            return os.open(name, os.O_RDONLY | flags, dir_fd=self._fd)
        _show(fd)
        return fd

    def open_record(self, name: str) -> int | None:
        """The record of a cache, to be read from; None: it is gone, or whose it says it is not."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return None  # gone meanwhile, or none of ours
        found = os.fstat(fd)
        # Whoever keeps caches here may write what he likes, but only in records of his own.
        if stat.S_ISREG(found.st_mode) and name.partition("-")[0] == str(found.st_uid):
            return fd
        os.close(fd)
        return None

    def _read(self, name: str) -> Listed | None:
        fd = self.open_record(name)
        if fd is None:
            return None
        try:
            grant = read_grant(fd)
            if grant is None:
                return None
            running = False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                running = True
            return Listed(name, grant, read_serving(fd), running, read_pinned(fd))
        finally:
            os.close(fd)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """For sums, and for records that change because of one. The block raises OSError, LedgerBusy."""
        return self._alone(_LOCK, _LOCK_S, "the ledger of the cache is locked by a process that does not go on")

    @contextlib.contextmanager
    def _alone(self, name: str, limit_s: float, why_not: str) -> Iterator[None]:
        """The only one that holds this file's lock."""
        fd = self._open(name)
        try:
            try:
                _flock(fd, limit_s)
            except BlockingIOError:
                raise LedgerBusy(why_not) from None
            yield
        finally:
            os.close(fd)


class Hold:
    """Of a cache without a daemon, until closed."""

    def __init__(self, ledger: Ledger, fd: int) -> None:
        self._ledger = ledger
        self._fd = fd

    def settle(self, used_bytes: int, pinned_bytes: int | None = None) -> None:
        """Bring its record down to what it holds. `pinned_bytes` None: as before. Raises OSError, LedgerBusy."""
        if pinned_bytes is not None:
            write_pinned(self._fd, pinned_bytes)
        with self._ledger.locked():
            before = read_grant(self._fd)
            write_grant(self._fd, Grant(used_bytes, used_bytes, before.used_s if before is not None else 0))

    def close(self) -> None:
        """Daemons may come."""
        os.close(self._fd)


class Registration:
    """A daemon's entry. One thread at a time."""

    def __init__(self, ledger: Ledger, name: str, fd: int, grant: Grant) -> None:
        self._ledger = ledger
        self._fd = fd
        self.name = name
        self.grant = grant
        """As it was written last."""

    def take(self, used_bytes: int, wanted_bytes: int) -> Taken:
        """Have room for so much more, as far as it is free. Raises OSError, LedgerBusy."""
        return self._ledger.take(self, used_bytes, wanted_bytes)

    def give_back(self, granted_bytes: int, used_bytes: int) -> None:
        """Have no more than this, nor than before, and no less than what is used. Raises OSError.

        Without the lock: whoever makes a sum meanwhile finds the one or the other.
        """
        granted_bytes = max(min(granted_bytes, self.grant.granted_bytes), used_bytes)
        self.write(Grant(granted_bytes, used_bytes, int(time.time())))

    def pins(self, pinned_bytes: int) -> None:
        """So much of what it holds is given up for nobody. Raises OSError."""
        write_pinned(self._fd, pinned_bytes)

    def serves(self, serving: ServedSource) -> None:
        """What is served now, and where. Raises OSError."""
        write_serving(self._fd, serving)

    def tell(self, told_ns: int, source: Waits, disk: Waits) -> None:
        """For the board. Raises OSError."""
        write_notices(self._fd, told_ns, source, disk)

    def write(self, grant: Grant) -> None:
        """For the ledger. Raises OSError."""
        more = grant.granted_bytes > self.grant.granted_bytes
        write_grant(self._fd, grant)
        if more:  # a power loss must not leave less written down than is used
            os.fdatasync(self._fd)
        self.grant = grant

    def close(self) -> None:
        """The cache has no daemon any more."""
        os.close(self._fd)
