"""A number in the cache directory, which is moved when overlays over the mount are to be made anew.

Whoever has made one reads it (hfs/mounting/overlay.py), by path and without asking the daemon, which may hang or have
died. It outlives daemons, so that one that goes on where another has ended moves nothing.
"""

from __future__ import annotations

import contextlib
import os

from hfs.mountd.base.attributes import Attributes
from hfs.mountd.cache.objects import CacheContext

_NAME = "overlay"


class Generation:
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
        return os.path.join(os.path.dirname(self.objects), _NAME)

    @property
    def staged_bytes(self) -> int:
        """Committed: what a new overlay would find."""
        return self._context.index.counts.bytes

    @property
    def top(self) -> str:
        """An empty directory that looks like the root of the mount, as far as its maker may say."""
        return f"{self.path}-top"

    def begin(self, root: Attributes) -> None:
        """Go on with the number that is there. `root`: of the mount."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.top)
            if os.geteuid() == 0:
                os.chown(self.top, root.uid, root.gid)
            os.chmod(self.top, root.mode & 0o7777)
            os.utime(self.top, ns=(root.atime_ns, root.mtime_ns))
        except OSError as error:
            self._context.health.failed(error, "making the top layer of overlays")
        try:
            with open(self.path, "rb") as file:
                self._number = int(file.read(20))
        except (OSError, ValueError):
            self.move()

    def move(self) -> None:
        """The next one. Where the disk refuses, overlays stay as they are, and more is read through us."""
        self._number += 1
        try:
            with open(f"{self.path}-next", "w") as file:
                file.write(str(self._number))
            os.rename(f"{self.path}-next", self.path)
        except OSError as error:
            self._context.health.failed(error, "asking for a new overlay")
