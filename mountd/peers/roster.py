"""Roster: which nodes of the job are here, found from some addresses, by hellos and heartbeats.

A node says hello to all addresses that it knows: those it was given, and those that other nodes know. Who has said what
it is is a member. It says several times in the time after which it counts as silent that it is there, and whether it
hears the other: one that is heard, but does not hear, is not here. One that is started again is the same node in a new
life, since it has the same name, and comes back to the same share.

Event loop only; sends nothing by itself but through `Wires`.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata

import msgspec
import trio

from hfs.mountd.peers.wires import BEAT, HELLO, LEAVE, REFUSAL, Wires

log = logging.getLogger(__name__)

_HELLO_S, _LOOK_S = 0.5, 5.0
"""Between two hellos to an address where nobody has answered, and two looks for others where none has come or gone."""
_KEPT_S = 60.0
"""So long an address that was not given is spoken to though nobody answers."""
_MOST, _MOST_REFUSALS = 2048, 16
"""Members, and addresses."""
_BEATS = 5
"""In the time after which a node counts as silent."""
_RELEASE = metadata.version("hfs-cache").encode()


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a node says first."""

    name: str
    since_ns: int
    """When its daemon began, by its own clock: of two with one name the later one is it."""
    to: str
    """The address that this was sent to."""
    echo: str
    """The one that the other's hello came to; empty: it has not heard the other."""
    wants: bool
    """An answer."""
    others: list[str]
    """Addresses of those that are here."""
    info: bytes
    """What it is; empty: it does not know yet."""


@dataclass(eq=False)
class Member:
    """One life of a node's daemon."""

    id: bytes
    name: str
    since_ns: int
    endpoint: str
    info: bytes = b""
    echo: str = ""
    """Where it has reached this node."""
    heard_s: float = field(default_factory=trio.current_time)
    hears: bool = True
    here: bool = False


class Roster:
    """`run` it, and `look`."""

    def __init__(
        self,
        name: str,
        listen: str,
        wires: Wires,
        seeds: Callable[[], Awaitable[Iterable[str]]],
        differs: Callable[[bytes], str],
        changed: Callable[[Member, bool], None],
        timeout_s: float,
    ) -> None:
        """`seeds`: addresses where members may be, in numbers; never raises. `differs`: what keeps a node that says
        so of itself from this job, or nothing. `changed`: whether a member is here."""
        self.name, self.info = name, b""
        self.members: dict[bytes, Member] = {}
        self.refusals: list[str] = []
        """Why others do not want this node."""
        self._wires, self._seeds, self._differs, self._changed = wires, seeds, differs, changed
        self._timeout_s, self._since_ns = timeout_s, time.time_ns()
        host, _, port = listen.rpartition(":")
        self._endpoint = port if ipaddress.ip_address(host.strip("[]")).is_unspecified else listen
        self._own: set[str] = set()
        self._sought: dict[str, float] = {}
        """Addresses without a member, and since when; those that were given for ever."""
        self._refused: dict[str, float] = {}
        self._looked = self._has_left = False
        self._pause_s = _HELLO_S

    @property
    def searching(self) -> bool:
        """Whether there are addresses where nobody has answered."""
        return not self._looked or bool(self._sought)

    async def look(self) -> None:
        """Where members may be, again and again: names may stand for others by now, and any member may know one more.
        Until it is cancelled."""
        while True:
            for endpoint in {*await self._seeds()} - self._known():
                self._seek(endpoint, math.inf)
            self._looked = True
            if self.members:
                self._greet(random.choice([*self.members.values()]))
            await trio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LOOK_S)

    async def run(self) -> None:
        """Until it is cancelled."""
        beat_s = trio.current_time()
        while True:
            now_s = trio.current_time()
            for endpoint in self._sought:
                self._say_hello(endpoint)
            for member in list(self.members.values()):
                if now_s >= beat_s:
                    self._beat(member)
                self._settle(member)
                if now_s - member.heard_s > _KEPT_S:
                    self._lose(member)
            if now_s >= beat_s:
                beat_s = now_s + self._timeout_s / _BEATS
            for kept in (self._sought, self._refused):
                for endpoint in [one for one, since_s in kept.items() if now_s - since_s > _KEPT_S]:
                    del kept[endpoint]
                    if endpoint not in self._known():
                        self._wires.drop(endpoint)
            await trio.sleep(min(_HELLO_S, self._timeout_s / _BEATS))

    def announce(self, info: bytes) -> None:
        """What this node is: from now on it can be a member."""
        self.info = info
        for member in self.members.values():
            self._greet(member)
            self._settle(member)

    def leave(self) -> None:
        """Tell all that this node goes. Nothing is said any more: who heard a hello now would take it for here."""
        for member in self.members.values():
            self._wires.post(member.endpoint, LEAVE)
        self._has_left = True

    # -- what comes ---------------------------------------------------------------------------------------------------

    def came(self, sender: bytes, head: bytes, words: Sequence[bytes], address: str) -> None:
        """A HELLO or REFUSAL of anybody, or of a member a BEAT or LEAVE."""
        if head == HELLO:
            self._hello(sender, words, address)
        elif head == REFUSAL:
            text = f"{address}: {b' '.join(words)[:500].decode(errors='replace')}"
            if text not in self.refusals and len(self.refusals) < _MOST_REFUSALS:
                self.refusals.append(text)
                log.warning("peers: refused by %r", text)
        elif (member := self.members.get(sender)) is not None:
            is_back = not self._is_heard(member)
            member.heard_s = trio.current_time()
            if head == LEAVE:
                self._lose(member)
            elif head == BEAT:
                member.hears = bool(words and words[0])
                if is_back:
                    self._beat(member)
                if not member.hears:
                    self._greet(member)
            self._settle(member)

    def _hello(self, sender: bytes, words: Sequence[bytes], address: str) -> None:
        try:
            release, endpoint, body = words[0], _completed(words[1].decode(), address), words[2]
        except (ValueError, IndexError):
            return  # who knows where its answer would go
        hello, others = None, set[str]()
        fault = "this is hfs " + _RELEASE.decode() + "; install the same release on all nodes"
        if release == _RELEASE:
            try:
                hello = msgspec.msgpack.decode(body, type=Hello)
                others = {_completed(each, address) for each in {*hello.others} - self._known()}
                fault = "" if sender == self._wires.id else self._fault(sender, hello)
            except (msgspec.DecodeError, ValueError, RecursionError):
                fault = "a hello that means nothing"
        if hello is None or fault:
            if len(self._refused) < _MOST:
                self._refused[endpoint] = trio.current_time()
                self._wires.post(endpoint, REFUSAL, fault.encode(), now_or_never=True)
            return
        self._sought.pop(hello.echo, None)
        if sender == self._wires.id:
            self._own.add(hello.to)
            self._sought.pop(hello.to, None)
            self._wires.drop(hello.to)
            return
        member = self._accepted(sender, hello, endpoint)
        member.heard_s, member.info, member.echo = trio.current_time(), hello.info or member.info, hello.to
        for other in others - self._known():
            self._seek(other, trio.current_time())
        if hello.wants:
            self._greet(member, wants=False)
        self._settle(member)

    def _fault(self, sender: bytes, hello: Hello) -> str:
        """Why this one is none of the job."""
        if hello.info and (differs := self._differs(hello.info)):
            return differs
        if hello.name == self.name or any(
            other.name == hello.name and other.since_ns > hello.since_ns and self._is_heard(other)
            for other in self.members.values()
        ):
            return f"another daemon is called {hello.name}: see -o peer-listen"
        return "too many nodes" if sender not in self.members and len(self.members) >= _MOST else ""

    def _accepted(self, sender: bytes, hello: Hello, endpoint: str) -> Member:
        self._sought.pop(endpoint, None)
        if (member := self.members.get(sender)) is not None:
            return member
        for former in [one for one in self.members.values() if one.name == hello.name]:
            self._lose(former)
        self._sought.pop(endpoint, None)
        member = self.members[sender] = Member(sender, hello.name, hello.since_ns, endpoint)
        self._wires.members = frozenset(self.members)
        return member

    # -- who is here --------------------------------------------------------------------------------------------------

    def _is_heard(self, member: Member) -> bool:
        return trio.current_time() - member.heard_s < self._timeout_s

    def _settle(self, member: Member) -> None:
        here = member.id in self.members and bool(member.info and self.info)
        here = here and member.hears and self._is_heard(member)
        if here != member.here:
            member.here, self._pause_s = here, _HELLO_S
            if not here:
                self._wires.drop(member.endpoint, member.id)
            self._changed(member, here)

    def _lose(self, member: Member) -> None:
        """That life is over; the next one may be where it was."""
        self.members.pop(member.id, None)
        self._wires.members = frozenset(self.members)
        self._settle(member)
        self._seek(member.endpoint, trio.current_time())

    def _known(self) -> set[str]:
        return {member.endpoint for member in self.members.values()} | self._own

    def _seek(self, endpoint: str, since_s: float) -> None:
        if len(self._sought) < _MOST:
            self._sought[endpoint] = max(since_s, self._sought.get(endpoint, 0.0))

    def _greet(self, member: Member, *, wants: bool = True) -> None:
        self._say_hello(member.endpoint, member.echo, wants=wants)

    def _say_hello(self, endpoint: str, echo: str = "", *, wants: bool = True) -> None:
        if self._has_left:
            return
        others = [member.endpoint for member in self.members.values() if member.here and member.endpoint != endpoint]
        hello = Hello(self.name, self._since_ns, endpoint, echo, wants, others, self.info)
        words = _RELEASE, self._endpoint.encode(), msgspec.msgpack.encode(hello)
        self._wires.post(endpoint, HELLO, *words, now_or_never=True)

    def _beat(self, member: Member) -> None:
        if not self._has_left:
            self._wires.post(member.endpoint, BEAT, b"1" if self._is_heard(member) else b"", now_or_never=True)


def _completed(endpoint: str, address: str) -> str:
    """An address in numbers with its port; of a port alone at `address`. Raises ValueError."""
    host, colon, port = endpoint.rpartition(":")
    if not 0 < int(port) < 65_536:
        raise ValueError(endpoint)
    found = ipaddress.ip_address(host.strip("[]") if colon else address.removeprefix("::ffff:"))
    return f"[{found}]:{int(port)}" if found.version == 6 else f"{found}:{int(port)}"
