"""What the source has said of a node beside its attributes, kept at the node: ACLs, a link's target, who may open it.

An answer is good for the time-to-live. After it the source is asked again; if that does not answer within two seconds,
what it said last is served, as with names and attributes. What was never said is waited for: no answer is never "no
ACL", and never "yes". Answers go with their node, and with what is written in them: a file has one version, and what
was said of a link is about the inode that had its ctime.

Event loop only; asks nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

from hfs.mountd.core.errors import HfsError, SourceTimeout
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.nodes.node import Node

Value = TypeVar("Value")

_MAX_ANSWERS = 16
"""Kept at one node: two ACLs, and as many users and groups as read one file at a time. The oldest goes."""


_LIMIT_S = 2.0
"""How long a question may keep a reader whose answer is known. design.md section 5."""

_SILENT_S = 5.0
"""How long nothing is asked after a question that got no answer, or until anything is answered: an open asks once for
each component of its path, twice for the file, and waited 14 s in all."""


_SERVED_S = 1.0
"""How long what was known is good for where the source did not answer."""


class Silence:
    """A source that does not answer: how long a question may take whose answer is known from before, and when to ask
    again.

    Past the time-to-live one question is asked. If it gets no answer in time, what was known is served, and for some
    seconds without asking: an open asks once for each component of its path, and would wait for each of them. One
    object a mount, shared by all who know something already: names, attributes and listings (`namespace`), permissions
    (`access`). Pure but for a counter.

    `strict`: the source is waited for instead, and nothing is served that may be old.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float], *, strict: bool) -> None:
        self._metrics = metrics
        self._clock = clock
        self._strict = strict
        self._until_s = -math.inf

    def is_on(self) -> bool:
        """The source has not answered a moment ago, and what is known may be served without asking."""
        return not self._strict and self._clock() < self._until_s

    def limit_s(self, *, known: bool) -> float | None:
        """How long a question may take, in seconds; None: as long as the source may take for anything."""
        return _LIMIT_S if known and not self._strict else None

    def begin(self, *, known: bool) -> bool:
        """A question got no answer in time. Whether what is known is to be served instead."""
        if not known or self._strict:
            return False
        self._until_s = self._clock() + _SILENT_S
        return True

    def end(self) -> None:
        """The source has answered something."""
        self._until_s = -math.inf

    def good_until_s(self) -> float:
        """Until when what was known is good, where the source did not answer."""
        return self._clock() + _SERVED_S

    def served(self) -> None:
        """What was known was served past its time."""
        self._metrics.add("stale_served")


class _Answer(NamedTuple):
    value: Any
    expires_s: float
    ctime_ns: int


class Answers:
    """`ttl_s`: math.inf for `--immutable`."""

    def __init__(self, silence: Silence, clock: Callable[[], float], *, ttl_s: float) -> None:
        self._silence = silence
        self._clock = clock
        self._ttl_s = ttl_s

    def known_nowait(self, node: Node, key: Hashable) -> bool:
        """Whether `ask` would not ask."""
        held = _held(node, key)
        return held is not None and held.expires_s > self._clock()

    def suppose(self, node: Node, key: Hashable, value: object, expires_s: float) -> None:
        """Where nothing is known of `node`: what the source has said of all its like, until then."""
        if _held(node, key) is None:
            self._keep(node, key, _Answer(value, expires_s, node.attributes.ctime_ns))

    async def ask(self, node: Node, key: Hashable, question: Callable[[float | None], Awaitable[Value]]) -> Value:
        """What is known of `node` under `key`, or else what `question(limit in seconds, or None)` gives.

        What it raises is raised, and nothing of it is kept: SourceTimeout only where nothing was known.
        """
        held = _held(node, key)
        if held is not None and (held.expires_s > self._clock() or self._silence.is_on()):
            if held.expires_s <= self._clock():
                self._silence.served()
            return cast(Value, held.value)
        answers = node.answers = {} if node.answers is None else node.answers
        asked_s, ctime_ns = self._clock(), node.attributes.ctime_ns
        try:
            value = await question(self._silence.limit_s(known=held is not None))
        except SourceTimeout:
            if not self._silence.begin(known=held is not None) or held is None:
                raise
            self._silence.served()
            return cast(Value, held.value)
        except HfsError:
            self._silence.end()
            if node.answers is not None:
                node.answers.pop(key, None)
            raise
        self._silence.end()
        if node.answers is answers:  # else it is of before they were past their time
            self._keep(node, key, _Answer(value, asked_s + self._ttl_s, ctime_ns))
        return value

    @staticmethod
    def _keep(node: Node, key: Hashable, answer: _Answer) -> None:
        if node.answers is None:
            node.answers = {}
        node.answers.pop(key, None)
        node.answers[key] = answer
        if len(node.answers) > _MAX_ANSWERS:
            del node.answers[next(iter(node.answers))]


def expire_answers(node: Node) -> None:
    """What the source has said of `node` is asked for again; what it said last is served while it is silent. What it is
    just being asked for is not kept."""
    if node.answers is not None:
        node.answers = {key: answer._replace(expires_s=-math.inf) for key, answer in node.answers.items()}


def _held(node: Node, key: Hashable) -> _Answer | None:
    held: _Answer | None = (node.answers or {}).get(key)
    if held is None or (held.ctime_ns != node.attributes.ctime_ns and not node.attributes.is_directory):
        return None  # of another inode, or from before a change; a directory changes with every name in it
    return held
