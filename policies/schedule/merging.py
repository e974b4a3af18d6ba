"""Merging what several learners want into one order of fetching, by time of use, within a budget that they share.

Asked at every `take`, with the next few units of each learner. Pure arithmetic on arrays; keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one learner wants next: `units` (int32 [n], n > 0, each once), due in `due_s` seconds (ascending)."""

    units: NDArray[np.int32]
    due_s: NDArray[np.float64]
    more: bool
    """It wants more than these."""
    ahead_bytes: int
    """What it has got and not used."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What to fetch: `units` (int32 [n]), soonest first and each once; when each is due, in seconds (float64 [n]); and
    whose it is (`owners`, intp [n]: indices of what was merged)."""

    units: NDArray[np.int32]
    due_s: NDArray[np.float64]
    owners: NDArray[np.intp]


def merge(
    wanting: Sequence[Wanted], unit_bytes: NDArray[np.int64], *, limit: int, budget_bytes: int, idle_bytes: int
) -> Merged:
    """The units to fetch, soonest first.

    As many as `limit` and the budget allow and as the order is known: nothing later than the last unit that is known of
    a learner that wants more, so at least one if there is budget. `unit_bytes`: of all units. `idle_bytes`: what those
    have ahead who want nothing, each counted with its equal part of the budget at most. The rest of the budget is
    shared equally; nobody's share is less because another has more than its own, which happens when some come later.
    A learner with nothing ahead gets its first unit in any case. So what is ahead afterwards is within the budget, but
    for one unit a learner and for what some had beyond their share.
    """
    share_bytes = (budget_bytes - idle_bytes) // len(wanting)
    ahead_bytes = idle_bytes
    horizon_s = np.inf
    units, due_s, counts = [], [], []
    for wanted in wanting:
        ahead_bytes += min(wanted.ahead_bytes, share_bytes)
        allowed = len(wanted.units)
        total = np.cumsum(unit_bytes[wanted.units])
        if total[-1] + wanted.ahead_bytes > share_bytes:
            allowed = int(total.searchsorted(share_bytes - wanted.ahead_bytes, "right"))
            allowed = max(allowed, 0 if wanted.ahead_bytes else 1)
        if wanted.more and allowed == len(wanted.units):
            horizon_s = min(horizon_s, wanted.due_s[-1])
        units.append(wanted.units[:allowed])
        due_s.append(wanted.due_s[:allowed])
        counts.append(allowed)
    if len(wanting) == 1:
        merged, due, owners = units[0], due_s[0], np.zeros(counts[0], np.intp)
    else:
        due = np.concatenate(due_s)
        order = due.argsort(kind="stable")
        order = order[: due[order].searchsorted(horizon_s, "right")]
        merged, due = np.concatenate(units)[order], due[order]
        owners = np.repeat(np.arange(len(wanting)), counts)[order]
        ascending = np.sort(merged)
        if np.any(ascending[1:] == ascending[:-1]):  # seldom, and to say which costs ten times as much
            once = np.sort(np.unique(merged, return_index=True)[1])
            merged, due, owners = merged[once], due[once], owners[once]
    sizes = unit_bytes[merged]
    before = ahead_bytes + np.cumsum(sizes) - sizes
    fits = before < budget_bytes
    if not fits.all():
        owner, first = np.unique(owners, return_index=True)
        fits[first[[not wanting[of].ahead_bytes for of in owner.tolist()]]] = True
    return Merged(merged[fits][:limit], due[fits][:limit], owners[fits][:limit])
