"""A place to run code of the job beside the training, where it can do nothing that the training notices.

Its random numbers come from a second set of states, its warnings go nowhere, and it is ended when it turns to anybody
else, or takes long: a sampler may wait for what the training tells it, or agree on something with the other ranks. That
is seen by the interpreter's profile function, before the call.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

_LONGEST_S = 0.5
_OTHERS = (
    *("_thread", "asyncio", "concurrent", "multiprocessing", "queue", "select", "socket", "sqlite3", "subprocess"),
    *("_queue", "_socket", "_multiprocessing", "threading", "torch.distributed", "torch.multiprocessing", "torch.nn"),
    *("horovod", "mpi4py", "zmq"),
)
"""Modules that wait for others, or speak with them."""
_COLLECTIVE = ("horovod", "mpi4py", "sqlite3", "zmq")
"""Whose objects do nothing else."""
_WAITING = {("time", "sleep"), ("posix", "read"), ("posix", "fork"), ("posix", "waitpid")}
_LOCKS = {"acquire", "get", "put"}
"""Methods of C classes, which tell no module."""


_States = list[tuple[Callable[[Any], object], Any]]
"""What puts each state back, and the state."""


def _states() -> _States:
    """The random states of the process as they are: of Python, NumPy and PyTorch, of which those that the job has not
    imported have none."""
    found: _States = [(random.setstate, random.getstate())]
    if (numpy := sys.modules.get("numpy")) is not None:
        found.append((numpy.random.set_state, numpy.random.get_state(legacy=False)))
    torch = sys.modules.get("torch")
    if torch is not None:
        found.append((torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def _put_back(states: _States) -> None:
    """Make all states those that `_states` has given."""
    for put, what in states:
        put(what)


class Disturbs(BaseException):
    """The job's code has turned to somebody, or takes long. No Exception, which that code might catch."""


class DrawingAlone:
    """Within it code of the job runs alone. In the main thread only, and not within itself."""

    def __init__(self) -> None:
        self.was_disturbed = False
        """The job's code has turned to somebody, whatever it has made of it."""
        self._own = _states()
        self._kept: _States = []
        self._collects = False
        self._until = 0.0
        self._warnings = warnings.catch_warnings()

    def begin_anew(self) -> None:
        """What it draws from is what the process's states are now."""
        self._own = _states()

    def __enter__(self) -> None:
        """Raises Disturbs where the job would notice."""
        if threading.current_thread() is not threading.main_thread():
            raise Disturbs("another thread may draw meanwhile, and filters of warnings are the process's")
        if sys.getprofile() is not None:
            raise Disturbs("a profiler is at work, which cannot be put back")
        self._kept = _states()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        _put_back(self._own)
        self._until = time.monotonic() + _LONGEST_S
        self._collects = gc.isenabled()
        gc.disable()  # what it finalizes is the job's, and may speak with others
        sys.setprofile(self._look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        try:
            self._own = _states()
        finally:
            _put_back(self._kept)
            self._warnings.__exit__(kind, error, trace)
            if self._collects:
                gc.enable()

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """For what ends: its random numbers are its own, and nobody ends it. In any thread."""
        kept = _states()
        _put_back(self._own)
        try:
            yield
        finally:
            _put_back(kept)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:  # noqa: ANN401 - a function of C, or nothing
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("hfs.training."):
            return  # ours: nothing is left half done
        if event == "call":
            name = frame.f_code.co_name
            if (module, name) == ("threading", "RLock"):
                return  # to make one disturbs nobody, and NumPy does so for each generator
        elif event == "c_call":
            module, name = str(getattr(called, "__module__", None)), str(getattr(called, "__name__", ""))
            owner = type(getattr(called, "__self__", None)).__module__
            if (name in _LOCKS and owner in _OTHERS) or owner.startswith(_COLLECTIVE):
                module = owner
        else:
            return
        is_others = any(module == other or module.startswith(f"{other}.") for other in _OTHERS)
        if is_others or (module, name) in _WAITING or time.monotonic() > self._until:
            self.was_disturbed = True
            raise Disturbs(f"{module}.{name}")
