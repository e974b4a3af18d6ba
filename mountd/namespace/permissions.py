"""Who may open what, where the kernel's own check of our mount is not enough.

The kernel lets users do what mode bits and POSIX ACLs allow. On a file system that knows more, an open by anybody but
the daemon's own user, and the one as whom it reads, is asked of the source as that user (`source.as_user`), and so are
listing a directory, following a link and reading extended attributes. A "yes" is good for the time-to-live and kept at
the node; a "no" is not kept. Names and attributes are not asked for: what stat(2) shows of a path that a user can name
may be seen by whoever passes the mode bits of the directories above.

A mount that is read without opens (stateless), or through an overlay, which opens with our rights, could not ask: there
is none where SOURCE needs it, and what is found to need it later, mounted below SOURCE, is shown to its owner alone.
Event loop only.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.caller import Credentials, credentials_of
from hfs.mountd.core.errors import ConfigError, SourceError, VersionChanged, shown_path
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.answers import Answers
from hfs.mountd.namespace.nodes.node import Node, expire
from hfs.mountd.source import FileSystemSeen, MetadataReader, SourceAsUser, WantedAccess, why_impossible

log = logging.getLogger(__name__)

_FMODE_EXEC = 0x20
"""In the flags of an open for execve(2): the kernel's own, <linux/fs.h>."""

_OTHERS = 0o077

_MAX_SYSTEMS = 4096
"""File systems below SOURCE that are remembered: snapshots and automounts may come and go for months."""

_BY_MODE = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "jfs", "nilfs2", "reiserfs", "zfs", "ocfs2", "gfs2"),
    *("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "minix"),
    *("vfat", "msdos", "exfat", "ntfs3", "hfsplus"),
    *("tmpfs", "ramfs", "overlay", "devtmpfs", "proc", "sysfs", "cgroup2", "autofs", "virtiofs"),
    *("lustre", "ceph", "beegfs"),
}
"""Their own permission check is the kernel's generic one. Not here, on purpose: nfs, nfs4, cifs, smb3, 9p, afs, gpfs,
panfs, wekafs and whatever comes next."""

_POSIX = {"system.posix_acl_access", "system.posix_acl_default"}

Asker = tuple[int, int, int]
"""fsuid, fsgid and thread id of a request, as the kernel says them."""


_ACCESS = b"system.posix_acl_access"
_ACLS = (_ACCESS, b"system.posix_acl_default")

_TARGET = "target"

_MAX_SYSTEMS_WITHOUT = 4096
"""File systems without ACLs that are remembered: snapshots and automounts may come and go for months."""


class Xattrs:
    """Extended attributes, ACLs and link targets: what the source says of a node beside what stat(2) shows.

    The kernel asks for ACLs at every permission check, and for the target at every step over a link: what is known of
    those is served while the source is silent (see `answers`), so that a staged file stays readable for everybody who
    may read it. A file system without ACLs is asked once for all its files, and again past the time-to-live; it says
    nothing of others below SOURCE. An ACL is that of the version whose bytes are shown, or VersionChanged: what stands
    under the name by now may be open to users who were never to see those bytes. Event loop only.

    `ttl_s`: as of `answers`.
    """

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
        if len(self._without_acls) > _MAX_SYSTEMS_WITHOUT:
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


def wanted_by(flags: int) -> WantedAccess:
    """What an open with these flags is for."""
    return WantedAccess.RUN if flags & _FMODE_EXEC else WantedAccess.READ


def why_not_by_mode(kind: str, options: Iterable[str], xattrs: Iterable[str]) -> str | None:
    """Why mode bits and POSIX ACLs do not say all about permissions there; None if they do.

    A mount with `default_permissions` lets a user do what these allow. On a file system that knows more (NFSv4 ACLs, a
    server that decides by the user's name) mode bits are a summary, and may allow what is denied. So a file system must
    be known to be decided by them alone; of all others, also of those that nobody here has heard of, the user is asked
    for.

    `kind`: as mountinfo names the file system. `options`: those of its superblock. `xattrs`: names of the extended
    attributes of one of its files, as many as there are.
    """
    for name in xattrs:
        if name.startswith("system.") and "acl" in name and name not in _POSIX:
            return f"{kind} has ACLs of another kind ({name})"
    if kind == "fuse" or kind == "fuseblk" or kind.startswith("fuse."):
        if "default_permissions" in options:
            return None
        return f"{kind} decides itself about permissions (it is mounted without default_permissions)"
    return None if kind in _BY_MODE else f"{kind} decides itself about permissions"


class Permissions:
    """Construct, then `await start()`."""

    def __init__(
        self,
        metadata: MetadataReader,
        as_user: SourceAsUser,
        answers: Answers,
        root: Node,
        metrics: Metrics,
        *,
        others: bool,
        reader: int | None = None,
        overlaid: bool = False,
    ) -> None:
        """`others`: users besides the one who has mounted may come here at all (allow-other). `reader`: the user as
        whom the source is read, if that is not the daemon's: what the source lets us do it lets him do. `overlaid`:
        overlays are offered, unless SOURCE itself needs to be asked."""
        self._metadata = metadata
        self._as_user = as_user
        self._answers = answers
        self._root = root
        self._metrics = metrics
        self._others = others
        self._own_uids = {os.geteuid()} if reader is None else {os.geteuid(), reader}
        self._reasons: dict[tuple[str, int], str | None] = {}
        """File system -> why its users are asked for; None: its mode bits and POSIX ACLs say all."""
        self._impossible: str | None = None
        self._told = False
        self._may_be_overlaid = overlaid
        self.is_overlaid = False
        """Overlays may lie over the mount, each of which keeps the attributes that it was shown at a look-up."""

    async def start(self) -> None:
        """Look at SOURCE. Raises ConfigError if its users have to be asked for, and cannot."""
        if not self._others:
            return
        reason = await self._reason(self._root)
        self.is_overlaid = self._may_be_overlaid and reason is None
        self._impossible = why_impossible()
        if reason is not None and self._impossible is not None:
            raise ConfigError(
                f"allow-other: {reason}, so what other users may read has to be asked as these users, and that is not "
                f"possible here ({self._impossible}); give hfs CAP_SETUID and CAP_SETGID, or -o allow-other=false"
            )

    @property
    def why_nobody_is_asked(self) -> str | None:
        """Why the source cannot be asked as another user; None: it can."""
        return self._impossible if self._others else "the mount is for its owner alone"

    @property
    def why_opens_are_needed(self) -> str | None:
        """Why no open may go by unseen: a file system whose users have to be asked for; None if there is none."""
        return next((reason for reason in self._reasons.values() if reason is not None), None)

    def figures(self) -> dict[str, object]:
        """For the status."""
        return {"asked_as_user": sorted({reason for reason in self._reasons.values() if reason is not None})}

    # -- what is shown ------------------------------------------------------------------------------------------------

    def is_known_nowait(self, node: Node) -> bool:
        """Whether the attributes of `node` may be shown for longer than this moment."""
        return not self._others or node.attributes.system in self._reasons

    async def learn(self, node: Node) -> None:
        """Find out about the file system of `node`."""
        if self._others:
            await self._reason(node)

    def shown(self, node: Node, *, stateless: bool) -> Attributes:
        """The attributes of `node`, as narrow as they must be where opens do not reach us."""
        attributes = node.attributes
        is_free = self._reasons.get(attributes.system, "" if self.is_overlaid else None) is None
        if not self._others or is_free or not (stateless or self.is_overlaid):
            return attributes
        return attributes._replace(mode=attributes.mode & ~_OTHERS)

    # -- what is done -------------------------------------------------------------------------------------------------

    def all_may_open(self, node: Node) -> bool:
        """Whether the kernel's own check is enough for everybody, as far as is known."""
        return not self._others or self._reasons.get(node.attributes.system, "") is None

    def allows_nowait(self, node: Node, wanted: WantedAccess, asker: Asker) -> bool:
        """Whether it is known that `check` would not refuse, nor ask."""
        if self._is_free(node, asker[0]):
            return True
        who = credentials_of(asker[2], asker[0], asker[1]) if asker[2] else None
        return who is not None and self._answers.known_nowait(node, (who, wanted))

    def _is_free(self, node: Node, uid: int) -> bool:
        """Whether the kernel's own check is enough for this user, as far as is known."""
        return not self._others or uid in self._own_uids or self._reasons.get(node.attributes.system, "") is None

    async def check(self, node: Node, wanted: WantedAccess, asker: Asker) -> None:
        """Returns if the one who asks may do this at the source. Raises SourceError, EACCES or as the source says."""
        if not await self._is_asked(node, asker):
            return
        who, attributes = self._who(asker), node.attributes

        async def ask(limit_s: float | None) -> bool:
            self._metrics.add("permissions_asked")
            await self._as_user.ask(who, node.directory, node.name, wanted, attributes, limit_s=limit_s)
            return True

        try:
            await self._answers.ask(node, (who, wanted), ask)
        except VersionChanged:
            expire(node)
            raise
        except SourceError:
            self._metrics.add("permissions_refused")
            raise

    def is_own(self, who: Credentials) -> bool:
        """The source is read as this user, so nothing needs to be asked as him."""
        return who.uid in self._own_uids

    async def readable(self, who: Credentials, places: Sequence[tuple[Node, bytes]]) -> list[bool | None]:
        """Which of these files, a directory and a name each, `who` may read at the source; None: it is a link. Where
        mode bits and ACLs say all they are looked at; elsewhere each file is opened. Raises SourceError, SourceTimeout
        if nothing is said."""
        if not places:
            return []
        asked = []
        for directory, name in places:
            by_opening = await self._reason(directory) is not None
            asked.append((directory.path, name, by_opening))
        self._metrics.add("permissions_asked", len(asked))
        found = await self._as_user.readable(who, asked)
        self._metrics.add("permissions_refused", found.count(False))
        return found

    async def may_go(self, who: Credentials, ways: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[bool]:
        """Which of these ways over links, as `Links.follow` notes them, `who` may go. Raises as `readable`."""
        return await self._as_user.may_go(who, ways) if ways else []

    async def check_xattr(self, node: Node, name: bytes | None, asker: Asker) -> None:
        """The same for one extended attribute, or (None) for the names of all. Not remembered: few read them."""
        if await self._is_asked(node, asker):
            who = self._who(asker)
            self._metrics.add("permissions_asked")
            await self._as_user.ask_xattr(who, node.directory, node.name, name)

    async def _is_asked(self, node: Node, asker: Asker) -> bool:
        if self._is_free(node, asker[0]):
            return False
        return await self._reason(node) is not None

    async def _reason(self, node: Node) -> str | None:
        system = node.attributes.system
        if system not in self._reasons:
            seen = await self._kind_of(node)
            reason = why_not_by_mode(seen.kind, seen.options, seen.xattrs)
            if reason is not None and system not in self._reasons:
                log.info("%s: what other users open is asked for as these users", reason)
            self._reasons[system] = reason
            if len(self._reasons) > _MAX_SYSTEMS:
                del self._reasons[next(iter(self._reasons))]  # it is found out again
        return self._reasons[system]

    async def _kind_of(self, node: Node) -> FileSystemSeen:
        device = node.attributes.device
        try:
            return await self._metadata.kind_of(node.directory, node.name, device)
        except VersionChanged:
            expire(node)
            raise

    def _who(self, asker: Asker) -> Credentials:
        uid, gid, thread_id = asker
        who = credentials_of(thread_id, uid, gid) if thread_id and self._impossible is None else None
        if who is not None:
            return who
        self._metrics.add("permissions_refused")
        if not self._told:
            self._told = True
            why = self._impossible or "its process cannot be seen from here: run the daemon in its pid namespace"
            log.warning("user %d was refused, since what it may read cannot be asked as this user: %s", uid, why)
        raise SourceError(errno.EACCES, f"asking as user {uid}")
