"""Repeated orders: where files are opened in the same order pass after pass, that is a hint that nobody has to give.

Validation sets and epochs that are not shuffled do so. Every open of a small file that no learner has named is shown to
`policies.schedule.repetition`; once it recognises a pass, its order is followed as if a learner had sent it, and the
pass after it is expected to be the same; when the opens go another way, that learner leaves. Called by `opening`. Event
loop only; what takes longer is done in a thread.
"""

from __future__ import annotations

import logging
import os

import numpy as np
import trio

from mountd.base.errors import HfsError
from mountd.core.background import start_guarded
from mountd.hints.learners import HintSession, Learners
from mountd.namespace import Node, PathNumbers
from mountd.wire.hints import LayoutFrame, Order, encode_layout, layout_digest
from mountd.wire.protocol import Join
from policies.schedule.repetition import MAX_ITEMS, Repetition

__all__ = ["HintsRepeated"]

log = logging.getLogger(__name__)

_EVERY = 64
"""Opens between two words about progress: what `policies.schedule.repetition` looks at together."""


class HintsRepeated:
    """See the file's story."""

    def __init__(self, learners: Learners, nursery: trio.Nursery) -> None:
        self._learners = learners
        self._nursery = nursery
        self._numbers = PathNumbers()
        self._opens = Repetition()
        self._passes = 0
        self._learner: HintSession | None = None
        self._beginning = False
        self._count = 0

    def names(self, node: Node) -> bool:
        """Whether the order that names this file is one of ours."""
        return self._learner is not None and node.hinted is not None and node.hinted[0] is self._learner.plan

    def opened(self, node: Node) -> None:
        """A small file that no learner has named is opened."""
        if len(self._numbers) >= MAX_ITEMS:
            return
        self._opens.observe(self._numbers.number(node.path))
        self._count += 1
        if self._count % _EVERY or self._beginning:
            return
        if not self._opens.following:
            self._end()
        elif self._opens.passes != self._passes:
            self._passes = self._opens.passes
            self._beginning = True
            start_guarded(self._nursery, "repeated order", self._begin)
        elif self._learner is not None:
            self._learner.reached(self._opens.position)

    async def _begin(self) -> None:
        """Follow the pass that was recognised."""
        self._end()
        try:
            order = self._opens.order
            blob = encode_layout(LayoutFrame(b"\0".join(self._numbers.path(item) for item in order.tolist())))
            digest = layout_digest(blob)
            await self._learners.adopt(digest, blob)
            if not self._opens.following or self._opens.passes != self._passes:
                return
            join = Join(layout=digest, name="repeated order", job="recognised by hfs", process="hfs")
            learner, _ = self._learners.join(join, os.getpid())
            if learner is None:
                return
            self._learner = learner
            indices = np.arange(len(order), dtype="<i8").tobytes()
            await learner.receive(Order(self._passes, indices))
            learner.reached(self._opens.position)
            await learner.receive(Order(self._passes + 1, indices, following=True))
            log.info("files are opened in the order of the pass before: %d of them are fetched ahead", len(order))
        except HfsError as error:
            log.info("a repeated order is not followed: %s", error)
        finally:
            self._beginning = False

    def _end(self) -> None:
        if self._learner is not None:
            self._learner.leave()
            self._learner = None
