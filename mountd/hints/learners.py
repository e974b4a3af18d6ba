"""Learners: the training processes that have joined, told apart by job, layout, rank and name.

Each has a `HintSession` as long as its connection lasts, and takes part in the `EpochPlan` of its layout. Event loop
only; reads and opens nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import msgspec

from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.hints.plan_registry import PlanRegistry
from hfs.mountd.wire.protocol import Failure, Join, Result, packed

MAX_LEARNERS = 256
"""Connections of root and the owner of the mount: sixteen processes with sixteen samplers each."""

_OF_A_USER = 128
"""Of one user who is neither: there is room for others."""
_OF_OTHERS = 4 * _OF_A_USER
"""Of all of these together."""

_MAX_TEXT = 256
"""Characters of a name: all of them are in each status."""


class Learners:
    """All of them, and the plans of the layouts that they read by."""

    def __init__(
        self,
        chunk_bytes: int,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        changed: Callable[[], object] = lambda: None,
        coalesce_bytes: int = 0,
    ) -> None:
        """`run_in_thread`: as trio.to_thread.run_sync. `changed`: a schedule has."""
        self.plans = PlanRegistry(chunk_bytes, run_in_thread, coalesce_bytes=coalesce_bytes)
        self._metrics = metrics
        self._changed = changed
        self._numbers = count()
        self._sessions: dict[int, HintSession] = {}
        self._past: list[tuple[Credentials | None, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def join(
        self, join: Join, pid: int, reader: Credentials | None = None
    ) -> tuple[HintSession | None, Result | Failure]:
        """A connection wants to be a learner. The answer is to be sent; with None that is the end of it. `reader`:
        whose rights at the source count; None: the daemon's own."""
        refused = self._refusal(join, reader)
        if refused is not None:
            return None, refused
        session = HintSession(
            self.plans, next(self._numbers), join, pid, reader, self._metrics, changed=self._changed, left=self._left
        )
        self._sessions[session.number] = session
        self.plans.memory.add(session)
        known = session.plan_key in self.plans
        if known:
            self.plans.move_to_end(session.plan_key)
            session.enter()
        return session, Result(detail={"layout": "known" if known else "wanted"})

    def _refusal(self, join: Join, reader: Credentials | None) -> Failure | None:
        likes = [other for other in self._sessions.values() if (other.reader is None) == (reader is None)]
        most = MAX_LEARNERS if reader is None else _OF_OTHERS
        if len(likes) >= most:
            return Failure(f"{most} learners have joined; more are not followed")
        ours = [other for other in likes if _uid(other.reader) == _uid(reader)]
        if reader is not None and len(ours) >= _OF_A_USER:
            return Failure(f"{_OF_A_USER} learners of user {reader.uid} have joined; more are not followed")
        for field in ("layout", "name", "job", "process"):
            if len(getattr(join, field)) > _MAX_TEXT:
                return Failure(f"{field} is longer than {_MAX_TEXT} characters", 2)
        if not 0 <= join.rank < join.world:
            return Failure(f"rank {join.rank} of {join.world}: a rank is 0 to {join.world - 1}", 2)
        for other in ours:
            same = (other.join.job, other.join.layout, other.join.rank, other.join.name)
            if same == (join.job, join.layout, join.rank, join.name) and other.join.process != join.process:
                reason = f"rank {join.rank} of {join.world} has joined already, as process {other.pid}"
                return Failure(f"{reason}; give each learner its own rank, or each job its own name", 2)
        return None

    def _left(self, session: HintSession) -> None:
        """A learner has gone; its figures are kept for the summary."""
        del self._sessions[session.number]
        self.plans.memory.remove(session)
        if session.epochs:
            self._past = [*self._past, (session.reader, session.shown())][-MAX_LEARNERS:]
        self.plans.forget_idle()
        self._changed()

    async def status(self, reader: Credentials | None) -> dict[str, Any]:
        """For `hfs status`, in slices: learners now and before, each packed, and layouts; of one user, or all."""
        learners: list[msgspec.Raw] = []
        past: list[msgspec.Raw] = []

        def steps() -> Iterator[None]:
            for session in list(self._sessions.values()):
                if reader in (None, session.reader) and session.number in self._sessions:
                    learners.append(packed(session.shown()))
                    yield
            for whose, figures in self._past:
                if reader in (None, whose):
                    past.append(packed(figures))
                    yield

        await self.plans.slices.carry_out(steps())
        return {"learners": learners, "past": past, "layouts": self.plans.shown(reader)}


def _uid(reader: Credentials | None) -> int | None:
    return None if reader is None else reader.uid
