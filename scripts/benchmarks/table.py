"""Rows of a benchmark: what was measured, the bar it is held against, and how both are shown and written.

Pure except for `write`; measures nothing.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

SKIPPED = "skipped"
"""In the place of the unit of a row that this machine cannot measure."""


@dataclass(frozen=True)
class Bar:
    """What a value must be at least, or at most."""

    limit: float
    at_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


def at_most(limit: float) -> Bar:
    return Bar(limit, at_least=False)


@dataclass(frozen=True)
class Row:
    """One line of the table; its fields are those of the JSON."""

    row: str
    value: float | None
    unit: str
    bar: str | None
    holds: bool | None
    command: str
    values: Sequence[float] = ()
    """Of each run, as measured; `value` is their median."""

    @property
    def spread(self) -> str:
        """Words for how far the runs lie apart; empty for one."""
        if len(self.values) < 2:
            return ""
        return f" ({len(self.values)} runs: {round_3(min(self.values)):g} to {round_3(max(self.values)):g})"


def median_row(name: str, values: Sequence[float], unit: str, command: str, bar: Bar | None = None) -> Row:
    """The row of several runs: their median, and all of them. A bar is judged by the median as measured, before
    rounding. Raises ValueError without values or for one that is not finite."""
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"{name}: {values} is nothing to take a median of")
    median = statistics.median(values)
    holds = bar.holds(median) if bar else None
    return Row(name, round_3(median), unit, str(bar) if bar else None, holds, command, list(values))


def failed_row(name: str, reason: str, command: str) -> Row:
    """The row of something that could not be measured."""
    return Row(f"{name}: not measured: {reason}", None, "", None, False, command)


def skipped_row(name: str, reason: str, command: str) -> Row:
    """The row of something for which the machine lacks what it needs. No failure, and no bar that holds."""
    return Row(f"{name}: {reason}", None, SKIPPED, None, None, command)


def measured_rows(rows: Sequence[Row]) -> list[Row]:
    """Without those that were not measured and have no bar: one line that says why is enough."""
    return [row for row in rows if row.value is not None or row.bar is not None]


def round_3(value: float) -> float:
    """Three digits for small numbers, whole ones from 1000 on: more is noise."""
    if value == 0:
        return 0.0
    return round(value, max(0, 2 - math.floor(math.log10(abs(value)))))


def as_json(rows: Sequence[Row], about: Mapping[str, object]) -> str:
    """`about`: what `about.py` says of machine and versions."""
    return json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"


def write(path: Path, rows: Sequence[Row], about: Mapping[str, object]) -> None:
    """Under another name first: a run that is broken off leaves the last file as it was."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(as_json(rows, about))
    partial.replace(path)


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print the table and how many bars hold."""
    table = Table(title=title, show_lines=False)
    table.add_column("what", overflow="fold")
    for column in ("value", "unit", "bar", ""):
        table.add_column(column, justify="right", no_wrap=True)
    marks = {True: "[green]holds[/green]", False: "[red]missed[/red]", None: ""}
    for row in rows:
        value = "-" if row.value is None else f"{row.value:g}"
        table.add_row(f"{row.row}{row.spread}".replace("[", r"\["), value, row.unit, row.bar or "", marks[row.holds])
    console.print(table)
    barred = [row for row in rows if row.holds is not None]
    console.print(f"{sum(bool(row.holds) for row in barred)} of {len(barred)} bars hold")
