"""What overlays over the mount are made of in the cache directory (hfs/mounting/overlay.py): a number and a directory.

The number is moved when overlays are to be made anew. Whoever has made one reads it, by path and without asking the
daemon, which may hang or have died; it outlives daemons. The directory is empty, and stands for the root of the mount.
The cache directory is reached by its descriptor alone, and no link is followed: who may rename it gains nothing.
"""

from __future__ import annotations

import contextlib
import os

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.cache.objects import CacheContext

_NUMBER, _NEXT, _TOP = "overlay", "overlay-next", "overlay-top"
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Generation:
    """Event loop only; the disk is waited for in threads."""

    def __init__(self, context: CacheContext) -> None:
        self._context = context
        self._number = 0

    @property
    def objects(self) -> str:
        """Where the objects lie."""
        return self._context.disk.objects_dir

    @property
    def path(self) -> str:
        """Of the file that has the number."""
        return os.path.join(os.path.dirname(self.objects), _NUMBER)

    @property
    def top(self) -> str:
        """The directory that looks like the root of the mount, as far as its maker may say."""
        return os.path.join(os.path.dirname(self.objects), _TOP)

    @property
    def staged_bytes(self) -> int:
        """Committed: what a new overlay would find."""
        return self._context.index.counts.bytes

    async def begin(self, root: Attributes) -> bool:
        """Go on with the number that is there. `root`: of the mount. False: there is no disk, or it refuses."""
        if self._context.disk.directory < 0:
            return False
        try:
            self._number = await self._context.threads.sweep(self._begun, root)
        except OSError as error:
            self._context.health.failed(error, "making what overlays are made of")
            return False
        return True

    async def move(self, root: Attributes | None = None) -> None:
        """The next one. `root`: as it is now. Where the disk refuses, overlays stay as they are, and more is read
        through us."""
        self._number += 1
        try:
            await self._context.threads.sweep(self._moved, self._number, root)
        except OSError as error:
            self._context.health.failed(error, "asking for a new overlay")

    def _begun(self, root: Attributes) -> int:
        directory = self._directory()
        try:
            _make_top(directory, root)
            try:
                fd = os.open(_NUMBER, os.O_RDONLY | _SAFELY, dir_fd=directory)
            except FileNotFoundError:
                _write(directory, 1)
                return 1
            with open(fd, "rb") as file:
                return int(file.read(20) or b"0")
        except ValueError:
            _write(directory, 1)
            return 1
        finally:
            os.close(directory)

    def _moved(self, number: int, root: Attributes | None) -> None:
        directory = self._directory()
        try:
            if root is not None:
                _make_top(directory, root)
            _write(directory, number)
        finally:
            os.close(directory)

    def _directory(self) -> int:
        return os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._context.disk.directory)


def _make_top(directory: int, root: Attributes) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(_TOP, 0o700, dir_fd=directory)
    fd = os.open(_TOP, os.O_RDONLY | os.O_DIRECTORY | _SAFELY, dir_fd=directory)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, root.uid, root.gid)
        os.fchmod(fd, root.mode & 0o7777)
        os.utime(fd, ns=(root.atime_ns, root.mtime_ns))
    finally:
        os.close(fd)


def _write(directory: int, number: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEXT, dir_fd=directory)
    fd = os.open(_NEXT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o644, dir_fd=directory)
    with open(fd, "w") as file:
        file.write(str(number))
    os.rename(_NEXT, _NUMBER, src_dir_fd=directory, dst_dir_fd=directory)
