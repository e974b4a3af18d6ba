"""ACLs and link targets while the source answers, is slow and hangs; file systems that have no ACLs."""

import errno
import math
import stat

import pytest
import trio

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.answers import Answers, Silence
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.permissions import Xattrs
from tests.support.fake_source import attributes

ACL = b"system.posix_acl_access"
TTL_S = 60.0


class Source:
    """Answers `value`, or raises the errno it is; `hangs`: takes as long as it may."""

    def __init__(self) -> None:
        self.value: bytes | int = b"acl"
        self.hangs = False
        self.asked = 0
        self.gone = 0
        """The inode that stands under its name no more."""

    async def xattr(
        self,
        directory: bytes,
        name: bytes,
        attribute: bytes,
        *,
        of: Attributes | None = None,
        limit_s: float | None = None,
    ) -> bytes:
        self.asked += 1
        if of is not None and of.inode == self.gone:
            raise VersionChanged("another")
        if self.hangs:
            await trio.sleep(600 if limit_s is None else limit_s)
            raise SourceTimeout("hangs")
        await trio.sleep(0.001)
        if isinstance(self.value, int):
            raise SourceError(self.value, "xattr")
        return self.value

    async def readlink(self, directory: bytes, name: bytes, *, limit_s: float | None = None) -> bytes:
        return await self.xattr(directory, name, b"", limit_s=limit_s)


class World:
    def __init__(self, *, strict: bool = False, ttl_s: float = TTL_S) -> None:
        self.source, self.metrics = Source(), Metrics()
        clock = trio.current_time
        answers = Answers(Silence(self.metrics, clock, strict=strict), clock, ttl_s=ttl_s)
        self.xattrs = Xattrs(self.source, answers, clock, ttl_s=ttl_s)  # type: ignore[arg-type]  # a fake

    async def acl(self, node: Node) -> bytes | None:
        """None: there is none."""
        try:
            return await self.xattrs.get(node, ACL)
        except SourceError as error:
            if error.errno != errno.ENODATA:
                raise
            return None


def file(inode: int = 5, *, device: int = 1, time_ns: int = 1, mode: int = stat.S_IFREG | 0o640) -> Node:
    return Node(attributes(inode, 10, mode=mode, time_ns=time_ns)._replace(device=device), None, None, b"f")


async def test_the_last_known_acl_is_served_while_the_source_hangs() -> None:
    world, node, other = World(), file(), file(6)
    assert await world.acl(node) == b"acl"
    world.source.value = errno.ENODATA
    assert await world.acl(other) is None
    world.source.hangs = True
    await trio.sleep(TTL_S)
    began_s = trio.current_time()
    assert await world.acl(node) == b"acl"
    assert trio.current_time() == began_s + 2.0
    assert await world.acl(other) is None  # it is known to have none
    assert trio.current_time() == began_s + 2.0  # the source is not asked again at once
    assert world.metrics["stale_served"] == 2
    await trio.sleep(5)
    world.source.hangs, world.source.value = False, b"new"
    assert await world.acl(node) == b"new"


async def test_a_file_that_was_seen_without_one_is_known_to_have_none_also_while_the_source_hangs() -> None:
    """It was a slot, and the data plane had looked."""
    world, node = World(), file()
    node.without_acl, node.expires_s = True, trio.current_time() + 1
    assert await world.acl(node) is None
    assert world.source.asked == 0
    world.source.hangs = True
    await trio.sleep(2)
    assert await world.acl(node) is None
    assert world.metrics["stale_served"] == 1
    with pytest.raises(SourceTimeout):
        await world.xattrs.get(node, b"system.posix_acl_default")


async def test_no_answer_is_never_no_acl() -> None:
    world = World()
    world.source.hangs = True
    with pytest.raises(SourceTimeout):
        await world.acl(file())
    assert trio.current_time() >= 600  # nothing was known: as long as a stat that knows nothing
    for number in (errno.EIO, errno.EACCES, errno.ESTALE):
        world.source.hangs, world.source.value = False, number
        with pytest.raises(SourceError) as caught:
            await world.acl(file())
        assert caught.value.errno == number


async def test_strict_waits() -> None:
    world, node = World(strict=True), file()
    assert await world.acl(node) == b"acl"
    world.source.hangs = True
    await trio.sleep(TTL_S)
    with pytest.raises(SourceTimeout):
        await world.acl(node)


async def test_what_was_known_of_another_version_is_not_served() -> None:
    """A link or a device may become another inode under one node; what a directory's time says is what is in it."""
    world, link = World(), file(mode=stat.S_IFLNK | 0o777)
    directory = file(7, mode=stat.S_IFDIR | 0o755)
    assert await world.xattrs.target(link) == b"acl"
    assert await world.acl(directory) == b"acl"
    for node in (link, directory):
        node.attributes = node.attributes._replace(ctime_ns=2)
    world.source.value = b"elsewhere"
    assert await world.xattrs.target(link) == b"elsewhere"
    assert await world.acl(directory) == b"acl"
    world.source.hangs = True
    await trio.sleep(TTL_S)
    assert await world.acl(directory) == b"acl"
    link.attributes = link.attributes._replace(ctime_ns=3)
    with pytest.raises(SourceTimeout):
        await world.xattrs.target(link)


async def test_the_acl_of_something_else_is_none_of_this() -> None:
    world, node = World(), file(5)
    assert await world.acl(node) == b"acl"
    world.source.gone = 5
    await trio.sleep(TTL_S)
    for _ in range(2):
        node.expires_s = trio.current_time() + TTL_S
        with pytest.raises(VersionChanged):
            await world.acl(node)
        assert node.expires_s < trio.current_time(), "its name is asked for again"


async def test_a_file_system_without_acls_is_asked_once() -> None:
    world = World()
    world.source.value = errno.EOPNOTSUPP
    assert await world.acl(file(1, device=1)) is None
    assert await world.acl(file(2, device=1)) is None
    assert world.source.asked == 1
    world.source.value = b"acl"
    assert await world.acl(file(3, device=2)) == b"acl"  # another one says something else
    assert await world.acl(file(1, device=1)) is None
    await trio.sleep(TTL_S)
    assert await world.acl(file(1, device=1)) == b"acl"  # mounted anew, with ACLs


async def test_a_link_says_nothing_of_its_file_system() -> None:
    world = World()
    world.source.value = errno.EOPNOTSUPP
    assert await world.acl(file(1, mode=stat.S_IFLNK | 0o777)) is None
    world.source.value = b"acl"
    assert await world.acl(file(2)) == b"acl"


async def test_what_is_kept_of_a_node_is_bounded() -> None:
    clock, node = trio.current_time, file()
    answers = Answers(Silence(Metrics(), clock, strict=False), clock, ttl_s=math.inf)

    async def yes(_limit_s: float | None) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    for user in range(100):
        assert await answers.ask(node, user, yes)
    assert not answers.known_nowait(node, 0)
    assert answers.known_nowait(node, 99)
    assert len(node.answers or {}) == 16
