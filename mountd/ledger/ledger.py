"""`Ledger`: the folder `ledger` of a cache root, read and changed under its lock.

    lock        held (flock) while sums are made; never longer than a few reads and one write take
    start-...   held by the command that starts a daemon for one source; where several users share the root in own-UID
    size        what all caches may hold together; nothing in it: as much as the disk leaves. Where that of another
                user stands who is not root, it says nothing, and ours is called size-UID
    NAME        one cache: its grant, what it is of, who serves it; locked (flock) as long as that daemon lives
    own-UID/    where several users share the root: what only that user can lock (`OwnLocks`), so that who has a cache
                of ours is known for sure. The lock of NAME itself is then for others to see

A cache's record says more than the cache holds or as much, never less: room is written down before it is used, and
given back when it is free. So a daemon that is killed at any moment leaves room that nobody uses, never more than the
size; whoever finds a record without a daemon may bring it down to what the cache holds (`Hold.settle`).

Where several users share a root each writes its own records only (`folder`). What others write there is believed as
far as sums go: it can keep room from us, and never takes what we have. Everything blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hfs.mountd.core.errors import StagingError
from hfs.mountd.core.path_steps import stat_name
from hfs.mountd.ledger import folder
from hfs.mountd.ledger.record import (
    Notice,
    Quota,
    QuotaRequest,
    ServedSource,
    read_claims,
    read_grant,
    read_serving,
    write_claims,
    write_grant,
    write_notice,
    write_serving,
)
from hfs.policies.cache.sharing import grant_bytes

_LOCK, _SIZE, _START = "lock", "size", "start-"
_LOCK_S, _SHARED_LOCK_S = 5.0, 1.0
"""Whoever holds the lock needs microseconds; one that was stopped (SIGSTOP) must not stop all others. In a root that
several users share anybody can hold it for as long as he likes."""
_START_S = 180.0
"""A start takes a second; of a source that does not answer a minute and a half."""
_DAEMON_S = 15.0
"""A daemon that ends writes what it holds for ten seconds at most. Without a daemon a cache is held for a second or
two, to make room (`idle_caches`), or for a moment, to be looked at."""
_MOST_OF_OTHERS = 256
"""Records of one other user that are looked at: each costs 20 us with the lock held."""
_MOST_RECORDS = 1024
"""In a root that several users share; a name that belongs to somebody else than it says costs 10 us."""
_NAME = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{16}")
_LOOKED_S = 0.1
"""All daemons of the root look every second which caches have one, and lock each record for that, for microseconds."""


class LedgerBusy(StagingError):
    """Somebody holds the lock of the ledger for seconds."""


class Listed(NamedTuple):
    """One cache, as the ledger has it."""

    name: str
    grant: Quota
    serving: ServedSource | None
    running: bool
    """It has a daemon."""
    claims: QuotaRequest = QuotaRequest(0, 0)

    @property
    def owner(self) -> int:
        """The user whose cache it is, who alone can have written this."""
        return int(self.name.partition("-")[0])

    @property
    def is_ours(self) -> bool:
        """Of the user of this process."""
        return self.owner == os.geteuid()


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of asking for room."""

    granted_bytes: int
    size_bytes: int | None
    """Of the root; None: it has none, and nothing is shared out."""
    others: list[Listed]


class Ledger:
    """Of the root whose directory is open at `root_fd`. `shared`: several users keep caches there."""

    def __init__(self, root_fd: int, *, shared: bool = False) -> None:
        """Makes the folder if it is missing. Raises OSError."""
        self._fd = folder.open_folder(root_fd, shared=shared)
        self._shared = shared
        self._locks = folder.OwnLocks(self._fd, shared=shared)
        try:
            if not shared:
                os.close(folder.open_lock(self._fd, _LOCK))
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def listed(self) -> list[Listed]:
        """All caches that it knows, by name. Raises OSError."""
        return self._look()[0]

    def size_bytes(self) -> int | None:
        """What all caches may hold together; None: as much as the disk leaves. Raises OSError."""
        for name in (_SIZE, _own_size()):
            if (fd := folder.open_of(self._fd, name, 0, os.geteuid())) is not None:
                try:
                    grant = read_grant(fd)
                finally:
                    os.close(fd)
                return grant.granted_bytes or None if grant is not None else None
        return None

    def register(
        self, name: str, serving: ServedSource, size_bytes: int | None, *, again: bool = False
    ) -> Registration:
        """Enter a daemon as that of the cache `name`, until the registration is closed.

        A size that is given holds from now on for all; none takes an old one away where no other daemon is there.
        `again`: one of that mount was there before, and the size stays as others may have set it since.
        A size waits where the ledger is locked; until it is known nobody takes room by this registration. Raises
        OSError; BlockingIOError where a daemon of ours has that cache.
        """
        with contextlib.ExitStack() as undo:
            fd = folder.open_own(self._fd, name)
            undo.callback(os.close, fd)
            lock_fd = self._locks.lock(name, _DAEMON_S)
            undo.callback(os.close, lock_fd)
            if (grant := read_grant(fd)) is None:
                write_grant(fd, grant := Quota(0, 0, int(time.time())))
            write_serving(fd, serving)
            self.show(fd)
            enter = partial(self._enter, name, size_bytes, again=again)
            registration = Registration(self, name, (fd, lock_fd), grant, enter)
            with contextlib.suppress(LedgerBusy), self.locked():
                registration.enter()
            undo.pop_all()
            return registration

    def show(self, fd: int) -> None:
        """Let other users see that this record has a daemon, unless one of them locks it himself."""
        if self._shared:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _enter(self, name: str, size_bytes: int | None, *, again: bool) -> None:
        others = [entry for entry in self.listed() if entry.name != name]
        if not again and (size_bytes is not None or not any(entry.running for entry in others)):
            self._write_size(size_bytes)

    @contextlib.contextmanager
    def start_lock(self, device: int, inode: int) -> Iterator[None]:
        """One of those at a time that would start a daemon for the source of this device and inode. The block raises
        OSError, LedgerBusy."""
        try:
            fd = self._locks.lock(f"{_START}{os.geteuid()}-{device:x}-{inode:x}", _START_S)
        except BlockingIOError:
            raise LedgerBusy("another command has been starting a daemon for this source for minutes") from None
        except OSError:  # a disk that is not written to, or another user was there first
            yield  # the second daemon finds the cache in use
            return
        try:
            yield
        finally:
            os.close(fd)

    def hold(self, name: str) -> Hold:
        """Keep daemons away from a cache that has none. Raises OSError, BlockingIOError where it has one."""
        fd = folder.open_own(self._fd, name, make=False)
        try:
            return Hold(self, fd, self._locks.lock(name, _LOOKED_S))
        except BaseException:
            os.close(fd)
            raise

    # -- inside ------------------------------------------------------------------------------------------------------

    def take(self, registration: Registration, used_bytes: int, wanted_bytes: int) -> Taken:
        """See `Registration.take`."""
        with self.locked():
            registration.enter()
            size_bytes = self.size_bytes()
            found, are_all = self._look()
            others = [entry for entry in found if entry.name != registration.name]
            granted_bytes = used_bytes
            if size_bytes is not None:
                own_bytes = registration.grant.granted_bytes
                theirs_bytes = _held_bytes(others, size_bytes, own_bytes)
                if not are_all:  # it may be any
                    theirs_bytes = max(theirs_bytes, size_bytes - own_bytes)
                granted_bytes = grant_bytes(size_bytes, theirs_bytes, own_bytes, used_bytes, wanted_bytes)
            # What the others left may be less than what is here already: it is accounted until it has gone.
            registration.write(Quota(max(granted_bytes, used_bytes), used_bytes, int(time.time())))
        return Taken(granted_bytes, size_bytes, others)

    def _write_size(self, size_bytes: int | None) -> None:
        """Where something else than a file stands, there is none."""
        for name in (_SIZE, _own_size()):
            with contextlib.suppress(FileNotFoundError):
                try:
                    found = stat_name(name, self._fd)
                    owner, is_file = found.st_uid, stat.S_ISREG(found.st_mode)
                except PermissionError:  # mounted there
                    owner, is_file = None, False
                if os.geteuid() and owner == 0:
                    return  # root's holds
                if owner != os.geteuid() and os.geteuid():
                    continue  # root moves it away
                if owner == os.geteuid() and not is_file:
                    return
            fd = folder.open_own(self._fd, name)
            try:
                write_grant(fd, Quota(size_bytes or 0))
            finally:
                os.close(fd)
            return

    def open_record(self, name: str) -> int | None:
        """The record of a cache, to be read from; None: it is gone, or whose it says it is not."""
        # Whoever keeps caches here may write what he likes, but only in records of his own.
        owner = name.partition("-")[0]
        return folder.open_of(self._fd, name, int(owner)) if owner.isdecimal() else None

    def _look(self) -> tuple[list[Listed], bool]:
        """All caches by name, and whether there may be no more: ours are always there, however many names others make.
        Raises OSError."""
        found, are_all = folder.names(self._fd, shared=self._shared)
        if self._shared:
            known = self._locks.names()
            by_user: dict[str, int] = {}
            others = []
            for name in found:
                if name not in known and _NAME.fullmatch(name):
                    owner = name.partition("-")[0]
                    by_user[owner] = by_user.get(owner, 0) + 1
                    if by_user[owner] <= _MOST_OF_OTHERS or int(owner) in {0, os.geteuid()}:
                        others.append(name)
            are_all = are_all and len(others) <= _MOST_RECORDS
            found = [*known, *others[:_MOST_RECORDS]]
        return [entry for name in sorted(found) if (entry := self._read(name)) is not None], are_all

    def _read(self, name: str) -> Listed | None:
        fd = self.open_record(name)
        if fd is None:
            return None
        try:
            grant = read_grant(fd)
            if grant is None:
                return None
            entry = Listed(name, grant, read_serving(fd), False, read_claims(fd))
            if entry.is_ours:
                return entry._replace(running=self._locks.is_held(name))
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return entry._replace(running=True)
            return entry
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For sums, and for records that change because of one. Raises OSError, LedgerBusy."""
        fd = folder.open_lock(self._fd, _LOCK)
        try:
            try:
                folder.lock(fd, _SHARED_LOCK_S if self._shared else _LOCK_S)
            except BlockingIOError:
                raise LedgerBusy("the ledger of the cache is locked by a process that does not go on") from None
            yield
        finally:
            os.close(fd)


def _own_size() -> str:
    return f"{_SIZE}-{os.geteuid()}"


def _held_bytes(others: list[Listed], size_bytes: int, own_bytes: int) -> int:
    """What of the size is not ours to take. Records of other users take nothing away that we have."""
    ours = sum(entry.grant.granted_bytes for entry in others if entry.owner in {0, os.geteuid()})
    strangers = sum(entry.grant.granted_bytes for entry in others if entry.owner not in {0, os.geteuid()})
    return ours + max(0, min(strangers, size_bytes - ours - own_bytes))


class Hold:
    """Of a cache without a daemon, until closed."""

    def __init__(self, ledger: Ledger, fd: int, lock_fd: int) -> None:
        self._ledger = ledger
        self._fd = fd
        self._lock_fd = lock_fd

    def settle(self, used_bytes: int, pinned_bytes: int | None = None) -> None:
        """Bring its record down to what it holds. `pinned_bytes` None: as before. Raises OSError, LedgerBusy."""
        if pinned_bytes is not None:
            write_claims(self._fd, QuotaRequest(pinned_bytes, 0))
        with self._ledger.locked():
            before = read_grant(self._fd)
            write_grant(self._fd, Quota(used_bytes, used_bytes, before.used_s if before is not None else 0))

    def close(self) -> None:
        """Daemons may come."""
        os.close(self._fd)
        os.close(self._lock_fd)


class Registration:
    """A daemon's entry. One thread at a time."""

    def __init__(
        self, ledger: Ledger, name: str, fds: tuple[int, int], grant: Quota, enter: Callable[[], None] | None
    ) -> None:
        """`fds`: of the record, and of its lock. `enter`: what is still to be done once the ledger is not locked by
        others."""
        self._ledger = ledger
        self._enter = enter
        self._fd, self._lock_fd = fds
        self.name = name
        self.grant = grant
        """As it was written last."""

    def enter(self) -> None:
        """For the ledger, once, with its lock. Raises OSError."""
        if self._enter is not None:
            self._enter()
            self._enter = None

    def take(self, used_bytes: int, wanted_bytes: int) -> Taken:
        """Have room for so much more, as far as it is free. Raises OSError, LedgerBusy."""
        self._ledger.show(self._fd)
        return self._ledger.take(self, used_bytes, wanted_bytes)

    def give_back(self, granted_bytes: int, used_bytes: int) -> None:
        """Have no more than this, nor than before, and no less than what is used. Raises OSError.

        Without the lock: whoever makes a sum meanwhile finds the one or the other.
        """
        granted_bytes = max(min(granted_bytes, self.grant.granted_bytes), used_bytes)
        self.write(Quota(granted_bytes, used_bytes, int(time.time())))

    def claim(self, claims: QuotaRequest) -> None:
        """For the others to see. Raises OSError."""
        write_claims(self._fd, claims)

    def others(self) -> list[Listed]:
        """The other caches. Raises OSError."""
        return [entry for entry in self._ledger.listed() if entry.name != self.name]

    def serves(self, serving: ServedSource) -> None:
        """What is served now, and where. Raises OSError."""
        write_serving(self._fd, serving)

    def tell(self, notice: Notice) -> None:
        """For the board. Raises OSError."""
        write_notice(self._fd, notice)

    def write(self, grant: Quota) -> None:
        """For the ledger. Raises OSError."""
        more = grant.granted_bytes > self.grant.granted_bytes
        write_grant(self._fd, grant)
        if more:  # a power loss must not leave less written down than is used
            os.fdatasync(self._fd)
        self.grant = grant

    def close(self) -> None:
        """The cache has no daemon any more."""
        os.close(self._fd)
        os.close(self._lock_fd)
