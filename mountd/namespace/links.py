"""Paths whose symbolic links are followed, as a job that opens them follows them: farms of links (git-annex, the
snapshots of a hub, DVC) name their files so.

A link that leads out of SOURCE, and one that names a place in SOURCE by its own path, are read by the job without the
mount; of such a path an error says so. A link through the mountpoint's path counts as one below it. Event loop only.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Awaitable, Callable

from hfs.mountd.core.errors import SourceError
from hfs.mountd.namespace.lookups import Lookups
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.nodes.table import NodeTable
from hfs.mountd.source import MetadataReader

_MOST_LINKS = 40
"""In one path, as for the kernel."""


class NamesNothing(SourceError):
    """A path that nobody can open: something on its way is not there, or its links go round in a circle."""


class LeadsOut(SourceError):
    """A path that jobs follow to a place that is not read through the mount."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EXDEV, what)


class Links:
    """`mountpoint`: as jobs name the root."""

    def __init__(self, nodes: NodeTable, lookups: Lookups, metadata: MetadataReader, mountpoint: bytes) -> None:
        self._nodes = nodes
        self._lookups = lookups
        self._metadata = metadata
        self._mountpoint = mountpoint

    async def follow(
        self,
        path: bytes,
        onward: Callable[[bytes], Awaitable[object]] | None = None,
        way: list[tuple[bytes, bytes]] | None = None,
    ) -> Node:
        """What `path`, relative to the root, names in the end. Raises NamesNothing, LeadsOut and other SourceErrors.

        `onward` is told where each link leads, before that is looked at. Into `way` go, by directory and name, the
        links that are met, and `..` of each directory that they turn back from.
        """
        names = path.split(b"/")
        if b"\0" in path or b"." in names or b".." in names:
            raise SourceError(errno.EINVAL, _shown(path))
        places = [self._nodes.root]
        links = told = 0
        while names:
            name = names.pop(0)
            if name == b"..":
                if len(places) == 1:
                    raise LeadsOut(f"{_shown(path)} leads out of SOURCE, where jobs read without the mount")
                if way is not None:
                    way.append((places[-1].path, name))
                places.pop()
            if name in (b"", b".", b".."):
                continue
            if onward is not None and told < links and b".." not in names:
                told = links
                await onward(b"/".join(one for one in (places[-1].path, name, *names) if one not in (b"", b".")))
            node = (await self._lookups.child(places[-1], name)).node
            if node is None:
                raise NamesNothing(errno.ENOENT, _shown(path) + (", the end of a link" if links else ""))
            if not is_link(node):
                places.append(node)
                continue
            links += 1
            if way is not None:
                way.append((places[-1].path, name))
            if links > _MOST_LINKS:
                raise NamesNothing(errno.ELOOP, _shown(path))
            target = await self._metadata.readlink(places[-1].path, name)
            if target.startswith(b"/"):
                target = self._below(path, target)
                places = places[:1]
            names = target.split(b"/") + names
        if onward is not None and told < links:
            await onward(places[-1].path)
        return places[-1]

    async def find(self, path: bytes, *, through_links: bool) -> Node:
        """What `path` names in the end, or only without links. Raises SourceError."""
        return await (self.follow(path) if through_links else self._lookups.resolve(path))

    async def met(self, node: Node) -> Node | None:
        """What somebody who walks over the tree has met: what it names, if it is a link. None: a link that names
        nothing, as trees may have many of. Raises SourceError for others that cannot be followed."""
        if not is_link(node):
            return node
        try:
            return await self.follow(node.path)
        except NamesNothing:
            return None

    def _below(self, path: bytes, target: bytes) -> bytes:
        """An absolute target, relative to the root. Raises SourceError."""
        if target == self._mountpoint or target.startswith(self._mountpoint.rstrip(b"/") + b"/"):
            return target[len(self._mountpoint) :]
        where = f"{_shown(path)} is a link to {_shown(target)}, which jobs read there and not through the mount"
        raise LeadsOut(f"{where} (a relative link below SOURCE would be read through it)")


def is_link(node: Node) -> bool:
    """A symbolic link."""
    return stat.S_ISLNK(node.attributes.mode)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace") or "."
