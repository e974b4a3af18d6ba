"""ZeroMQ: the transport of nodes that come and go. Found from addresses, each proven by the job's secret.

Implements `peers.messages.Transport` by a `Roster`, who is here, and `Wires`, what is said. Nodes have numbers of this
node's own, in the order in which it has met them; this node is 0. One that comes back has the number that it had.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import trio

from hfs.mountd.core.background import start_for_life, start_guarded
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.hostlist import DEFAULT_LISTEN, host_and_port
from hfs.mountd.peers.joining import agree, decode_infos, encode_info
from hfs.mountd.peers.messages import Listener, NodeInfo
from hfs.mountd.peers.roster import Member, Roster
from hfs.mountd.peers.wires import MESSAGE, Wires

log = logging.getLogger(__name__)

_START_S, _RESTART_S = 10.0, 1.0
"""So long a daemon waits for those that start with it, and where others share already, or it was here before."""
_LOOK_S = 0.05


class ZmqTransport:
    """Made by `open_zeromq`."""

    kind, number, last_tag = "zeromq", 0, (1 << 31) - 1

    def __init__(
        self, nursery: trio.Nursery, peers: str, listen: str, secret: bytes, *, timeout_s: float, is_again: bool
    ) -> None:
        """`is_again`: it was here before, so the others need not be waited for. Raises MountError where `listen` is
        taken."""
        host = socket.gethostname()
        name = host if listen == DEFAULT_LISTEN else f"{host}:{listen}"
        self._peers = peers
        self._patience_s = _RESTART_S if is_again else _START_S
        self._info: NodeInfo | None = None
        self._nodes: list[Member | None] = [None]
        self._numbers = {name: 0}
        self._here: dict[bytes, int] = {}
        """Ids of those that are here, and their numbers."""
        self._is_gathered = False
        self._listener: Listener | None = None
        self._early: list[Callable[[Listener], None]] = []
        self.wires = Wires(secret, listen, self._came, nursery)
        self.roster = Roster(name, listen, self.wires, self._addresses, self._differs, self._changed, timeout_s)
        start_for_life(nursery, "addresses of peers", self.roster.look)
        start_for_life(nursery, "membership of the job", self.roster.run)

    @property
    def count(self) -> int:
        """Nodes that are here, or were."""
        return len(self._nodes) if self._info is not None else 1 + len(self.roster.members)

    @property
    def is_first(self) -> bool:
        """Whether this node is the one that looks for what all need to know."""
        members = self.roster.members.values()
        return not any(map(_settled, members)) and all(self.roster.name < member.name for member in members)

    # -- joining ------------------------------------------------------------------------------------------------------

    async def find(self) -> None:
        """Wait for the others, as long as that is worth it."""
        await self._wait(lambda: not self.roster.searching)

    async def gather(self, info: NodeInfo) -> list[NodeInfo]:
        """What all that are here say of themselves, this node first. Raises ConfigError where one refuses it."""
        self._info = msgspec.structs.replace(info, host=self.roster.name)
        self.roster.announce(encode_info(self._info))
        await self._wait(lambda: self.roster.members.keys() <= self._here.keys())
        if self.roster.refusals:
            raise ConfigError("\n".join(f"peers: refused by {refusal}" for refusal in self.roster.refusals))
        self._is_gathered = True
        return [self._info, *decode_infos([member.info for member in self._nodes if member is not None])]

    def settle(self, placement: str, data_bytes: int | None) -> None:
        """From now on this node tells others how the job shares."""
        assert self._info is not None
        self._info = msgspec.structs.replace(self._info, settled=placement, data_bytes=data_bytes)
        self.roster.info = encode_info(self._info)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        with trio.move_on_after(self._patience_s) as limit:
            while not ready() and not self.roster.refusals:
                if self._patience_s > _RESTART_S and any(map(_settled, self.roster.members.values())):
                    self._patience_s = _RESTART_S
                    limit.deadline = trio.current_time() + _RESTART_S
                await trio.sleep(_LOOK_S)

    async def _addresses(self) -> list[str]:
        """Of all hosts that were given, as far as they are known now."""
        found: list[str] = []

        async def resolve(entry: str) -> None:
            host, port = host_and_port(entry)
            try:
                answers = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                log.debug("peers: %s: %s", host, error)
                return
            addresses = dict.fromkeys(str(answer[4][0]) for answer in answers)
            for address in list(addresses)[: None if entry.startswith("dns:") else 1]:
                found.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")

        async with trio.open_nursery() as nursery:
            for entry in self._peers.split(","):
                start_guarded(nursery, "address of a peer", resolve, entry)
        return found

    def _differs(self, info: bytes) -> str:
        try:
            agree(decode_infos([each for each in (self.roster.info, info) if each]))
        except (ConfigError, ValueError) as error:
            return str(error)
        return ""

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _came(self, sender: bytes, head: bytes, words: Sequence[bytes], address: str) -> None:
        if head != MESSAGE:
            self.roster.came(sender, head, words, address)
        elif words and (number := self._here.get(sender)) is not None:
            self._tell(lambda listener: listener.received(number, words[0]))

    def _changed(self, member: Member, here: bool) -> None:
        if here:
            number = self._numbers.setdefault(member.name, len(self._numbers))
            is_gathered = self._is_gathered or number < len(self._nodes)
            self._nodes[number : number + 1] = [member]
            self._here[member.id] = number
            if is_gathered:  # else it will be
                info = msgspec.structs.replace(decode_infos([member.info])[0], host=member.name)
                self._tell(lambda listener: listener.joined(number, info))
        elif number := self._here.pop(member.id, 0):
            self._tell(lambda listener: listener.lost(number))

    def _tell(self, what: Callable[[Listener], None]) -> None:
        if self._listener is None:
            self._early.append(what)
        else:
            what(self._listener)

    # -- peers.messages.Transport -------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand over what came before, and from now on what comes."""
        self._listener = listener
        early, self._early = self._early, []
        for what in early:
            what(listener)

    def leave_nowait(self) -> None:
        """Tell all others that this node goes."""
        self.roster.leave()

    def send_nowait(self, to: int, message: bytes) -> None:
        """Send a small message."""
        if (member := self._member(to)) is not None:
            self.wires.post(member.endpoint, MESSAGE, message)

    def give_nowait(self, to: int, tag: int, data: memoryview, done: Callable[[], None]) -> None:
        """Hold bytes until they are taken, or that node is gone."""
        if (member := self._member(to)) is not None:
            self.wires.give(member.id, member.endpoint, tag, data, done)
        else:
            done()

    def take_nowait(self, giver: int, tag: int, into: memoryview, done: Callable[[bool], None]) -> None:
        """Have them written straight into `into`."""
        if (member := self._member(giver)) is not None:
            self.wires.take(member.id, member.endpoint, tag, into, done)
        else:
            done(False)

    def _member(self, number: int) -> Member | None:
        member = self._nodes[number]
        return member if member is not None and member.here else None


def _settled(member: Member) -> bool:
    return bool(member.info) and bool(decode_infos([member.info])[0].settled)


@asynccontextmanager
async def open_zeromq(
    peers: str, listen: str, secret: bytes, *, timeout_s: float, is_again: bool
) -> AsyncIterator[ZmqTransport]:
    """Find the others; they are told when it is left. Raises as `ZmqTransport`."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        transport = ZmqTransport(nursery, peers, listen, secret, timeout_s=timeout_s, is_again=is_again)
        stack.callback(transport.wires.close)
        try:
            await transport.find()
            yield transport
        finally:
            transport.leave_nowait()
            nursery.cancel_scope.cancel()
