"""Background tasks: what nobody waits for, guarded so that its fault costs that task and nothing else.

An exception that leaves a task ends its nursery, and with it the mount for everybody. So whatever runs beside the
requests starts here. Its fault is logged with the traceback, once for each kind (the task, the exception, the line it
came from), and counted under the task's name for `hfs status`. `start_guarded` is for tasks that end; `start_for_life`
for those the mount needs as long as it lives: they are started again, after a pause that doubles up to a minute.
Cancellation passes through, alone or in a group; what is cancelled has no fault.

A task gives back what it holds in its own `finally`: here is nothing but the guard. tests/test_layers.py lets no other
file start a task that is not waited for where it was started. Event loop only.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVarTuple

import trio

from hfs.mountd.core.errors import sole

log = logging.getLogger(__name__)

Args = TypeVarTuple("Args")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 60.0
"""Before a task is started again. Also how long it must have run before its next fault counts as the first."""

_MAX_KINDS = 256
"""Kinds of faults that are told apart in the log; all after that are counted only."""


SLICE_S = 0.004
"""CPU of one slice, the last step of it not counted: a step is a millisecond at most."""


class Slices:
    """Long work of the event loop in slices: one of them in each turn, whoever asks, so that requests are answered
    between.

    A turn of the loop runs every task that can go on. So it is not enough that each gives way after a moment: of a
    hundred tasks with long work only one has its slice in a turn, and they take turns. Event loop only.

    Those who share it take turns.
    """

    def __init__(self) -> None:
        self._turn = trio.Lock()

    async def carry_out(self, steps: Iterable[object]) -> None:
        """Go through `steps`, which does a piece of work before it gives each. What is decided in a step is marked in
        it: between two of them everything may have changed."""
        left = iter(steps)
        ended = object()
        while True:
            async with self._turn:
                until_s = time.thread_time() + SLICE_S
                while time.thread_time() < until_s:
                    if next(left, ended) is ended:
                        return


class _Faults:
    """Of one daemon: counts by task, and the kinds that were logged."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.kinds: set[tuple[str, type[BaseException], str]] = set()


_faults: trio.lowlevel.RunVar[_Faults] = trio.lowlevel.RunVar("background faults")


def faults() -> dict[str, int]:
    """How often each task has failed unforeseen, by its name."""
    return dict(_of_run().counts)


def start_guarded(
    nursery: trio.Nursery, name: str, function: Callable[[*Args], Awaitable[object]], *args: *Args
) -> None:
    """As `nursery.start_soon(function, *args)`; a fault of it is logged and counted as one of `name`."""
    nursery.start_soon(guarded, name, function, *args, name=name)


def start_for_life(
    nursery: trio.Nursery, name: str, function: Callable[[*Args], Awaitable[object]], *args: *Args
) -> None:
    """As `start_guarded`, and started again after a fault; over once `function` returns."""

    async def live() -> None:
        pause_s = _FIRST_PAUSE_S
        began_s = trio.current_time()
        while not await guarded(name, function, *args):
            if trio.current_time() - began_s >= _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            began_s = trio.current_time()

    nursery.start_soon(live, name=name)


async def guarded(name: str, function: Callable[[*Args], Awaitable[object]], *args: *Args) -> bool:
    """Wait for `function(*args)`. False if it failed, which is logged and counted; Cancelled is raised."""
    failed = False
    try:
        await function(*args)
    except* Exception as group:  # noqa: BLE001 - whatever it is, it is this task's alone
        failed = True
        note_fault(name, sole(group))
    return not failed


def call_guarded(name: str, function: Callable[[*Args], object], *args: *Args) -> None:
    """Call what comes from a thread through the event loop: an exception there would end the loop itself."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - a defect, whatever it is: logged and counted
        note_fault(name, error)


def note_fault(name: str, error: BaseException) -> None:
    """A task of this name has met what no rule foresaw."""
    found = _of_run()
    found.counts[name] += 1
    kind = (name, type(error), _origin(error))
    if kind in found.kinds or len(found.kinds) >= _MAX_KINDS:
        return
    found.kinds.add(kind)
    log.error(
        "unforeseen error in the background (%s); the mount goes on, more of this kind are only counted",
        name,
        exc_info=error,
    )


def _of_run() -> _Faults:
    try:
        return _faults.get()
    except LookupError:
        found = _Faults()
        _faults.set(found)
        return found


def _origin(error: BaseException) -> str:
    """The innermost line that it came from."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else ""
