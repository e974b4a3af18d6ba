"""The file systems below SOURCE: which one an inode lies on, found out once for each mount.

A mount is known by the kernel's number of it, which is never given again, and by st_dev, since one mount may show
several file systems (subvolumes, layers). Kernels before 6.8 have no such number: there all is found out anew whenever
anything was mounted or unmounted.

A directory that is open keeps its file system alive, and with it st_dev: what has the st_dev of the open directory that
it was looked up in lies on the same one, and needs no look in here.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from hfs.mountd.core.attributes import Attributes, passing_id, stored_ns
from hfs.mountd.native.statx import InodeLocation, open_directory, place
from hfs.mountd.source.identity import FileSystem, identify, mount_points, mounted_devices
from hfs.mountd.source.second_looks import SourceClock

log = logging.getLogger(__name__)

_MAX_KNOWN = 4096
"""Mounts remembered; of those that are forgotten nothing passing is found again."""


_STANDS = SourceClock(stands=True)


class FileSystems:
    """Any thread. `root_id`: what that of `root_fd`, at `root_path`, is called in versions: by us, or by the user.
    `immutable`: the user says that nothing changes on any."""

    def __init__(
        self,
        root_fd: int,
        root_id: str,
        root_path: bytes,
        *,
        immutable: bool = False,
        identify: Callable[[int], FileSystem] = identify,
        place: Callable[[int], InodeLocation] = place,
    ) -> None:
        self._identify = identify
        self._place = place
        self._root_device = place(root_fd).device
        self.root = identify(root_fd)._replace(id=root_id)
        self._immutable = immutable
        self._root_clock = self._clock_of(self.root)
        self._clocks = {"": self._root_clock, root_id: self._root_clock}
        self._lock = threading.Lock()
        self._known: OrderedDict[InodeLocation, FileSystem] = OrderedDict()
        self._root_point = root_path.rstrip(b"/") + b"/"
        self._passing: tuple[bytes, ...] = ()
        """Where, below SOURCE, file systems without a lasting identity are or were mounted."""
        self._ids = {root_id: self._root_device}
        """Which st_dev has each identity."""
        self._mounts_fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._mounts_fd, select.POLLPRI)
        self._generation = 0

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._mounts_fd)

    def known(self, where: InodeLocation) -> str | None:
        """The identity of what lies there, empty for that of the root, None if it is not known yet."""
        if where.device == self._root_device:
            return ""
        found = self._known.get(where) if where.mount else None
        return found.id if found is not None else None

    def of(self, fd: int) -> tuple[int, str]:
        """In a thread: st_dev of an open file or directory, and its file system's identity, empty for that of the root.

        Raises OSError.
        """
        where = self._place(fd)
        if where.device == self._root_device:
            return where.device, ""  # the root is open as long as we live: nobody else gets its st_dev
        if not where.mount:
            where = where._replace(mount=self._unchanged())
        found = self._known.get(where)
        if found is None:
            found = self._add(where, self._identify(fd))
        return where.device, found.id

    def clock(self, source_id: str) -> SourceClock:
        """The clock that stamps the files of a file system; empty: that of the root."""
        return self._clocks.get(source_id, _STANDS)  # what has a name for lack of another is not changed unseen again

    def saw(self, found: Iterable[Attributes | None]) -> None:
        """In a thread, just after these were asked for: their stamps say what time it is at the source."""
        newest: dict[str, int] = {}
        for attributes in found:
            if attributes is not None and attributes.ctime_ns > newest.get(attributes.file_system, 0):
                newest[attributes.file_system] = attributes.ctime_ns
        at_ns = time.monotonic_ns()
        for file_system, ctime_ns in newest.items():
            self.clock(file_system).saw(stored_ns(ctime_ns), at_ns)

    def knows(self, source_id: str) -> bool:
        """Whether it is the identity of a file system that was met."""
        return source_id in self._ids

    def is_passing(self, path: bytes) -> bool:
        """Whether `path`, below SOURCE, lies on a file system whose identity only this daemon knows."""
        return any(path == point or path.startswith(point + b"/") for point in self._passing)

    def met(self) -> list[FileSystem]:
        """The root's, and all below it that were met."""
        with self._lock:
            return [self.root, *self._known.values()]

    def shown(self) -> list[dict[str, object]]:
        """Those that were met, for the status, by where they are mounted below SOURCE."""
        found = {self._below(known.point) if known is not self.root else b"": known for known in self.met()}
        return [
            {
                "path": path.decode("utf-8", "backslashreplace"),
                "id": known.id,
                "kind": known.kind,
                "lasting": known.lasting,
            }
            for path, known in sorted(found.items())
        ]

    def meet_all(self, root_fd: int) -> None:
        """In a thread: look at everything that is mounted below SOURCE."""
        for point in mount_points():
            if point.startswith(self._root_point):
                try:
                    fd = open_directory(root_fd, self._below(point))
                except OSError:
                    continue  # a file mounted over a file; below another mount; unmounted meanwhile
                try:
                    self.of(fd)
                finally:
                    os.close(fd)

    def _below(self, point: bytes) -> bytes:
        return point.removeprefix(self._root_point)

    def _add(self, where: InodeLocation, found: FileSystem) -> FileSystem:
        if found.on_device and self._mounted_elsewhere(found.id, where.device):
            log.warning(
                "%s: its UUID is that of another file system that is mounted too (a copy of its image?): what is "
                "staged of it is used by this daemon only; give it a UUID of its own",
                os.fsdecode(found.point),
            )
            found = found._replace(id=passing_id())
        with self._lock:
            known = self._known.get(where)
            if known is not None:
                return known  # another thread was faster; a passing identity is made once
            self._known[where] = found
            self._ids[found.id] = where.device
            self._clocks.setdefault(found.id, self._clock_of(found))
            if not found.lasting and found.point.startswith(self._root_point):
                self._passing = (*{*self._passing, self._below(found.point)},)
            while len(self._known) > _MAX_KNOWN:
                _, gone = self._known.popitem(last=False)
                if gone.id != self.root.id:
                    self._ids.pop(gone.id, None)  # not its clock: another mount may be of the same file system
        if not found.lasting:
            log.info(
                "%s (%s): nothing tells this file system from another, so what is staged of it is used by this daemon "
                "only",
                os.fsdecode(found.point),
                found.kind,
            )
        return found

    def _clock_of(self, found: FileSystem) -> SourceClock:
        return SourceClock(is_ours=found.is_local, stands=found.stands or self._immutable)

    def _mounted_elsewhere(self, source_id: str, device: int) -> bool:
        """Another file system has this identity, and is mounted."""
        other = self._ids.get(source_id, device)
        return other != device and (other == self._root_device or other in mounted_devices())

    def _unchanged(self) -> int:
        """A number that stays as long as nothing is mounted or unmounted. To be asked once the descriptor is open."""
        with self._lock:
            if self._changes.poll(0):
                self._generation -= 1
        return self._generation
