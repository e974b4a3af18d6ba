"""A copy of a job's sampler, drawn from in its place, so that it is known what the sampler will give out.

Only where that changes nothing: of the samplers of PyTorch and torchdata that have a state, or where the job says so.
A copy of any other may draw from what it shares with the job, a generator of its module, a file, a queue. The copy
shares nothing that can be seen to change: containers, arrays and generators are its own. Data sets are not copied,
models neither copied nor run. It is drawn, and ended, where nobody notices (`DrawingAlone`): its random numbers come
from a second set of states, its warnings go nowhere, and it is ended when it turns to anybody else, or takes long: a
sampler may wait for what the training tells it, or agree on something with the other ranks. That is seen by the
interpreter's profile function, before the call.

Everything here runs code of the job: it may raise anything.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

import numpy as np

from hfs.mountd.core.errors import HfsError
from hfs.training.known_orders import IndexOf, Indices, as_array, indices_of

_STEP_S = 0.004
_STEP_INDICES = 1 << 16
_LOOKED_AT = 1000
"""Objects of a sampler that are looked at for data sets and generators; more of them is no sampler."""
_ARRAY_BYTES = 1 << 28
"""Of all its arrays: copying them takes a tenth of a second. A memory map may be the whole data set."""
_LIBRARIES = ("torch.utils.data.", "torchdata.")
"""Whose samplers draw from what they hold, and from the global states."""
_PLAIN = {"builtins", "collections", "numpy", "torch"}
"""Modules of what such samplers hold."""
_DATA_SETS = {"data_source", "dataset"}
"""What samplers call their data set."""
_CONTAINERS = (
    list,
    tuple,
    range,
    dict,
    set,
    frozenset,
    MutableMapping,
    MutableSequence,
    MutableSet,
    str,
    bytes,
    np.ndarray,
)


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


class NotCopied(HfsError):
    """The sampler has something that is not to be copied."""


class CopiedSampler:
    """A copy of a sampler, or of an iterator of it, and what it gives out."""

    def __init__(self, sampler: Any, index_of: IndexOf | None, *, ahead: bool, resumed: bool = False) -> None:  # noqa: ANN401 - any sampler
        """`ahead`: the job vouches for it. `resumed`: go on where the sampler's state says that it is. Raises whatever
        copying raises."""
        self._index_of = index_of
        self._alone = DrawingAlone()
        self._copy: Any = None
        self._iterator: Iterator[Any] = iter(())
        with self._alone:
            self._copy = copy.deepcopy(sampler, _shared(sampler, ahead=ahead))
            if resumed:
                self._copy.load_state_dict(copy.deepcopy(self._copy.state_dict()))
            self._iterator = iter(self._copy)
        if self._alone.was_disturbed:
            raise NotCopied("it turns to others")

    def pieces(self) -> Iterator[Indices]:
        """What it gives out from now on, by steps of some milliseconds. Ends where the copy ends or fails."""
        self._alone.begin_anew()  # now: the sampler's own iterator is about to be asked
        return self._drawn()

    def _drawn(self) -> Iterator[Indices]:
        ended = False
        try:
            while not ended:
                numbers: list[int] = []
                until = time.monotonic() + _STEP_S
                try:
                    with self._alone:
                        while len(numbers) < _STEP_INDICES and time.monotonic() < until:
                            item = next(self._iterator)
                            if self._alone.was_disturbed:  # and the sampler has caught that
                                raise NotCopied("it turns to others")
                            numbers.extend(indices_of(item, self._index_of))
                except (Exception, SystemExit, GeneratorExit, Disturbs):  # noqa: BLE001 - the job's will raise
                    ended = True
                if numbers:
                    yield as_array(numbers)
        finally:
            self._end()

    def _end(self) -> None:
        """What the copy does at its end (a `finally`, a `__del__`) it does alone too. The garbage collector may call
        this."""
        if self._copy is not None:
            with contextlib.suppress(Exception), self._alone.unwatched():
                self._iterator = iter(())
                self._copy = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # never made
            self._end()


def copied_at_begin(
    sampler: Any,  # noqa: ANN401 - any sampler
    index_of: IndexOf | None,
    *,
    ahead: bool,
) -> CopiedSampler | None:
    """A copy of a sampler that is about to be begun; None: it may not be copied. Raises whatever copying raises."""
    return CopiedSampler(sampler, index_of, ahead=ahead) if ahead or _is_of_a_library(sampler) else None


def copied_at_work(
    sampler: Any,  # noqa: ANN401 - any sampler
    iterator: Any,  # noqa: ANN401 - and what it has given as its iterator
    index_of: IndexOf | None,
    *,
    ahead: bool,
) -> CopiedSampler | None:
    """A copy that goes on where `iterator` is; None: there can be none. Raises whatever copying raises."""
    if not isinstance(iterator, GeneratorType) and (ahead or _is_of_a_library(iterator)):
        return CopiedSampler(iterator, index_of, ahead=ahead)
    if _is_of_a_library(sampler) or (ahead and _has_state(sampler)):
        return CopiedSampler(sampler, index_of, ahead=ahead, resumed=True)
    return None


def _has_state(sampler: object) -> bool:
    return all(callable(getattr(type(sampler), name, None)) for name in ("state_dict", "load_state_dict"))


def _is_of_a_library(sampler: object) -> bool:
    return _has_state(sampler) and f"{type(sampler).__module__}.".startswith(_LIBRARIES)


def _shared(sampler: object, *, ahead: bool) -> dict[int, Any]:
    """What `copy.deepcopy` is to put in the place of objects of the sampler, by their ids. Raises NotCopied."""
    memo: dict[int, Any] = {}
    waiting: list[tuple[str, object]] = [("", sampler)]
    torch = sys.modules.get("torch")
    seen = array_bytes = 0
    while waiting:
        name, thing = waiting.pop()
        if id(thing) in memo or isinstance(thing, str | bytes | int | float | None):
            continue
        seen += 1
        if seen > _LOOKED_AT:
            raise NotCopied("it holds very many objects")
        if any(base.__module__.startswith("torch.nn.") for base in type(thing).__mro__):
            raise NotCopied("it holds a model")
        if torch is not None and isinstance(thing, torch.Generator):
            memo[id(thing)] = torch.Generator(device=thing.device).set_state(thing.get_state())
        elif thing is not sampler and not ahead and name in _DATA_SETS:
            memo[id(thing)] = _Length(thing)
        elif thing is not sampler and _is_shared(name, thing):
            memo[id(thing)] = thing
        elif isinstance(thing, np.ndarray) or (torch is not None and isinstance(thing, torch.Tensor)):
            array_bytes += thing.nbytes
            if array_bytes > _ARRAY_BYTES:
                raise NotCopied("it holds large arrays")
        elif isinstance(thing, list) and len(thing) > _LOOKED_AT and set(map(type, thing)) <= {int, str, float}:
            memo[id(thing)] = list(thing)  # much faster than what deepcopy does
        elif not ahead and not _is_plain(thing):
            raise NotCopied(f"it holds {type(thing).__module__}.{type(thing).__qualname__}")
        else:
            waiting += _parts(thing)
    return memo


def _is_shared(name: str, thing: object) -> bool:
    """Whether it is a data set, or an array that nobody changes."""
    if isinstance(thing, np.ndarray):
        return not thing.flags.writeable
    return (name in _DATA_SETS or _is_data_set(thing)) and not isinstance(thing, _CONTAINERS)


def _is_plain(thing: object) -> bool:
    """Whether it is known what it does and holds, of what a sampler of a library may hold."""
    if isinstance(thing, dict | list | tuple | set | frozenset):
        return len(thing) <= _LOOKED_AT
    module = type(thing).__module__
    return (module in _PLAIN and not callable(thing)) or f"{module}.".startswith(_LIBRARIES)


def _parts(thing: Any) -> list[tuple[str, object]]:  # noqa: ANN401 - anything
    """What it holds, with the names that it has for that. Raises NotCopied where a copy would share what may change."""
    if isinstance(thing, dict):
        return [("", value) for value in _first(thing.values())]
    if isinstance(thing, list | tuple):
        return [("", value) for value in _first(thing)]
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        given = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return [("", _unchanging(found)) for found in (*cells, *given)]
    if isinstance(thing, MethodType):
        return [("", thing.__self__), ("", thing.__func__)]
    if isinstance(thing, BuiltinFunctionType):
        return [] if thing.__self__ is None else [("", _unchanging(thing.__self__))]
    if isinstance(thing, functools.partial):
        return [("", part) for part in (thing.func, *thing.args, *thing.keywords.values())]
    if isinstance(thing, type):
        return []
    attributes = getattr(thing, "__dict__", None)
    slots = [
        slot for base in type(thing).__mro__ for slot in vars(base).values() if isinstance(slot, MemberDescriptorType)
    ]
    held = [(slot.__name__, slot.__get__(thing)) for slot in slots if hasattr(thing, slot.__name__)]
    return [*held, *(attributes.items() if isinstance(attributes, dict) else ())]


def _unchanging(found: object) -> object:
    """What `deepcopy` shares with the job: what a function has taken from around it, or whose method it is."""
    if not isinstance(found, str | bytes | int | float | None | type | FunctionType | BuiltinFunctionType | ModuleType):
        raise NotCopied(f"a function of it holds {type(found).__name__}")
    return found


def _first(values: Any) -> list[object]:  # noqa: ANN401 - a container of anything
    """Those that may be more than numbers and text, unless there are very many."""
    return [] if len(values) > _LOOKED_AT else list(values)


def _is_data_set(thing: object) -> bool:
    kind = type(thing)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not isinstance(thing, _CONTAINERS)
        and (kind.__module__ != "torch")
    )


class _Length:
    """What the copy of a sampler that nobody has vouched for sees of a data set."""

    def __init__(self, data_set: Any) -> None:  # noqa: ANN401 - any data set
        self._data_set = data_set

    def __len__(self) -> int:
        return len(self._data_set)
