"""Learners and their epochs as tables, from the "hints" of a daemon's status.

Printed by `hfs status`, `hfs-hint show` and at the end of `hfs run`. What an older or newer daemon does not say is "-".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from hfs.cli.figures import duration, size
from hfs.cli.render import new_table
from hfs.mountd.core.errors import printable

_EPOCHS = 20
"""The last ones of all learners together: more than a screen helps nobody; --json has the rest."""


def learners_table(hints: Mapping[str, Any]) -> Table | None:
    """Who has joined and how far they are; None if nobody has."""
    learners = hints.get("learners") or []
    if not learners:
        return None
    table = new_table(
        "learners", "learner", "process", "epoch", "position", "samples/s", "staged", "ahead", "all staged in"
    )
    for learner in learners:
        total, share, rate = learner.get("total"), learner.get("staged_share"), learner.get("rate")
        table.add_row(
            _title(learner),
            str(learner.get("pid") or "-"),
            _or_dash(learner.get("epoch"), str),
            _position(learner, total),
            _or_dash(rate, _figure),
            _or_dash(share, lambda value: f"{value:.1%}"),
            _or_dash(learner.get("ahead_bytes"), size),
            "-" if learner.get("only_given") else _or_dash(learner.get("eta_s"), duration),
        )
    if any(learner.get("only_given") and learner.get("total") for learner in learners):
        table.caption = (
            "*: what its sampler will give out is not known, only what was given out is told; hinted(..., ahead=True)"
            " lets a copy of the sampler be drawn (docs/hints.md)"
        )
    return table


def _position(learner: Mapping[str, Any], total: int | None) -> str:
    if not total:
        return "-"  # between two epochs
    position = f"{learner.get('position', 0):,}"
    return f"{position} *" if learner.get("only_given") else f"{position} of {total:,}"


def epochs_table(hints: Mapping[str, Any]) -> Table | None:
    """Where the time of each epoch went, of learners that are here or have left; None if none has said."""
    rows = [
        (learner, epoch)
        for learner in [*(hints.get("past") or []), *(hints.get("learners") or [])]
        for epoch in learner.get("epochs") or []
    ]
    if not rows:
        return None
    times_of = ("exposed I/O", "compute", "other", "waited", "batches", "source wait", "daemon CPU")
    table = new_table("epochs (times in seconds)", "learner", "epoch", *times_of)
    table.padding = (0, 0, 0, 0)  # so that a learner's name has its place in 80 columns
    for column in table.columns[1:]:  # figures are never folded
        column.no_wrap, column.justify, column.header = True, "right", str(column.header).replace(" ", "\n")
    for learner, epoch in rows[-_EPOCHS:]:
        measured = bool(epoch.get("batches"))
        times = [epoch.get(name) or 0.0 for name in ("exposed_s", "compute_s", "other_s")]
        table.add_row(
            _title(learner),
            str(epoch.get("epoch", "-")),
            *(_figure(time) if measured else "-" for time in times),
            f"{times[0] / sum(times):.1%}" if measured and sum(times) > 0 else "-",
            f"{epoch['batches']:,}" if measured else "-",
            _or_dash(epoch.get("source_wait_s"), _figure),
            _or_dash(epoch.get("daemon_cpu_s"), _figure),
        )
    if len(rows) > _EPOCHS:
        table.caption = f"{len(rows) - _EPOCHS} earlier ones: --json"
    return table


def _title(learner: Mapping[str, Any]) -> str:
    name = learner.get("name") or "learner"
    return escape(printable(f"{name}, rank {learner.get('rank', 0)} of {learner.get('world', 1)}"))


def _figure(number: float) -> str:
    """Short, since eight of them stand in a line of 80 columns."""
    return f"{number:,.0f}" if number >= 100 else f"{round(number, 3):.3g}"


def _or_dash(value: Any, shown: Any) -> str:  # noqa: ANN401 - a figure, and what writes it
    return "-" if value is None else str(shown(value))
