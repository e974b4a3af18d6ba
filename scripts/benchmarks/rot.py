"""A disk that rots: an ext4 in a file on a loop device, and bits that turn below its file system.

Nothing but checksums can tell: neither size nor any time of a file changes. For benchmarks and tests; needs root.
"""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["RottingDisk", "has_loop_devices", "place_of"]

_FS_IOC_FIEMAP = 0xC020660B


def has_loop_devices() -> bool:
    """Whether a disk can be made here."""
    return os.geteuid() == 0 and subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode == 0


def place_of(path: Path, offset: int) -> int:
    """Where byte `offset` of a file lies on its disk, in bytes (FIEMAP, Documentation/filesystems/fiemap.rst)."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        room = bytearray(struct.pack("=QQLLLL", offset, 1, 1, 0, 1, 0) + bytes(56))
        fcntl.ioctl(file.fileno(), _FS_IOC_FIEMAP, room)
        logical, physical, _length = struct.unpack_from("=QQQ", room, 32)
    return int(physical + offset - logical)


class RottingDisk:
    """An ext4 of `size_bytes` in a file in `folder`, mounted at `path` after `mount`."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        _must("mkfs.ext4", "-q", "-F", self.image)

    def mount(self) -> None:
        _must("mount", "-o", "loop", self.image, self.path)

    def unmount(self) -> None:
        _must("umount", self.path)

    def rot(self, folder: Path, step_bytes: int) -> int:
        """Turn a bit of every `step_bytes` of every file below `folder`, which lies on it. Returns how many."""
        places = []
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            size = path.stat().st_size
            places += [place_of(path, min(start + 4321, size - 1)) for start in range(0, size, step_bytes)]
        self.unmount()
        self._turn(places)
        self.mount()
        for path in files:
            with path.open("rb") as file:  # where another namespace has it mounted still, the pages are still there
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return len(places)

    def _turn(self, places: Iterable[int]) -> None:
        """Turn a bit at each place of the image, which is not mounted."""
        with self.image.open("r+b", buffering=0) as file:
            for number, place in enumerate(places):
                byte = os.pread(file.fileno(), 1, place)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 1 << number % 8]), place)
            os.fsync(file.fileno())


def _must(*command: str | os.PathLike[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
