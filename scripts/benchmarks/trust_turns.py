"""The group `turns` of `scripts/bench trust`: how long the event loop is kept by what another user may say.

The real control server, learners and plans, in this process; a client that is another user says each message and brings
each layout at its allowed maximum, joins as often as it may, and leaves. Beside it files are opened, work is looked for
and evictions ask, as in a daemon. A turn is what the loop does between two waits; its length is the CPU time of the
loop's thread, so that other programs do not count. By the clock a turn is longer, if they had the processor meanwhile.
What else in the process keeps the loop from going on (a thread that does not let go of the interpreter) is seen in how
late a sleep of a millisecond ends.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import trio

from hfs.mountd.control.control import Commands, serve
from hfs.mountd.core.background import Slices
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.daemon.daemon import GARBAGE
from hfs.mountd.hints.followed_plans import FollowedPlans, PlanChanges
from hfs.mountd.hints.hints import HintFollower, Learners
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, median_row

BAR_S = 0.05
_CHUNK_BYTES = 8 << 20
_OPENS = 512
_CLIENT = "scripts.benchmarks.readers.turns_client"


class Turns(trio.abc.Instrument):
    """The longest turn of each case: CPU time of the thread; and how long that turn took by the clock."""

    def __init__(self) -> None:
        self.case = ""
        self.longest_s: dict[str, float] = {}
        self.wall_s: dict[str, float] = {}
        self._began_s = 0.0
        self._wall_began_s = 0.0

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - as trio calls it
        self._began_s, self._wall_began_s = time.thread_time(), time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - as trio calls it
        turn_s = time.thread_time() - self._began_s
        if turn_s >= self.longest_s.get(self.case, 0.0):
            self.longest_s[self.case] = turn_s
            self.wall_s[self.case] = time.perf_counter() - self._wall_began_s


class _Nobody:
    """Commands that other users may not give, and what of the rest is of no interest here."""

    def __init__(self, learners: Learners) -> None:
        self._learners = learners

    async def gather(self, reader: Credentials | None, **_options: bool) -> dict[str, object]:
        return {"hints": await self._learners.status(reader)}

    def directory(self) -> dict[str, object]:
        return {"nodes": []}

    async def all_nodes(self) -> dict[str, object]:
        return {"nodes": []}


class _Beside:
    """What a daemon does with plans while messages come."""

    def __init__(self, learners: Learners, changes: PlanChanges) -> None:
        anything: Any = SimpleNamespace(
            budget_bytes=lambda: 1 << 62, is_tight=False, may_begin=lambda _plan: True, begin=lambda _now_s: None
        )
        metrics = Metrics()
        self._plans = learners.plans
        self._opens = FollowedPlans(learners.plans, anything, changes, anything, metrics)
        self._follower = HintFollower(
            learners.plans, anything, anything, anything, anything, anything, changes, metrics
        )
        self._slices = Slices()

    async def open_files(self) -> None:
        """As many opens as the data plane tells of at a time."""

        def steps() -> Iterator[None]:
            for number in range(_OPENS):
                self._opens.opened_at(b"target" if number % 2 else b"0/%d" % number, True)
                yield

        while True:
            await self._slices.carry_out(steps())
            await trio.sleep(0.02)

    async def look_for_work(self) -> None:
        """As a prefetch worker, of files that there are not."""
        while True:
            work = self._follower.next_work()
            if work is None:
                await trio.sleep(0.005)
            elif not work.units:
                await self._follower.carry_out(work)
            else:
                for unit in work.units:
                    work.plan.schedule.failed(unit)
                await trio.lowlevel.checkpoint()

    async def evict(self) -> None:
        """Ask which objects a plan names."""
        while True:
            await self._plans.planned(range(1, 1000))
            await trio.sleep(0.2)


async def _late(late_s: dict[str, float], turns: Turns) -> None:
    while True:
        began_s = time.perf_counter()
        await trio.sleep(0.001)
        late = time.perf_counter() - began_s - 0.001
        late_s[turns.case] = max(late, late_s.get(turns.case, 0.0))


def measured(directory: str, count: int, learners: int, *only: str) -> tuple[Turns, dict[str, float]]:
    """Of each case (`only`: of these) the longest turn, and how late a sleep ended. The client must reach `directory`
    as nobody."""
    turns = Turns()
    late_s: dict[str, float] = {}
    path = os.path.join(directory, "turns.sock")
    metrics = Metrics()

    async def client(scope: trio.CancelScope) -> None:
        command = [sys.executable, "-m", _CLIENT, path, str(count), str(learners), *only]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = b""
        async with process.stdout:
            async for part in process.stdout:
                said += part
                *names, said = said.split(b"\n")
                for name in names:
                    turns.case = name.decode()
        if await process.wait():
            raise RuntimeError(f"the client of {turns.case!r} failed")
        scope.cancel()

    async def main() -> None:
        changes = PlanChanges(lambda: None)
        all_learners = Learners(_CHUNK_BYTES, metrics, trio.to_thread.run_sync, changed=changes.changed)
        nobody: Any = _Nobody(all_learners)
        commands = Commands(nobody, nobody, nobody, nobody, nobody, all_learners)
        beside = _Beside(all_learners, changes)
        tasks: Sequence[Callable[[], Awaitable[None]]] = (beside.open_files, beside.look_for_work, beside.evict)
        async with trio.open_nursery() as nursery, serve(path, commands, nursery, OpenFiles(1024), others=True):
            for task in tasks:
                nursery.start_soon(task)
            nursery.start_soon(_late, late_s, turns)
            nursery.start_soon(client, nursery.cancel_scope)
            await trio.sleep_forever()

    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    usual = gc.get_threshold()
    gc.set_threshold(*GARBAGE)
    try:
        trio.run(main, instruments=[turns])
    finally:
        gc.set_threshold(*usual)
    return turns, late_s


def turns(_work: Work, options: Options, command: str) -> list[Row]:
    """Rows of the longest turn over all cases, and of how late the loop went on."""
    count, learners = options.size(8_000_000, 500_000), options.size(128, 32)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        longest, late_s = measured(directory, count, learners)
    rows = []
    for case in [case for case in longest.longest_s if case]:
        name = f"longest turn of the event loop: {case} ({count:,} names and samples){options.scale(8, 1)}"
        rows.append(median_row(name, [longest.longest_s[case] * 1e3], "ms", command, at_most(BAR_S * 1e3)))
        rows.append(median_row(f"  that turn by the clock: {case}", [longest.wall_s[case] * 1e3], "ms", command))
        late_ms = late_s.get(case, math.nan) * 1e3
        rows.append(median_row(f"  a sleep of 1 ms ends later than that by: {case}", [late_ms], "ms", command))
    return rows
