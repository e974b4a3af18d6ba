"""Extended attributes, ACLs and link targets: what the source says of a node beside what stat(2) shows.

The kernel asks for ACLs at every permission check, and for the target at every step over a link: what is known of those
is served while the source is silent (see `answers`), so that a staged file stays readable for everybody who may read
it. A file system without ACLs is asked once for all its files, and again past the time-to-live; it says nothing of
others below SOURCE. An ACL is that of the version whose bytes are shown, or VersionChanged: what stands under the name
by now may be open to users who were never to see those bytes. Event loop only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from hfs.mountd.core.errors import SourceError, VersionChanged
from hfs.mountd.core.printable import shown_path
from hfs.mountd.namespace.answers import Answers
from hfs.mountd.namespace.nodes.node import Node, expire
from hfs.mountd.source import MetadataReader

_ACCESS = b"system.posix_acl_access"
_ACLS = (_ACCESS, b"system.posix_acl_default")

_TARGET = "target"

_MAX_SYSTEMS = 4096
"""File systems without ACLs that are remembered: snapshots and automounts may come and go for months."""


class Xattrs:
    """`ttl_s`: as of `answers`."""

    def __init__(
        self,
        metadata: MetadataReader,
        answers: Answers,
        clock: Callable[[], float],
        *,
        ttl_s: float,
    ) -> None:
        self._metadata = metadata
        self._answers = answers
        self._clock = clock
        self._ttl_s = ttl_s
        self._without_acls: dict[tuple[str, int], float] = {}
        """File system and st_dev, which is used again -> when it is asked again."""

    @staticmethod
    def is_acl(name: bytes) -> bool:
        """What the kernel asks for to check permissions, in whosever name."""
        return name in _ACLS

    async def get(self, node: Node, name: bytes) -> bytes:
        """The value of one. Raises SourceError (ENODATA if it is not there, and as the source says)."""
        if name not in _ACLS:
            return await self._metadata.xattr(node.directory, node.name, name)
        if node.without_acl and name == _ACCESS:
            self._answers.suppose(node, name, None, node.expires_s)
        until_s = self._without_acls.get(node.attributes.system)
        if until_s is not None:
            self._answers.suppose(node, name, None, until_s)
        try:
            value = await self._answers.ask(node, name, lambda limit_s: self._acl(node, name, limit_s))
        except VersionChanged:
            expire(node)  # something else stands under its name now
            raise
        if value is None:
            raise SourceError(errno.ENODATA, f"ACL of {shown_path(node.path)}")
        return value

    async def _acl(self, node: Node, name: bytes, limit_s: float | None) -> bytes | None:
        """None: there is none. Everything else that is not an ACL is an error, and lets nobody in."""
        attributes, asked_s = node.attributes, self._clock()
        try:
            return await self._metadata.xattr(node.directory, node.name, name, of=attributes, limit_s=limit_s)
        except SourceError as error:
            if error.errno == errno.EOPNOTSUPP:
                if attributes.is_file or attributes.is_directory:  # a link has none on any file system
                    self._remember(attributes.system, asked_s + self._ttl_s)
            elif error.errno != errno.ENODATA:
                raise
            return None

    def _remember(self, system: tuple[str, int], until_s: float) -> None:
        self._without_acls.pop(system, None)
        self._without_acls[system] = until_s
        if len(self._without_acls) > _MAX_SYSTEMS:
            del self._without_acls[next(iter(self._without_acls))]

    async def names(self, node: Node) -> list[bytes]:
        """The names of all."""
        return await self._metadata.xattrs(node.directory, node.name)

    async def target(self, node: Node) -> bytes:
        """Where a symbolic link leads, as it stands. Raises SourceError(EINVAL) for anything else."""
        return await self._answers.ask(
            node,
            _TARGET,
            lambda limit_s: self._metadata.readlink(node.directory, node.name, limit_s=limit_s),
        )
