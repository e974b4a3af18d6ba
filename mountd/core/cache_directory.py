"""The cache directory, held by its descriptor, and only if nobody but us can have put anything into it.

A daemon of root overwrites files here and believes the index that it finds, so whoever can write here could have it
overwrite any file of the machine, and show any bytes as the source's. What must hold, else a ConfigError that names
path, fault and remedy:

- The symbolic links on the way to it are of root or our own user (`cache_path`).
- The directory, and what of it is ours (`_OURS`), belongs to our user, nobody else may write to it, and no file has a
  second name: a hard link may be a file of somewhere else. What is none of ours is not looked at. Logs are not read
  again, so they may have been open to others (umask 002 made them so), until they are written to.
- One that several users share, each with caches of his own below it, belongs to root and is sticky, like /tmp: there
  nobody can rename or remove what is another user's (`shared_ok`).

Directories above are not judged: all below is reached through the descriptor, so whoever can rename them takes the name
away and nothing else. SQLite alone insists on paths: `check_opened` sees afterwards that what it opened lies here.

One process at a time has it (`lock_cache`), until the descriptor of its lock is closed or it has ended.

All of it blocks. Knows nothing of what the files hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hfs.mountd.core.errors import CacheInUse, ConfigError
from hfs.mountd.core.path_steps import open_name, open_step, stat_name

LOGS = "logs"
OVERLAYS = "overlays"
"""Only we may come there, and what lies in it is looked at by nobody: some of it has the mode and owner of others."""
_OURS = {"lock", "objects", "ledger", LOGS}
_OURS_BEGIN = ("index.", "objects.")
"""The names that hfs uses, and how others of them begin; of directories among them also what lies directly in them is
looked at."""

_AWAY = ".not-ours-"
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # <sys/mount.h>

_libc = ctypes.CDLL(None, use_errno=True)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SHARED = stat.S_ISVTX | stat.S_IWOTH


_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
"""As in the kernel's own path walk."""


def real_path(path: str, stops: Collection[str] = ()) -> str:
    """The path without symbolic links; what is not there, or may not be looked at, stays as it was written.

    It is gone from the root down, a component at a time, so that each link is judged on it. A symbolic link is followed
    only if root or our own user made it: an administrator may point /scratch/hfs to the disk that is there; somebody
    who was quicker than we may not have a daemon of root fill, or empty, a directory of his choice. Everything is
    opened relative to what was opened before, so a directory that is replaced meanwhile leads nowhere.

    `stops`: mountpoints, not to be looked into. Raises ConfigError for a link that somebody else made, OSError (ELOOP).
    """
    with walk(path, make=False, stops=stops) as found:
        return "/".join([found.path.rstrip("/"), *found.missing]) or "/"


@dataclass(slots=True)
class Found:
    """How far a walk came. A context manager: its end closes the descriptor."""

    fd: int
    """O_PATH, of the last directory."""
    path: str
    """Of the same, without symbolic links."""
    missing: list[str]
    """Components that were left."""
    why: OSError | None = None
    """Why they were left; None: a stop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


def walk(path: str, *, make: bool, stops: Collection[str] = ()) -> Found:
    """From the root down, a component at a time, so that each link is judged that is followed."""
    todo = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    found = Found(open_step("/"), "", [])
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":  # only from the text of a link: abspath has removed the others
                _step(found, "..", found.path.rpartition("/")[0])
                continue
            below = f"{found.path}/{part}"
            try:
                if below in stops:
                    found.missing = [part, *reversed(todo)]
                    return found
                _step(found, part, below)
                continue
            except FileNotFoundError as error:
                if make:
                    with contextlib.suppress(FileExistsError):
                        # The last one holds what readers of the mount may be denied; others lie beside those above.
                        os.mkdir(part, 0o755 if todo else 0o700, dir_fd=found.fd)
                    _step(found, part, below)
                    continue
                found.why = error
            except OSError as error:
                found.why = error
            text = _link_text(path, below, found.fd, part) if found.why.errno in {errno.ENOTDIR, errno.ELOOP} else None
            if text is None:
                found.missing = [part, *reversed(todo)]
                return found
            found.why = None
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if text.startswith("/"):
                _step(found, "/", "")
            todo.extend(piece for piece in reversed(text.split("/")) if piece not in {"", "."})
    except BaseException:
        os.close(found.fd)
        raise
    return found


def _step(found: Found, name: str, path: str) -> None:
    fd = open_step(name, found.fd)
    os.close(found.fd)
    found.fd, found.path = fd, path


def _link_text(path: str, link: str, directory_fd: int, name: str) -> str | None:
    """Where the link leads; None: it is none. Raises ConfigError for one of somebody else's."""
    try:
        fd = os.open(name, _ANYTHING, dir_fd=directory_fd)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISLNK(found.st_mode):
            return None
        if found.st_uid not in {0, os.geteuid()}:
            raise ConfigError(
                f"cache {path}: {link} is a symbolic link of user {found.st_uid}, who can lead it anywhere; "
                "give the directory itself"
            )
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def open_cache_directory(path: str, *, make: bool, shared_ok: bool = False) -> CacheDirectory:
    """The directory, checked as the story says; with `make` it is made for us alone if it is not there.

    `shared_ok`: it may be one that several users share. Raises ConfigError, and OSError where it is no directory,
    missing or cannot be reached.
    """
    with walk(path, make=make) as found:
        if found.missing:
            raise found.why or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        directory = CacheDirectory(
            path, found.path, os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found.fd)
        )
    try:
        directory.check(shared_ok=shared_ok)
    except BaseException:
        directory.close()
        raise
    return directory


class CacheDirectory:
    """Names are of files in it, without a slash unless it says so."""

    def __init__(self, path: str, where: str, fd: int) -> None:
        self.path = path
        """As it was given, for messages."""
        self.real_path = where
        """Without symbolic links: for SQLite."""
        self.fd = fd
        self.shared = False
        """Several users have caches below it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def check(self, *, shared_ok: bool = False) -> None:
        """See that the directory and all of ours in it are as they must be. Raises ConfigError, OSError."""
        found = os.fstat(self.fd)
        self.shared = shared_ok and found.st_uid == 0 and stat.S_IMODE(found.st_mode) & _SHARED == _SHARED
        if self.shared:
            return  # nothing is read of it but records of room, and what is below is looked at by itself
        self._check_itself(found)
        for name in os.listdir(self.fd):
            if name == OVERLAYS:
                self._check_entry(name, os.lstat(name, dir_fd=self.fd))
            elif name in _OURS or name.startswith(_OURS_BEGIN):
                self._check(name, os.lstat(name, dir_fd=self.fd))

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file, mode 0600 if it is made. Never follows a link. Raises OSError."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)

    def open_directory(self, name: str) -> int:
        """A descriptor of the directory `name`, made for us alone if it is not there. What another user has made where
        several share this one root moves away, and others get an OSError. Raises ConfigError, OSError."""
        if self.shared and os.geteuid() == 0:
            move_away(self.fd, name, stat.S_IFDIR)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
        fd = open_name(name, self.fd, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.fstat(fd)
            self._check_entry(name, found)
            if name.startswith(LOGS):
                os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def exists(self, name: str) -> bool:
        """Whether there is anything of that name."""
        try:
            os.lstat(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """All names in it."""
        return os.listdir(self.fd)

    def rename(self, old: str, new: str) -> None:
        """Raises OSError."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        """Raises OSError."""
        os.unlink(name, dir_fd=self.fd)

    def check_opened(self, name: str, times: int) -> None:
        """See that this process has the file open at least so many times: what was opened by path lies here.

        Raises ConfigError: a directory above was replaced in between, as whoever may write there can do.
        """
        found = 0
        with contextlib.suppress(FileNotFoundError):
            wanted = os.lstat(name, dir_fd=self.fd)
            for number in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    # By its name first: a stat of what lies on a file system that hangs would hang.
                    if os.path.basename(os.readlink(f"/proc/self/fd/{number}")) == name:
                        found += os.path.samestat(os.fstat(int(number)), wanted)
        if found < times:
            raise ConfigError(
                f"cache {self.path}: {name} was opened elsewhere, so a directory above is being replaced by somebody; "
                "give a directory below one that only you or root may write to"
            )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_itself(self, found: os.stat_result) -> None:
        mode = stat.S_IMODE(found.st_mode)
        ours = found.st_uid == os.geteuid()
        faults = [] if ours else [f"belongs to user {found.st_uid}, not to user {os.geteuid()} who uses it"]
        if mode & _OTHERS_WRITE:
            faults.append(f"may be written to by others (mode {mode:04o})")
            remedy = f"give one below it, such as {self.path.rstrip('/')}/hfs, which is made for you alone"
            if ours:
                remedy += f", or take the right away: chmod go-w {self.path}"
        else:
            remedy = "give a directory of your own, or one that is not there yet"
        if faults:
            raise ConfigError(f"cache {self.path}: {' and '.join(faults)}; {remedy}")

    def _check(self, name: str, found: os.stat_result) -> None:
        self._check_entry(name, found)
        if stat.S_ISDIR(found.st_mode):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                for inner in os.listdir(fd):
                    self._check_entry(f"{name}/{inner}", os.lstat(inner, dir_fd=fd))
            finally:
                os.close(fd)

    def _check_entry(self, name: str, found: os.stat_result) -> None:
        mode, path = stat.S_IMODE(found.st_mode), f"{self.path.rstrip('/')}/{name}"
        remedy = "remove it, or give another directory"
        if stat.S_ISLNK(found.st_mode):
            fault = "is a symbolic link"
        elif not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            fault = "is neither a file nor a directory"
        elif found.st_uid != os.geteuid():
            fault = f"belongs to user {found.st_uid}, not to user {os.geteuid()} who uses it"
        elif mode & _OTHERS_WRITE and not name.startswith(LOGS):
            fault = f"may be written to by others (mode {mode:04o})"
            remedy = f"if nobody has, chmod go-w {path}; else remove all of the directory"
        elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            fault = "is a hard link, to a file that may belong elsewhere"
        else:
            return
        if self.shared:  # whoever shares it cannot help it, and goes without
            raise PermissionError(errno.EPERM, f"{name} {fault}", path)
        raise ConfigError(f"cache {self.path}: {name} {fault}; {remedy}")


def move_away(folder_fd: int, name: str, kind: int) -> None:
    """As root, in a directory to which others write: give another name to whatever stands in the place of a file or
    directory (`kind`: S_IFREG or S_IFDIR) of root's; what they have mounted there goes. Raises OSError."""
    if not os.fstat(folder_fd).st_mode & _OTHERS_WRITE:
        return  # nobody else can have put anything there
    with contextlib.suppress(FileNotFoundError):
        uncover(folder_fd, name)
        found = stat_name(name, folder_fd)
        # What is root's by its owner another user may have linked or moved there.
        is_ours = found.st_uid == 0 and stat.S_IFMT(found.st_mode) == kind
        if not is_ours or (kind == stat.S_IFREG and found.st_nlink != 1):
            os.rename(name, f"{name}{_AWAY}{time.monotonic_ns():x}", src_dir_fd=folder_fd, dst_dir_fd=folder_fd)


def uncover(folder_fd: int, name: str) -> None:
    """As root: take away what other plain users have mounted there. Raises OSError."""
    while True:
        try:
            os.close(open_step(name, folder_fd, any_kind=True))
        except PermissionError:
            if _libc.umount2(os.fsencode(f"/proc/self/fd/{folder_fd}/{name}"), _MNT_DETACH | _UMOUNT_NOFOLLOW):
                raise
        else:
            return


def lock_cache(directory: CacheDirectory) -> int:
    """Own the cache directory until the returned descriptor is closed. Raises CacheInUse, OSError."""
    fd = directory.open("lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise CacheInUse(
            f"the cache {directory.path} is in use by process {owner}: "
            "use the mount that it serves, or another --cache directory"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
