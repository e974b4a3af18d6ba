"""Who is asked for, what is believed, and what never becomes a yes."""

import errno
import math
import os
import stat

import pytest
import trio

from hfs.mountd.core.attributes import Attributes
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace import permissions as module
from hfs.mountd.namespace.answers import Answers, Silence
from hfs.mountd.namespace.nodes.node import Node
from hfs.mountd.namespace.permissions import Permissions, wanted_by
from hfs.mountd.source.as_user import WantedAccess
from hfs.mountd.source.identity import FileSystemSeen
from tests.conftest import Logs
from tests.support.fake_source import attributes

ASKER = (os.geteuid() + 1000, 7, 4242)
WHO = Credentials(ASKER[0], 7, (8, 9))
NFS, EXT4 = FileSystemSeen("nfs4", ("rw",), (), 1), FileSystemSeen("ext4", ("rw",), (), 1)
TTL_S = 60.0


class World:
    """A source of one kind, and an answer for every question: None is yes."""

    def __init__(self, kind: FileSystemSeen = NFS, *, others: bool = True, overlaid: bool = False) -> None:
        self.kind = kind
        self.looked = 0
        self.moved = False
        self.answer: Exception | None = None
        self.asked: list[tuple[object, ...]] = []
        self.root = node(2, mode=stat.S_IFDIR | 0o755)
        self.metrics = Metrics()
        clock = trio.current_time
        answers = Answers(Silence(self.metrics, clock, strict=False), clock, ttl_s=TTL_S)
        options = {"others": others, "overlaid": overlaid}
        self.permissions = Permissions(self, self, answers, self.root, self.metrics, **options)  # type: ignore[arg-type]  # fakes

    async def kind_of(self, directory: bytes, name: bytes, device: int) -> FileSystemSeen:
        self.looked += 1
        await trio.lowlevel.checkpoint()
        if self.moved:
            raise VersionChanged("on another file system")
        return self.kind

    async def ask(
        self,
        who: Credentials,
        directory: bytes,
        name: bytes,
        wanted: WantedAccess,
        of: Attributes,
        *,
        limit_s: float | None,
    ) -> None:
        self.asked.append((who, wanted, (of.device, of.inode)))
        await trio.lowlevel.checkpoint()
        if self.answer is not None:
            raise self.answer


def node(inode: int = 5, *, device: int = 1, mode: int = stat.S_IFREG | 0o644) -> Node:
    return Node(attributes(inode, 10, mode=mode)._replace(device=device), None, None, b"f")


@pytest.fixture(autouse=True)
def _able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_impossible", lambda: None)
    monkeypatch.setattr(module, "credentials_of", lambda *asker: WHO if asker == (4242, *ASKER[:2]) else None)


@pytest.mark.parametrize(
    "error", [SourceError(errno.EIO, "open"), SourceTimeout("open"), SourceError(errno.EPERM, "setfsuid")]
)
async def test_only_a_yes_is_a_yes(error: Exception) -> None:
    world, file = World(), node()
    world.answer = error
    for _ in range(2):
        with pytest.raises(type(error)):
            await world.permissions.check(file, WantedAccess.READ, ASKER)
        assert not world.permissions.allows_nowait(file, WantedAccess.READ, ASKER)
    assert len(world.asked) == 2


async def test_what_another_file_system_is_says_nothing_of_this_one() -> None:
    world, file = World(), node()
    file.expires_s = math.inf
    world.moved = True
    with pytest.raises(VersionChanged):
        await world.permissions.check(file, WantedAccess.READ, ASKER)
    assert file.expires_s == -math.inf
    assert not world.permissions.is_known_nowait(file)
    world.moved = False
    await world.permissions.check(file, WantedAccess.READ, ASKER)
    assert world.asked == [(WHO, WantedAccess.READ, (1, 5))]


async def test_who_cannot_be_seen_is_refused(logs: Logs) -> None:
    """Its groups are not known, and to have fewer may allow more."""
    logs.expect("run the daemon in its pid namespace")
    world = World()
    for thread_id in (0, 4243, 4243):
        asker = (ASKER[0], ASKER[1], thread_id)
        assert not world.permissions.allows_nowait(node(), WantedAccess.READ, asker)
        with pytest.raises(SourceError, match="Permission denied"):
            await world.permissions.check(node(), WantedAccess.READ, asker)
    assert world.asked == []
    assert len(logs.records) == 1


async def test_each_file_system_is_looked_at_once() -> None:
    world = World(EXT4)
    await world.permissions.start()
    assert not world.permissions.is_known_nowait(node(device=2))
    world.kind = NFS
    for _ in range(2):
        await world.permissions.learn(node(device=2))
        await world.permissions.check(node(device=2), WantedAccess.LIST, ASKER)
    await world.permissions.check(node(device=1), WantedAccess.LIST, ASKER)
    assert world.looked == 2
    assert {place for _, _, place in world.asked} == {(2, 5)}
    assert world.permissions.why_opens_are_needed == "nfs4 decides itself about permissions"
    assert stat.S_IMODE(world.permissions.shown(node(device=2), stateless=True).mode) == 0o600
    assert stat.S_IMODE(world.permissions.shown(node(device=2), stateless=False).mode) == 0o644
    assert stat.S_IMODE(world.permissions.shown(node(device=1), stateless=True).mode) == 0o644


async def test_below_overlays_nothing_is_shown_that_is_not_known() -> None:
    world = World(EXT4, overlaid=True)
    await world.permissions.start()
    assert world.permissions.is_overlaid
    for device, kind, then in ((2, NFS, 0o600), (3, EXT4, 0o644)):
        world.kind, other = kind, node(device=device)
        assert stat.S_IMODE(world.permissions.shown(other, stateless=False).mode) == 0o600
        await world.permissions.learn(other)
        assert stat.S_IMODE(world.permissions.shown(other, stateless=False).mode) == then
    assert stat.S_IMODE(world.permissions.shown(node(device=1), stateless=False).mode) == 0o644
    asking = World(NFS, overlaid=True)
    await asking.permissions.start()
    assert not asking.permissions.is_overlaid
    assert stat.S_IMODE(asking.permissions.shown(node(device=2), stateless=False).mode) == 0o644


def test_what_an_open_is_for() -> None:
    assert wanted_by(os.O_RDONLY | os.O_DIRECT) is WantedAccess.READ
    assert wanted_by(os.O_RDONLY | 0x20) is WantedAccess.RUN
