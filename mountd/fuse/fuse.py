"""The protocol adapter: FUSE requests in, replies and errnos out. The only file that imports pyfuse3.

Every handler is a few lines: look the node or handle up, ask `read_path` or `namespace`, put the answer into pyfuse3's
words. One decorator turns exceptions into errnos by the table of `errors`: pyfuse3 ends the mount for everybody on any
exception but FUSEError. What no rule foresaw is logged with its traceback, counted and answered EIO. A read reply
shorter than what the file has is taken by the kernel for the end of the file, which is a wrong byte: it becomes EIO
here.

Never: cache decisions, paths, retries. The mount is read-only: the kernel's own `ro` answers EROFS before we are asked.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import stat
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mountd.kernel import fastpath

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.

# isort: split
import pyfuse3
import trio

from mountd.base.attributes import Attributes
from mountd.base.errors import SourceError, errno_of
from mountd.core.background import call_guarded, start_for_life
from mountd.core.metrics import Metrics
from mountd.fetch import Readers
from mountd.files import DirectoryHandle, Handles, Opening, ReadPath
from mountd.fuse.fast_handlers import FastHandlers
from mountd.fuse.interrupts import Interrupts
from mountd.fuse.listing import names_before
from mountd.fuse.session import DevFuse, open_session
from mountd.namespace import ROOT_ID, Asker, Dentry, Namespace, Node, Permissions, Xattrs, wanted_by
from mountd.source import Listing, Source, WantedAccess
from mountd.wire.handover import Handover
from policies.geometry import clamp

__all__ = ["Fuse"]

log = logging.getLogger(__name__)

_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Any]])

_READDIR_AHEAD = 512
"""Names whose attributes are asked for at once while a directory is listed: 32 threads of 16 names."""

_MAX_TASKS = 2000
"""Requests served at once. With pyfuse3's 99 as many readers hung in the source stopped every other read."""

_MIN_TASKS = 8
"""Idle workers kept: pyfuse3 ends and starts tasks on every burst otherwise."""

_LAST_ANSWERS_S = 2.0
"""How long requests under way may go on when the daemon is told to stop; their readers then get an error."""

_LAST_MOMENT_S = 0.1
"""The same where another daemon takes over, for which everybody waits meanwhile."""

_LOOK_S = 1.0
"""How often the connection is looked at: a system call that does not wait."""


def _boundary(handler: _Handler) -> _Handler:
    """Turns every exception of a handler into the FUSEError of the errno table."""

    @functools.wraps(handler)
    async def guarded(self: Fuse, *args: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and gives
        try:
            return await handler(self, *args)
        except pyfuse3.FUSEError:
            raise
        except trio.Cancelled:
            # The daemon stops. Unanswered, a READ would keep its page locked, a push would wait for that page, and the
            # kernel would not unmount before the push has ended. The next checkpoint is cancelled all the same.
            if self.makes_room:
                raise  # unanswered, it comes again, to the next daemon
            raise pyfuse3.FUSEError(errno.EIO) from None
        except Exception as error:  # the boundary: nothing else may leave a handler
            number = errno_of(error)
            if number is None:
                self.metrics.add("unexpected_errors")
                log.exception("unforeseen error in %s", handler.__name__)
                number = errno.EIO
            elif number == errno.EIO:
                log.warning("%s answered with an I/O error: %s", handler.__name__, error)
            raise pyfuse3.FUSEError(number) from None
        except BaseExceptionGroup as group:  # the daemon stops, and something has failed on the way
            if group.split((trio.Cancelled, Exception))[1] is not None:
                raise
            raise pyfuse3.FUSEError(errno.EIO) from None

    return guarded  # type: ignore[return-value]  # functools.wraps keeps the signature, mypy cannot see it


def _interruptible(handler: _Handler) -> _Handler:
    """Ends what a handler waits for when the caller is killed. What needs no waiting was answered at once before."""

    @functools.wraps(handler)
    async def waiting(self: Fuse, *args: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and gives
        with self.interrupts.waiting(fastpath.request()):
            return await handler(self, *args)

    return waiting  # type: ignore[return-value]  # as above


class Fuse(pyfuse3.Operations):
    """One mount. `mount` makes it, `run` serves it until it is unmounted, `close` takes what is left away."""

    enable_acl = True
    supports_dot_lookup = False
    enable_writeback_cache = False

    interrupts: Interrupts
    """Set by `run`, before the first request."""

    def __init__(
        self,
        read_path: ReadPath,
        opening: Opening,
        namespace: Namespace,
        handles: Handles,
        source: Source,
        xattrs: Xattrs,
        permissions: Permissions,
        metrics: Metrics,
        readers: Readers,
        own_xattrs: Callable[[Node, str], bytes | None],
        device: DevFuse,
        yield_fd: int,
    ) -> None:
        """`own_xattrs(node, name)`: the value of one of our own `user.hfs.` attributes, or None.

        `yield_fd`: see `fastpath.want`.
        """
        super().__init__()
        self.metrics = metrics
        self._read_path = read_path
        self._opening = opening
        self._namespace = namespace
        self._handles = handles
        self._source = source
        self._xattrs = xattrs
        self._permissions = permissions
        self._readers = readers
        self._own_xattrs = own_xattrs
        self._yield_fd = yield_fd
        self._names_only = False
        self._name_only = pyfuse3.EntryAttributes()
        self._mounted = False
        self._device = device
        self._resends = False
        self.makes_room = False
        self._serving = trio.CancelScope()

    # -- life ---------------------------------------------------------------------------------------------------------

    def mount(
        self,
        mountpoint: str,
        source: str,
        *,
        allow_other: bool,
        noexec: bool,
        overlay: bool,
        handover: Handover | None = None,
    ) -> None:
        """Mount on `mountpoint`, or go on with the keeper's mount. `overlay`: the cache lies on an overlay file system.

        Raises RuntimeError as libfuse does, with its reason on standard error; CannotTakeUp.
        """
        at_once = FastHandlers(
            self._read_path, self._opening, self._namespace, self._handles, self._readers, self._permissions
        )
        fastpath.want(
            lambda token: self.interrupts.interrupted(token),
            at_once,
            yield_fd=self._yield_fd,
            stack_depth=int(overlay),
        )
        self._device.opened(
            open_session(self, mountpoint, source, allow_other=allow_other, noexec=noexec, handover=handover)
        )
        self._resends = handover is not None and handover.generation > 0
        self._mounted = True
        if fastpath.NAME_ONLY is not None and fastpath.extension_missing() is None:
            self._names_only, self._name_only.generation = True, fastpath.NAME_ONLY

    @property
    def connection_fd(self) -> int:
        """The mount's descriptor of /dev/fuse."""
        return self._device.get()

    async def run(self) -> None:
        """Answer requests until the mount is gone, or `terminate` is called."""
        with self._serving:
            async with trio.open_nursery() as nursery:
                self.interrupts = Interrupts(nursery, self.metrics)
                start_for_life(nursery, "watch of the connection", self._watch)
                if self._resends:
                    fastpath.resend(self.connection_fd)
                await pyfuse3.main(min_tasks=_MIN_TASKS, max_tasks=_MAX_TASKS)
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """End `run` when the kernel has dropped the connection: requests whose readers have gone may wait for ever."""
        connection = select.poll()
        connection.register(self.connection_fd, select.POLLERR)
        while not connection.poll(0):  # noqa: ASYNC110 - nobody sets an event: the kernel does not tell
            await trio.sleep(_LOOK_S)
        self._serving.deadline = trio.current_time() + _LAST_ANSWERS_S

    def terminate(self) -> None:
        """Make `run` return: at once for new requests, after a moment for those that wait for a hung source."""
        pyfuse3.terminate()
        self._serving.deadline = trio.current_time() + _LAST_ANSWERS_S

    def make_room(self) -> None:
        """As `terminate`, for another daemon that goes on: what cannot be answered in a moment is left to it."""
        self.makes_room = True
        pyfuse3.terminate()
        self._serving.deadline = trio.current_time() + _LAST_MOMENT_S

    def close(self, *, unmount: bool) -> None:
        """Let go of the session; with `unmount` take the mount away too."""
        if self._mounted:
            self._mounted = False
            pyfuse3.close(unmount=unmount)

    # -- names and attributes -----------------------------------------------------------------------------------------

    @_boundary
    @_interruptible
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        dentry = await self._opening.look_up(self._namespace.node(parent_inode), name, ctx.pid)
        return self._entry_reply(dentry)

    @_boundary
    @_interruptible
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        node = self._namespace.node(inode)
        if not node.opens:  # who has it open keeps its version; who comes by its name has just looked that up
            await self._namespace.revalidate(node)
        await self._permissions.learn(node)
        entry = self._entry(node, node.expires_s)
        if node.id == ROOT_ID:
            entry.st_ino = node.attributes.inode  # here it is only what stat(2) shows: the root has no other name
        return entry

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, count in inode_list:
            call_guarded("forget", self._namespace.forget, inode, count)  # nobody could be told of an error

    @_boundary
    @_interruptible
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        node = self._namespace.node(inode)
        await self._permissions.check(node, WantedAccess.FOLLOW, _asker(ctx))
        return await self._xattrs.target(node)

    @_boundary
    @_interruptible
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        figures = await self._source.statvfs()
        reply = pyfuse3.StatvfsData()
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(reply, field, getattr(figures, field))
        reply.f_namemax = figures.f_namemax
        return reply

    def _entry_reply(self, dentry: Dentry) -> pyfuse3.EntryAttributes:
        node = dentry.node
        if node is None:
            absent = pyfuse3.EntryAttributes()
            absent.st_ino = 0  # a negative entry: the kernel remembers that the name does not exist
            absent.entry_timeout = self._namespace.valid_s(dentry.expires_s)
            if absent.entry_timeout == 0:
                raise pyfuse3.FUSEError(errno.ENOENT)
            return absent
        self._namespace.referenced(node)
        return self._entry(node, dentry.expires_s)

    def _entry(self, node: Node, expires_s: float) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        _fill(entry, self._permissions.shown(node, stateless=self._opening.stateless))
        entry.st_ino = node.id
        shown = self._namespace.shown_inode(node)
        if shown != node.id and node.id != ROOT_ID:
            fastpath.show_inode(node.id, shown)
        # If it is not known who may come here, the kernel asks once more before it lets anybody in.
        known = self._permissions.is_known_nowait(node)
        entry.entry_timeout = entry.attr_timeout = self._namespace.valid_s(expires_s) if known else 0.0
        return entry

    # -- directories --------------------------------------------------------------------------------------------------

    @_boundary
    @_interruptible
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        unique = fastpath.unique_of_request()
        again = self._handles.answered(unique)
        if again is not None:
            return again
        node = self._namespace.node(inode)
        await self._namespace.fresh(node)
        await self._permissions.check(node, WantedAccess.LIST, _asker(ctx))
        return self._handles.add_directory(DirectoryHandle(node, unique=unique))

    @_boundary
    @_interruptible
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        plain = fastpath.wants_names()
        handle = self._handles.directory(fh)
        listing = handle.listing
        if listing is None or start_id == 0:  # opened, or rewound: rewinddir(3) shows the directory anew
            listing = self._namespace.listing_nowait(handle.node)
            if start_id:
                await handle.go_on(listing, start_id)
            else:
                handle.begin(listing)
        if not await listing.reaches(start_id):
            return
        # A reader that has looked up what it was shown so far is spared the look-ups of what follows.
        handle.whole = handle.whole or self._namespace.stats_follow(handle.node, listing, start_id)
        if self._names_only and (plain or not handle.whole):
            end = self._add_names(token, handle.node, listing, start_id, plain=plain)
        else:
            end = await self._add_whole(token, handle, listing, start_id)
        self._handles.show(fh, end)

    async def _add_whole(
        self, token: pyfuse3.ReaddirToken, handle: DirectoryHandle, listing: Listing, start_id: int
    ) -> int:
        """The position behind what was added."""
        added = False
        for position in range(start_id, len(listing)):
            dentry = handle.known(position)
            if dentry is None:
                if added:
                    return position  # an error in place of this reply would lose the lookup counts of what is in it
                names = listing.names(position, position + _READDIR_AHEAD)
                handle.batch, handle.batch_start = await self._namespace.children(handle.node, names), position
                dentry = handle.batch[0]
                after = position + len(names)
                self._namespace.ask_nowait(handle.node, listing.names(after, after + _READDIR_AHEAD))
            # One that has gone since it was listed is left out.
            if dentry.node is not None and not self._add_entry(token, listing[position], dentry, position + 1):
                return position
            added = added or dentry.node is not None
        return len(listing)

    def _add_names(
        self, token: pyfuse3.ReaddirToken, node: Node, listing: Listing, start_id: int, *, plain: bool
    ) -> int:
        """Entries that are known go in whole, unless the request is `plain`, all others as names. As `_add_whole`."""
        position = start_id
        while position < len(listing):
            block, index = listing.block(position)
            names, dentry = (
                (len(block) - index, None) if plain else names_before(self._namespace, node, listing, position)
            )
            if names:
                fastpath.answer_with_names(
                    block.records, block.starts, index, index + names, position + 1, wants_names=plain
                )
                pyfuse3.readdir_reply(token, b"", self._name_only, 0)
                position += fastpath.names_answered()
                if fastpath.names_answered() < names:
                    return position
            if dentry is not None:
                if dentry.node is not None and not self._add_entry(token, listing[position], dentry, position + 1):
                    return position
                position += 1
        return position

    def _add_entry(self, token: pyfuse3.ReaddirToken, name: bytes, dentry: Dentry, next_id: int) -> bool:
        assert dentry.node is not None
        self._namespace.referenced(dentry.node)
        entry = self._entry(dentry.node, dentry.expires_s)
        if pyfuse3.readdir_reply(token, name, entry, next_id):
            return True
        self._namespace.not_referenced(dentry.node)  # did not fit: the kernel has not seen it
        return False

    @_boundary
    async def releasedir(self, fh: int) -> None:
        self._handles.remove_directory(fh)

    # -- files --------------------------------------------------------------------------------------------------------

    @_boundary
    @_interruptible
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise pyfuse3.FUSEError(errno.EROFS)
        if self._opening.stateless:
            self.metrics.add("opens_stateless")
            self._opening.let_go()
            raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel stops asking, for the whole mount
        unique = fastpath.unique_of_request()
        node = self._namespace.node(inode)
        await self._permissions.check(node, wanted_by(flags), _asker(ctx))
        number, backing_id = await self._opening.open(node, ctx.pid, unique)
        if backing_id is not None:
            fastpath.answer_with_backing(number, backing_id)
        return pyfuse3.FileInfo(fh=number, keep_cache=backing_id is None)

    @_boundary
    async def read(  # type: ignore[override]  # pyfuse3 takes any contiguous buffer; its stub says bytes
        self, fh: int, off: int, size: int
    ) -> bytes | bytearray | memoryview:
        request = fastpath.request()
        if fh == 0 or self._opening.stateless:  # 0: the kernel was told so by a daemon that has not noted it
            handle = await self._opening.stateless_handle(fastpath.node_of_request(), request[1])
        else:
            handle = self._handles.file(fh)
        # A file that is wholly staged comes from the cache disk, whatever the source does.
        with self.interrupts.waiting((0, 0) if handle.file.complete else request):
            data = await self._read_path.read(handle, off, size)
        if len(data) != clamp(off, size, handle.file.version.size).size:
            self.metrics.add("short_replies")
            raise SourceError(errno.EIO, f"{len(data)} bytes for a read of {size} at {off}")
        token, thread_id = request
        if token:
            self._readers.served(thread_id, len(data))
        return data

    @_boundary
    async def release(self, fh: int) -> None:
        self._opening.close(fh)

    async def flush(self, fh: int) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel stops asking: nothing is ever written

    # -- extended attributes ------------------------------------------------------------------------------------------

    @_boundary
    @_interruptible
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        node, text = self._namespace.node(inode), os.fsdecode(name)
        if text.startswith("user.hfs."):
            value = self._own_xattrs(node, text)
            if value is None:
                raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
            return value
        if not self._xattrs.is_acl(name):
            await self._permissions.check_xattr(node, name, _asker(ctx))
        return await self._xattrs.get(node, name)

    @_boundary
    @_interruptible
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        node = self._namespace.node(inode)
        await self._permissions.check_xattr(node, None, _asker(ctx))
        return await self._xattrs.names(node)


def _asker(ctx: pyfuse3.RequestContext) -> Asker:
    return ctx.uid, ctx.gid, ctx.pid


def _fill(entry: pyfuse3.EntryAttributes, attributes: Attributes) -> None:
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_rdev = attributes.rdev if not stat.S_ISREG(attributes.mode) else 0
    entry.st_size = attributes.size
    entry.st_blocks = attributes.blocks
    entry.st_blksize = max(attributes.block_bytes, 512)
    entry.st_atime_ns = attributes.atime_ns
    entry.st_mtime_ns = attributes.mtime_ns
    entry.st_ctime_ns = attributes.ctime_ns


assert ROOT_ID == pyfuse3.ROOT_INODE
