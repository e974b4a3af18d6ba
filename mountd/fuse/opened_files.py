"""Files that the kernel opens and reads: replies to OPEN, READ and LSEEK that have to wait.

A read reply shorter than what the file has is taken by the kernel for the end of the file, which is a wrong byte: it
becomes EIO here.
"""

from __future__ import annotations

import errno
import os

from hfs.mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3

from hfs.mountd.core.errors import HfsError, SourceError, errno_of
from hfs.mountd.fetch import SparseFiles
from hfs.mountd.files import FileHandle, Handles, Opening, Readers, ReadPath
from hfs.mountd.fuse.boundary import Boundary
from hfs.mountd.namespace import Asker, Namespace, Permissions, wanted_by
from hfs.policies.geometry import clamp


class FileReplies:
    """What those who open and read files are answered. File handles by number."""

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
