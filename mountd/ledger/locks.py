"""`OwnLocks`: locks that nobody but our user can hold.

    own-UID/            of a user, who alone can write to it; others see the names in it
    own-UID/NAME        locked (flock) as long as a daemon of that user has the cache NAME
    own-UID/start-...   as of the ledger

Whoever can read a file can lock it, and nothing says for sure who has: so what decides is locked in files that others
cannot open. They also name the records of a user, whatever others put beside those. In a root of one user nobody else
reads the records, and they are locked themselves. Everything blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from hfs.mountd.core.cache_directory import move_away
from hfs.mountd.core.path_steps import open_name
from hfs.mountd.ledger import folder

_FOLDER = "own-"
_FOLDER_MODE = 0o755
_MODE = 0o600


class OwnLocks:
    """Below the folder that is open at `folder_fd`. `shared`: others can write to that."""

    def __init__(self, folder_fd: int, *, shared: bool) -> None:
        self._folder_fd = folder_fd
        self._shared = shared

    def lock(self, name: str, limit_s: float) -> int:
        """A descriptor that has the lock of this name until it is closed. Raises OSError, BlockingIOError when that
        cannot be had in time."""
        with self._opened(make=True) as fd:
            held = folder.open_own(fd, name, mode=_MODE) if self._shared else folder.open_own(fd, name)
        try:
            folder.lock(held, limit_s)
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
        name = f"{_FOLDER}{uid}"
        if make:
            if uid == 0:
                move_away(self._folder_fd, name, stat.S_IFDIR)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _FOLDER_MODE, dir_fd=self._folder_fd)
        fd = open_name(name, self._folder_fd, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.fstat(fd)
            if found.st_uid != uid:
                raise PermissionError(errno.EPERM, f"{name} in its ledger belongs to user {found.st_uid}", name)
            if make and stat.S_IMODE(found.st_mode) != _FOLDER_MODE:
                os.fchmod(fd, _FOLDER_MODE)  # whatever the umask was
            yield fd
        finally:
            os.close(fd)
