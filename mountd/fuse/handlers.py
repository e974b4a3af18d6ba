"""The handlers of the kernel's requests, under pyfuse3's names: arguments in, replies out.

Each hands its request to what answers it: `entries`, `directories`, `opened_files`, `xattrs`. What needs no waiting was
answered before by `fast_handlers`. Never here: cache decisions, paths, retries. The mount is read-only: `_ReadOnly`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.background import call_guarded
from hfs.mountd.core.slices import Slices
from hfs.mountd.fuse.boundary import Boundary, bounded, by_name, interruptible
from hfs.mountd.fuse.directories import DirectoryReplies
from hfs.mountd.fuse.entries import EntryReplies
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.opened_files import FileReplies
from hfs.mountd.fuse.xattrs import XattrReplies
from hfs.mountd.namespace import Asker
from hfs.mountd.source import Source


async def _erofs(*_: object) -> NoReturn:
    raise pyfuse3.FUSEError(errno.EROFS)


_refuse: Any = _erofs
"""Takes whatever each of them is given."""


class _ReadOnly(pyfuse3.Operations):
    """What would change something is answered EROFS, where the kernel does not do so by itself. Opens are looked at by
    who answers opens.

    A mount that is made here is `ro`, and its kernel never asks. Whoever has made one for us may have left that out, as
    container runtimes do; without an answer programs would be told that the system call does not exist (ENOSYS), and
    those that take a read-only file system for what it is, such as LMDB, would fail.
    """

    create = link = mkdir = mknod = rename = rmdir = symlink = unlink = _refuse
    removexattr = setattr = setxattr = write = _refuse


class Handlers(_ReadOnly):
    """The operations of one mount."""

    enable_acl = True
    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        boundary: Boundary,
        fast: FastHandlers,
        entries: EntryReplies,
        directories: DirectoryReplies,
        files: FileReplies,
        xattrs: XattrReplies,
        source: Source,
    ) -> None:
        super().__init__()
        self.boundary = boundary
        self._fast = fast
        self._entries = entries
        self._directories = directories
        self._files = files
        self._xattrs = xattrs
        self._source = source
        self._slices = Slices()
        """Where memory is short the kernel forgets ten thousands of nodes at a time."""
        self.begun = trio.Event()
        """The kernel's first request, INIT, has been answered."""

    def init(self) -> None:
        """As of pyfuse3: libfuse answers it as soon as this returns."""
        self.begun.set()

    # -- names and attributes -----------------------------------------------------------------------------------------

    @bounded
    @interruptible
    @by_name
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return await self._entries.look_up(parent_inode, name)

    @bounded
    @interruptible
    @by_name
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return await self._entries.attributes(inode)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        def forgetting() -> Iterator[None]:
            for inode, count in inode_list:
                call_guarded("forget", self._fast.forget, inode, count)  # nobody could be told of an error
                yield

        await self._slices.carry_out(forgetting())

    @bounded
    @interruptible
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._xattrs.target(inode, _asker(ctx))

    @bounded
    @interruptible
    @by_name
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._xattrs.value(inode, name, _asker(ctx))

    @bounded
    @interruptible
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return await self._xattrs.names(inode, _asker(ctx))

    @bounded
    @interruptible
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        figures = await self._source.statvfs()
        reply = pyfuse3.StatvfsData()
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(reply, field, getattr(figures, field))
        reply.f_namemax = figures.f_namemax
        return reply

    # -- directories --------------------------------------------------------------------------------------------------

    @bounded
    @interruptible
    @by_name
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return await self._directories.open(inode, _asker(ctx))

    @bounded
    @interruptible
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        await self._directories.read(fh, start_id, token)

    @bounded
    async def releasedir(self, fh: int) -> None:
        self._directories.close(fh)

    # -- files --------------------------------------------------------------------------------------------------------

    @bounded
    @interruptible
    @by_name
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return await self._files.open(inode, flags, _asker(ctx))

    @bounded
    async def read(  # type: ignore[override]  # pyfuse3 takes any contiguous buffer; its stub says bytes
        self, fh: int, off: int, size: int
    ) -> bytes | bytearray | memoryview:
        if size >= fastpath.SEEK:
            return await self._files.seek(fh, off, size - fastpath.SEEK)
        return await self._files.read(fh, off, size)  # which decides by itself whether its wait can be ended

    @bounded
    async def release(self, fh: int) -> None:
        self._fast.release(fh)

    async def flush(self, fh: int) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel stops asking: nothing is ever written


def _asker(ctx: pyfuse3.RequestContext) -> Asker:
    return ctx.uid, ctx.gid, ctx.pid
