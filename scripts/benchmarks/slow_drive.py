"""The drive of slow_disk.py: a FUSE file system of one file, whose bytes lie in memory.

One queue: it carries so many bytes a second in either direction, one request after the other, and adds a latency that
overlaps. A program of its own: whoever imports pyfuse3 before the extension of hfs does without it.

    python slow_drive.py FOLDER SIZE BYTES_A_SECOND     shows FOLDER/disk.img until it is unmounted
"""

import errno
import mmap
import stat
import sys

import pyfuse3
import trio

_LATENCY_S = 0.0001
_IMAGE = pyfuse3.ROOT_INODE + 1
_NAME = b"disk.img"


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


def _show(folder: str, size_bytes: int, rate_bps: float) -> None:
    options = {*pyfuse3.default_options, "fsname=slow-disk"}
    pyfuse3.init(_Drive(size_bytes, rate_bps), folder, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    _show(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
