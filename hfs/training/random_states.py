"""The random states that a process has, to be kept and put back.

Knows those of Python, NumPy and PyTorch, and imports neither: a framework that the job has not imported has no state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

State = list[tuple[Callable[[Any], object], Any]]
"""What puts each state back, and the state."""


def current() -> State:
    """All states as they are."""
    found: State = [(random.setstate, random.getstate())]
    if (numpy := sys.modules.get("numpy")) is not None:
        found.append((numpy.random.set_state, numpy.random.get_state(legacy=False)))
    torch = sys.modules.get("torch")
    if torch is not None:
        found.append((torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def put_back(state: State) -> None:
    """Make all states those that `current` has given."""
    for put, what in state:
        put(what)
