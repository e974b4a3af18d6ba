"""Names: the namespace, what it answers while the source is silent, and who may read what."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.limits import Memory
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.kernel import SlotTable
from hfs.mountd.namespace import Answers, Inherited, Namespace, Node, Permissions, Xattrs, open_namespace, seconds
from hfs.mountd.source import open_as_user

_NAME_BYTES = 750
"""Of a name with its node, its attributes and its version (measured)."""
_NAMES_SHARE = 48
_LEAST_NAMES, _MOST_NAMES = 1 << 14, 1 << 22
"""Names remembered besides those that the kernel holds: with twice as many slots, of 210 bytes, a thirty-second of the
memory that is available; enough for a directory or two, and no more than 3 GB."""


@dataclass(frozen=True, slots=True)
class NameService:
    namespace: Namespace
    permissions: Permissions
    xattrs: Xattrs
    inherited: Inherited
    """What the daemon before has left of open files."""
    slot_table: SlotTable


@asynccontextmanager
async def open_names(basics: Basics, storage: Storage, nursery: trio.Nursery) -> AsyncIterator[NameService]:
    """Until the block is left. Raises SourceError if the source's root cannot be had."""
    config, metrics, source = basics.config, basics.metrics, storage.source
    ttl_s = seconds(config.ttl_s, immutable=config.immutable)

    def changed(node: Node) -> None:
        if node.version is not None:
            source.idle_files.release(node.version)
            start_guarded(nursery, "supersede", storage.cache.files.supersede, node.version)
        # The kernel is not told: it asks for names whose time is over, and an open before that gets ESTALE. Telling
        # waits for the directory, which a look-up that hangs in the source holds, and then stops all others there.

    inherited = basics.journal.take_inherited()
    device = source.directories.root.device
    slot_table = SlotTable(storage.plane)
    namespace = await open_namespace(
        source,
        metrics,
        nursery,
        ttl_s=ttl_s,
        strict=config.strict,
        names_at_most=_names_at_most(basics.memory),
        journal=basics.journal,
        slot_table=slot_table,
        kept=storage.cache.attributes.of_source(source.source_id, device),
        inherited=inherited.nodes,
        changed=changed,
        slot_opened=storage.handles.slots.opened,
        mountpoint=os.fsencode(config.mountpoint),
        gone=(storage.learners.plans.forget, storage.sent_away.forget),
    )
    answers = Answers(namespace.silence, trio.current_time, ttl_s=ttl_s)
    xattrs = Xattrs(source.metadata, answers, trio.current_time, ttl_s=ttl_s)
    async with open_as_user(source.root_fd, metrics, time_limit_s=config.source_timeout_s) as as_user:
        reader = source.threads.user
        permissions = Permissions(
            source.metadata,
            as_user,
            answers,
            namespace.root,
            metrics,
            others=config.allow_other,
            reader=None if reader is None else reader.who.uid,
            overlaid=config.wants_overlays and reader is None,
        )
        await permissions.start()
        storage.xattr_answers.ask_for_opens(not permissions.all_may_open(namespace.root))
        yield NameService(namespace, permissions, xattrs, inherited, slot_table)


def _names_at_most(memory: Memory) -> int:
    return max(_LEAST_NAMES, min(_MOST_NAMES, memory.available_bytes() // _NAMES_SHARE // _NAME_BYTES))
