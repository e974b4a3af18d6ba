"""Going on where an earlier daemon of the mount was killed: what its journal says is open is open again.

Before the first request is answered. An open file has its staged file pinned again, by its version; one that the kernel
reads by itself keeps its backing file, which the kernel has kept. What of a version is neither staged nor at the source
any more answers ESTALE when it is read, as it would have before. An open directory goes on if its reader can be shown
the rest of the same listing (`DirectoryHandle.go_on`).

Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hfs.mountd.cache import Cache
from hfs.mountd.files.handles import DirectoryHandle, FileHandle, Handles
from hfs.mountd.files.passthrough import Passthrough
from hfs.mountd.kernel import DataPlane, forget_all_names, forget_names
from hfs.mountd.namespace import ROOT_ID, Inherited, Journal, Namespace

_NEVER = -1
"""No listing has it for a digest."""

_NAMES_AT_ONCE = 4096


async def open_again(
    inherited: Inherited,
    journal: Journal,
    namespace: Namespace,
    handles: Handles,
    cache: Cache,
    passthrough: Passthrough,
    plane: DataPlane,
    table_fd: int,
    terms: int,
    run_in_thread: Callable[..., Awaitable[Any]],
) -> None:
    """Take over the handles of `inherited`, whose nodes `namespace` has. `table_fd`, `terms`: those of
    `DataPlane.attach`."""
    # Without a memfd of the keeper nobody could tell the next daemon who has which handle open.
    attached = await run_in_thread(plane.attach, table_fd, terms) if table_fd >= 0 or not journal.on else None
    left = attached.handles if attached is not None else {}
    if attached is not None:
        namespace.slots.attached(attached.directories, {opened.number for opened in inherited.files})
    for directory in inherited.directories:
        handle = DirectoryHandle(namespace.node(directory.node_id), unique=directory.unique)
        is_unknown = directory.shown < 0  # whoever is not at its start was shown something
        handle.shown, handle.digest = (0, _NEVER) if is_unknown else (directory.shown, directory.digest)
        handles.inherit_directory(directory.number, handle)
    if journal.mount.stateless:  # of no handle will a close be told
        for opened in inherited.files:
            journal.handles.closed(opened.number)
        for unknown in left.values():
            plane.free_counter(unknown.counter)
        return
    nodes = {opened.node_id: namespace.node(opened.node_id) for opened in inherited.files}
    await cache.files.load({node.version for node in nodes.values() if node.version is not None})
    for opened in inherited.files:
        node = nodes[opened.node_id]
        assert node.version is not None
        counted = left.pop(opened.number, None)
        was_kept = counted is None and attached is not None and handles.is_delegated(opened.number)
        if was_kept or (counted is not None and counted.open <= 0):
            journal.handles.closed(opened.number)  # it was kept for whoever opened the file next
            if counted is not None:
                plane.free_counter(counted.counter)
            if opened.backing_id:
                passthrough.lose(opened.backing_id)
            continue
        file = await cache.files.get(node.version, node.path)
        cache.files.pin(file)
        for _ in range(counted.open if counted is not None else 1):
            namespace.holds.opened(node, passed=opened.backing_id != 0)
        if opened.backing_id:
            passthrough.attach(file, opened.backing_id, opened.backing_inode)
        counter = counted.counter if counted is not None else None
        again = FileHandle(node, file, opened.backing_id or None, opened.backing_inode, counter=counter)
        handles.inherit_file(opened.number, again, opened.unique)
    for unknown in left.values():
        plane.free_counter(unknown.counter)  # its handle was not noted: nobody can be told of it


async def have_names_looked_up(
    namespace: Namespace, connection_fd: int, run_in_thread: Callable[..., Awaitable[Any]]
) -> None:
    """Once requests are answered, in stateless mode and below overlays: a node that is not known any more would be
    opened all the same as long as the kernel remembers its name, and its reads, or opens, answer ESTALE."""
    if await run_in_thread(forget_all_names, connection_fd):
        return
    listing = await namespace.listings.whole(namespace.root)
    for begin in range(0, len(listing), _NAMES_AT_ONCE):
        names = listing.names(begin, begin + _NAMES_AT_ONCE)
        await run_in_thread(forget_names, connection_fd, ROOT_ID, names)
