"""The way to the cache directory: from the root down, a component at a time, so that each link is judged on it.

A symbolic link is followed only if root or our own user made it: an administrator may point /scratch/hfs to the disk
that is there; somebody who was quicker than we may not have a daemon of root fill, or empty, a directory of his choice.
Everything is opened relative to what was opened before, so a directory that is replaced meanwhile leads nowhere.

Blocks. Makes directories only if told to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.path_steps import open_step

_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
"""As in the kernel's own path walk."""


def real_path(path: str, stops: Collection[str] = ()) -> str:
    """The path without symbolic links; what is not there, or may not be looked at, stays as it was written.

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
