"""The handlers of the kernel's requests, under pyfuse3's names: arguments in, replies out.

Each hands its request to what answers it: `entries`, `directories`, `opened_files`, `xattrs`. What needs no waiting was
answered before by `fast_handlers`. Never here: cache decisions, paths, retries. The mount is read-only: `_ReadOnly`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from hfs.mountd.core.background import Slices, call_guarded
from hfs.mountd.core.errors import HfsError, SourceError, errno_of, shown_path
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fetch import SparseFiles
from hfs.mountd.files import FileHandle, Handles, Opening, Overlays, Readers, ReadPath
from hfs.mountd.fuse.boundary import Boundary, bounded, by_name, interruptible
from hfs.mountd.fuse.directories import DirectoryReplies, EntryReplies
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.namespace import ROOT_ID, Asker, Namespace, Node, Permissions, Xattrs, wanted_by
from hfs.mountd.source import Source, WantedAccess
from hfs.policies.geometry import clamp

_OWN = "user.hfs."


class FileReplies:
    """Files that the kernel opens and reads: replies to OPEN, READ and LSEEK that have to wait.

    A read reply shorter than what the file has is taken by the kernel for the end of the file, which is a wrong byte:
    it becomes EIO here.

    What those who open and read files are answered. File handles by number.
    """

    def __init__(
        self,
        namespace: Namespace,
        permissions: Permissions,
        opening: Opening,
        handles: Handles,
        read_path: ReadPath,
        readers: Readers,
        sparse_files: SparseFiles,
        boundary: Boundary,
    ) -> None:
        self._namespace = namespace
        self._permissions = permissions
        self._opening = opening
        self._handles = handles
        self._read_path = read_path
        self._readers = readers
        self._sparse_files = sparse_files
        self._interrupts = boundary.interrupts
        self._metrics = boundary.metrics

    async def open(self, node_id: int, flags: int, asker: Asker) -> pyfuse3.FileInfo:
        """The reply to an OPEN. Raises FUSEError EROFS, and ENOSYS in a mount whose files are read without one."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise pyfuse3.FUSEError(errno.EROFS)
        if self._opening.stateless:
            self._metrics.add("opens_stateless")
            self._opening.let_go()
            raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel stops asking, for the whole mount
        unique = fastpath.request().unique
        try:
            node = self._namespace.node(node_id)
            await self._permissions.check(node, wanted_by(flags), asker)
            number, backing_id = await self._opening.open(node, asker[2], unique)
        except HfsError as error:
            if errno_of(error) == errno.ESTALE:
                self._opening.stale(asker[2])
            raise
        if backing_id is not None:
            fastpath.answer_with_backing(number, backing_id)
        direct = bool(node.gives_bytes)
        return pyfuse3.FileInfo(fh=number, keep_cache=backing_id is None and not direct, direct_io=direct)

    async def read(self, number: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """The bytes of `[offset, offset + size)` that the file has. Raises SourceError, EIO for fewer."""
        token, thread_id, *_ = fastpath.request()
        handle = await self._handle(number, thread_id)
        # A file that is wholly staged comes from the cache disk, whatever the source does.
        with self._interrupts.waiting((0, 0) if handle.file.complete and handle.file.size else (token, thread_id)):
            data = await self._read_path.read(handle, offset, size)
        if handle.file.size and len(data) != clamp(offset, size, handle.file.size).size:
            self._metrics.add("short_replies")
            raise SourceError(errno.EIO, f"{len(data)} bytes for a read of {size} at {offset}")
        self._readers.served(thread_id, len(data))
        return data

    async def seek(self, number: int, offset: int, whence: int) -> bytes:
        """Where the next data is from `offset` on, or the next hole. Raises FUSEError ENXIO where there is none."""
        token, thread_id, *_ = fastpath.request()
        handle = await self._handle(number, thread_id)
        with self._interrupts.waiting((token, thread_id)):
            hole = whence == os.SEEK_HOLE
            found = await self._sparse_files.seek(handle.node, handle.file.version, offset, hole=hole)
        if found is None:
            raise pyfuse3.FUSEError(errno.ENXIO)
        return fastpath.OFFSET.pack(found)

    async def _handle(self, number: int, thread_id: int) -> FileHandle:
        if number == 0 or self._opening.stateless:  # 0: the kernel was told so by a daemon that has not noted it
            return await self._opening.stateless_handle(fastpath.request().node_id, thread_id)
        await self._opening.attach(number)
        return self._handles.file(number)


@dataclasses.dataclass(eq=False)
class XattrReplies:
    """Replies to GETXATTR, LISTXATTR and READLINK."""

    namespace: Namespace
    permissions: Permissions
    xattrs: Xattrs
    own: Callable[[Node, str], bytes | None]
    """The value of one of our own `user.hfs.` attributes, or None."""
    overlays: Overlays
    root_has_no_acl: Callable[[], None]
    """Called where the source has said so."""
    metrics: Metrics

    async def value(self, node_id: int, name: bytes, asker: Asker) -> bytes:
        """Of one attribute. Raises SourceError, ENODATA if it is not there."""
        text = os.fsdecode(name)
        if self.overlays.is_asked(text) and node_id != ROOT_ID:
            await self.overlays.wait()
        node = self.namespace.node(node_id)
        if text.startswith(_OWN):
            value = self.own(node, text)
            if value is None:
                raise SourceError(errno.ENODATA, f"{text} of {shown_path(node.path)}")
            return value
        if self.overlays.is_asked(text):
            if (told := await self.overlays.value(node, text, asker[0])) is None:
                raise SourceError(errno.ENODATA, f"{text} of {shown_path(node.path)}")
            if not told:  # `metacopy`, which is asked for once, and before the other
                self.metrics.add("overlay_look_ups")
                self.metrics.add("overlay_look_up_bytes", node.attributes.size)
            return told
        if not self.xattrs.is_acl(name):
            await self.permissions.check_xattr(node, name, asker)
        try:
            return await self.xattrs.get(node, name)
        except SourceError as error:
            is_of_root = node_id == ROOT_ID and name == b"system.posix_acl_access"
            # A source that is silent has said it some time ago.
            if is_of_root and errno_of(error) == errno.ENODATA and not self.namespace.silence.is_on():
                self.root_has_no_acl()
            raise

    async def names(self, node_id: int, asker: Asker) -> Sequence[bytes]:
        """Of all attributes but our own, and what overlays take for theirs. Raises SourceError."""
        node = self.namespace.node(node_id)
        await self.permissions.check_xattr(node, None, asker)
        names = await self.xattrs.names(node)
        return [name for name in names if not self.overlays.is_asked(os.fsdecode(name))]

    async def target(self, node_id: int, asker: Asker) -> bytes:
        """Where a symbolic link leads. Raises SourceError."""
        node = self.namespace.node(node_id)
        await self.permissions.check(node, WantedAccess.FOLLOW, asker)
        return await self.xattrs.target(node)


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
