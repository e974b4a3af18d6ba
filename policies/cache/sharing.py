"""How the caches below one root share its size: the arithmetic, as pure functions.

Each cache holds a grant: room that it may fill without asking. The grants together never exceed the size. A cache takes
more in steps, so that it asks seldom, and what it does not need stays for others. Whoever has less than a fair share,
the size divided by the caches that have a daemon, may say what it lacks, and those that have more give it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_STEPS = 8
_LEAST_STEP_BYTES = 1 << 30
"""A grant costs a lock and a few small files, a millisecond: at 2 GB/s of staging a thousandth of the time."""
_AHEAD_SHARE = 2
"""And at most half of what is free, so that a cache that comes finds some until the others have made room."""


def step_bytes(size_bytes: int) -> int:
    """How much is taken at a time of a root of this size."""
    return min(size_bytes, max(size_bytes // _STEPS, _LEAST_STEP_BYTES))


def grant_bytes(size_bytes: int, others_bytes: int, own_bytes: int, used_bytes: int, wanted_bytes: int) -> int:
    """The grant of a cache that has `used_bytes` staged, a grant of `own_bytes`, and wants room for so many more.

    `others_bytes`: the grants of all others together. Never less than before, unless the others left less than that.
    """
    free_bytes = max(0, size_bytes - others_bytes)
    if used_bytes + wanted_bytes <= own_bytes:
        return min(own_bytes, free_bytes)
    beyond_bytes = max(0, free_bytes - used_bytes)
    ahead_bytes = min(step_bytes(size_bytes), beyond_bytes // _AHEAD_SHARE)
    return min(free_bytes, max(own_bytes, used_bytes + max(wanted_bytes, ahead_bytes)))


def kept_bytes(size_bytes: int, own_bytes: int, used_bytes: int) -> int:
    """What of its grant a cache keeps for what it will stage next; the rest it gives back."""
    step = step_bytes(size_bytes)
    return used_bytes + step if own_bytes > used_bytes + 2 * step else own_bytes


def fair_bytes(size_bytes: int, running: int) -> int:
    """The share of each cache that has a daemon."""
    return size_bytes // max(1, running)


def givers(grants: Mapping[str, int], fair: int, lacking_bytes: int) -> Iterable[tuple[str, int]]:
    """(cache, bytes that it gives up) of those that hold more than a fair share, those with most first, until what is
    lacking is covered. All daemons come to the same answer, so none has to be asked."""
    for name, own_bytes in sorted(grants.items(), key=lambda item: (-item[1], item[0])):
        given_bytes = min(own_bytes - fair, lacking_bytes)
        if given_bytes <= 0:
            return
        yield name, given_bytes
        lacking_bytes -= given_bytes
