"""The folder of a ledger, in which other users may put what they like: what of it counts, and as whose.

A file of ours is a regular one with one name that belongs to us: nothing is written to anything else. What another user
has put in its place, or mounted there, root moves away; whoever is not root goes without. Locks (flock) need no right
but to read, so anybody can hold one of a file that others read: such a lock says nothing of us (`OwnLocks`). There may
be any number of names here: no more are looked at than a root has caches. Everything blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterator

from hfs.mountd.core.cache_directory import move_away, uncover
from hfs.mountd.core.path_steps import open_name, stat_name

FOLDER = "ledger"
_MODE = 0o644
"""Of its files. Whoever cannot enter the folder of a root of one user sees none of them."""
_AGAIN_S = 0.005
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_MOST_NAMES = 4096
"""In a folder to which others write: a microsecond each."""


def open_folder(root_fd: int, *, shared: bool) -> int:
    """A descriptor of it; it is made if it is missing. Raises OSError."""
    mode = 0o1777 if shared else 0o700
    _make(root_fd, mode)
    fd = open_name(FOLDER, root_fd, os.O_RDONLY | os.O_DIRECTORY)
    if shared and os.geteuid() == 0 and os.fstat(fd).st_uid != 0:
        with contextlib.suppress(OSError):  # whose it is may rename what others have in it
            os.fchown(fd, 0, -1)
            os.fchmod(fd, mode)
    return fd


def _make(root_fd: int, mode: int) -> None:
    """There at once with its mode, or not at all: a kill in between would leave one that others cannot use."""
    try:
        if os.geteuid() == 0:
            uncover(root_fd, FOLDER)
        stat_name(FOLDER, root_fd)
    except FileNotFoundError:
        name = f".{FOLDER}-{os.getpid()}-{time.monotonic_ns()}"
        os.mkdir(name, 0o700, dir_fd=root_fd)
        os.chmod(name, mode, dir_fd=root_fd)
        try:
            os.rename(name, FOLDER, src_dir_fd=root_fd, dst_dir_fd=root_fd)
        except OSError:  # another was faster, and there is something in it by now
            os.rmdir(name, dir_fd=root_fd)


def open_own(folder_fd: int, name: str, *, make: bool = True, mode: int = _MODE) -> int:
    """A file of ours, to be read and written, of this mode whatever the umask was: others can read it. Raises
    OSError."""
    if make and os.geteuid() == 0:
        move_away(folder_fd, name, stat.S_IFREG)
    try:
        fd = _open(name, folder_fd, os.O_RDWR)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):  # another of ours was faster
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, mode, dir_fd=folder_fd))
        fd = _open(name, folder_fd, os.O_RDWR)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(fd)
        raise PermissionError(errno.EPERM, f"{name} in its ledger belongs to user {found.st_uid}, or is a link", name)
    if stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(fd, mode)
    return fd


def open_lock(folder_fd: int, name: str) -> int:
    """A file whose lock is for all, of whoever was first. Raises OSError."""
    try:
        return open_own(folder_fd, name)
    except PermissionError:
        fd = _open(name, folder_fd, os.O_RDONLY)
    return fd


def open_of(folder_fd: int, name: str, *owners: int) -> int | None:
    """A file to be read; None: it is gone, or belongs to none of these users."""
    try:
        fd = _open(name, folder_fd, os.O_RDONLY)
    except OSError:
        return None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid in owners:
        return fd
    os.close(fd)
    return None


def _open(name: str, folder_fd: int, flags: int) -> int:
    try:
        return open_name(name, folder_fd, flags | _FLAGS)
    except BlockingIOError as error:  # the lease of another user, which is no lock of ours
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name) from error


def lock(fd: int, limit_s: float) -> None:
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


def names(folder_fd: int, *, shared: bool) -> tuple[list[str], bool]:
    """Those in it, and whether these are all; as many as may be looked at. Raises OSError."""
    # Opened anew: a place in a directory is of the description, and two threads that read one have half of it each.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        with os.scandir(fd) as entries:
            found = [entry.name for entry in itertools.islice(entries, _MOST_NAMES + 1 if shared else None)]
    finally:
        os.close(fd)
    return found[: _MOST_NAMES if shared else None], not shared or len(found) <= _MOST_NAMES


_OWN = "own-"
_OWN_MODE = 0o755
_LOCK_MODE = 0o600


class OwnLocks:
    """Locks that nobody but our user can hold, below the folder that is open at `folder_fd`.

        own-UID/            of a user, who alone can write to it; others see the names in it
        own-UID/NAME        locked (flock) as long as a daemon of that user has the cache NAME
        own-UID/start-...   as of the ledger

    Whoever can read a file can lock it, and nothing says for sure who has: so what decides is locked in files that
    others cannot open. They also name the records of a user, whatever others put beside those. In a root of one user
    nobody else reads the records, and they are locked themselves. `shared`: others can write to the folder."""

    def __init__(self, folder_fd: int, *, shared: bool) -> None:
        self._folder_fd = folder_fd
        self._shared = shared

    def lock(self, name: str, limit_s: float) -> int:
        """A descriptor that has the lock of this name until it is closed. Raises OSError, BlockingIOError when that
        cannot be had in time."""
        with self._opened(make=True) as fd:
            held = open_own(fd, name, mode=_LOCK_MODE) if self._shared else open_own(fd, name)
        try:
            lock(held, limit_s)
        except BaseException:
            os.close(held)
            raise
        return held

    def is_held(self, name: str) -> bool:
        """Whether a process has it. It is looked at for microseconds, and kept from nobody for longer."""
        try:
            with self._opened() as fd:
                found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            return False
        try:
            fcntl.flock(found, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(found)
        return False

    def names(self) -> set[str]:
        """Of all locks that we, and root, have ever had here; none in a root of one user."""
        found: set[str] = set()
        for uid in {0, os.geteuid()} if self._shared else ():
            with contextlib.suppress(OSError), self._opened(uid) as fd:
                found.update(os.listdir(fd))
        return found

    @contextlib.contextmanager
    def _opened(self, uid: int | None = None, *, make: bool = False) -> Iterator[int]:
        """The folder of this user, ours if none is named. Raises OSError."""
        if not self._shared:
            yield self._folder_fd
            return
        uid = os.geteuid() if uid is None else uid
        name = f"{_OWN}{uid}"
        if make:
            if uid == 0:
                move_away(self._folder_fd, name, stat.S_IFDIR)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _OWN_MODE, dir_fd=self._folder_fd)
        fd = open_name(name, self._folder_fd, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.fstat(fd)
            if found.st_uid != uid:
                raise PermissionError(errno.EPERM, f"{name} in its ledger belongs to user {found.st_uid}", name)
            if make and stat.S_IMODE(found.st_mode) != _OWN_MODE:
                os.fchmod(fd, _OWN_MODE)  # whatever the umask was
            yield fd
        finally:
            os.close(fd)
