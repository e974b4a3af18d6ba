"""A slow disk: an ext4 on a loop device over one file of a FUSE file system that answers no sooner than a drive would.

The drive is an SSD with one queue: it carries so many bytes a second in either direction, one request after the other,
and adds a latency that overlaps. So a read that comes behind a large write waits for it, whatever the disk below can
do. The kernel's scheduler, its write-back and its journal are real. Its bytes lie in memory. Needs root.

    python slow_disk.py FOLDER SIZE BYTES_A_SECOND     shows FOLDER/disk.img until it is unmounted
"""

import contextlib
import errno
import mmap
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyfuse3
import trio

__all__ = ["SlowDisk"]

_LATENCY_S = 0.0001
_IMAGE = pyfuse3.ROOT_INODE + 1
_NAME = b"disk.img"
_LIMIT_S = 10.0
_LOOK_S = 0.01


class _Drive(pyfuse3.Operations):
    """One file. Requests are carried in the order in which they come."""

    def __init__(self, size_bytes: int, rate_bps: float) -> None:
        super().__init__()
        self._bytes = mmap.mmap(-1, size_bytes)
        self._rate_bps = rate_bps
        self._free_s = 0.0

    async def _carry(self, size_bytes: int) -> None:
        self._free_s = max(self._free_s, trio.current_time()) + size_bytes / self._rate_bps
        await trio.sleep_until(self._free_s + _LATENCY_S)

    async def getattr(self, inode: int, _ctx: object = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFREG | 0o600 if inode == _IMAGE else stat.S_IFDIR | 0o700
        entry.st_size = len(self._bytes) if inode == _IMAGE else 0
        entry.st_nlink = 1
        entry.attr_timeout = entry.entry_timeout = 1e6
        return entry

    async def setattr(self, inode: int, *_rest: object) -> pyfuse3.EntryAttributes:
        return await self.getattr(inode)

    async def lookup(self, _parent: int, name: bytes, _ctx: object = None) -> pyfuse3.EntryAttributes:
        if name != _NAME:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(_IMAGE)

    async def open(self, inode: int, _flags: int, _ctx: object = None) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, _fh: int, off: int, size: int) -> bytes:
        await self._carry(size)
        return self._bytes[off : off + size]

    async def write(self, _fh: int, off: int, buf: bytes) -> int:
        await self._carry(len(buf))
        self._bytes[off : off + len(buf)] = buf
        return len(buf)

    async def fsync(self, _fh: int, _datasync: bool) -> None:
        await self._carry(0)

    async def flush(self, _fh: int) -> None:
        pass


class SlowDisk:
    """Mounted at `path` until closed. `folder` is empty. Raises RuntimeError where there is none to be had."""

    def __init__(self, folder: Path, size_bytes: int, rate_bps: float, scheduler: str) -> None:
        self.path, self._shown = folder / "disk", folder / "drive"
        self.path.mkdir()
        self._shown.mkdir()
        self._device = ""
        command = [sys.executable, __file__, self._shown, str(size_bytes), str(rate_bps)]
        self._drive = subprocess.Popen(command)
        try:
            image, until_s = self._shown / os.fsdecode(_NAME), time.monotonic() + _LIMIT_S
            while not image.exists():
                if self._drive.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError("the slow drive does not start")
                time.sleep(_LOOK_S)
            self._device = _must("losetup", "--find", "--show", "--direct-io=on", image).strip()
            Path(f"/sys/block/{Path(self._device).name}/queue/scheduler").write_text(scheduler)
            _must("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0", self._device)
            _must("mount", self._device, self.path)
        except BaseException:
            self.close()
            raise

    def drop_pages(self) -> None:
        """What is on it is read from it again."""
        _must("sync", "--file-system", self.path)
        for path in self.path.rglob("*"):
            if path.is_file() and path.stat().st_size:
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def close(self) -> None:
        """Take it all away."""
        if os.path.ismount(self.path):
            _must("umount", self.path)
        if self._device:
            _must("losetup", "--detach", self._device)
        until_s = time.monotonic() + _LIMIT_S
        while os.path.ismount(self._shown):
            # The kernel lets go of the loop device in the background: once no mount namespace has the disk any more
            # that another program has made meanwhile. Such a one is left with a disk that fails.
            how = ("--lazy",) if time.monotonic() > until_s else ()
            with contextlib.suppress(RuntimeError):
                _must("umount", *how, self._shown)
            time.sleep(_LOOK_S)
        self._drive.terminate()
        self._drive.wait()


def _must(*command: str | os.PathLike[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


def _show(folder: str, size_bytes: int, rate_bps: float) -> None:
    options = {*pyfuse3.default_options, "fsname=slow-disk"}
    pyfuse3.init(_Drive(size_bytes, rate_bps), folder, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    _show(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
