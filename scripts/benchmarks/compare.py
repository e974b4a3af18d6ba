"""`scripts/bench compare OLD NEW`: what got better or worse from one file of rows to another.

A row is worse (or better) when each median lies outside of the other's runs, and 3 % apart. One run alone says nothing
of its spread: it is taken to be 10 % either way. Which way is better is told by the bar, else by the unit; a row of
which neither tells is shown and not judged. Files of several benchmarks may be one directory each.

Exit codes: 0 nothing is worse; 1 something is, or a row that was measured is not any more; 2 usage.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.benchmarks.table import round_3

LEAST_CHANGE = 0.03
"""What nobody would call a change, whatever two quiet runs say."""
SPREAD_OF_ONE = 0.10
LESS_IS_BETTER = {"s", "ms", "us", "ns", "B", "KB", "MB", "GB", "MiB", "% of time"}
MORE_IS_BETTER = {"/s", "MB/s", "GB/s", "MiB/s", "files/s", "samples/s"}

Key = tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """One row of a file. `better`: 1 where more is better, -1 where less is, 0 where nothing tells."""

    value: float | None
    unit: str
    values: Sequence[float]
    better: int

    @property
    def least(self) -> float:
        return min(self.values) if len(self.values) > 1 else self._one - abs(self._one) * SPREAD_OF_ONE

    @property
    def most(self) -> float:
        return max(self.values) if len(self.values) > 1 else self._one + abs(self._one) * SPREAD_OF_ONE

    @property
    def _one(self) -> float:
        return 0.0 if self.value is None else self.value

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        spread = f" ({round_3(self.least):g} to {round_3(self.most):g})" if len(self.values) > 1 else ""
        return f"{self.value:g}{spread}"


def verdict(old: Measured, new: Measured) -> str:
    """ "worse", "better", "gone" (measured no more), or empty: the same as far as can be told."""
    if old.value is None or new.value is None:
        return "gone" if new.value is None and old.value is not None else ""
    if not new.better or abs(new.value - old.value) <= LEAST_CHANGE * abs(old.value):
        return ""
    grown = new.value > old.most and old.value < new.least
    shrunk = new.value < old.least and old.value > new.most
    if not (grown or shrunk):
        return ""
    return "better" if grown == (new.better > 0) else "worse"


def rows_of(record: dict[str, Any]) -> Iterator[tuple[Key, Measured]]:
    """By command and name; a row that begins with spaces belongs to the one above it that has fewer."""
    above: list[str] = []
    for row in record["rows"]:
        name = row["row"]
        depth = (len(name) - len(name.lstrip())) // 2
        above = [*above[:depth], name.strip()]
        key = (row["command"], *above)
        yield key, Measured(row["value"], row["unit"], row.get("values") or (), _better(row))


def _better(row: dict[str, Any]) -> int:
    if row["bar"]:
        return 1 if row["bar"].startswith(">=") else -1
    if row["unit"] == "x":  # of speeds or of times: the innermost name says it, or nothing does
        return ("speed" in row["row"]) - ("time" in row["row"])
    return (row["unit"] in MORE_IS_BETTER) - (row["unit"] in LESS_IS_BETTER)


def read(path: Path) -> dict[Key, Measured]:
    """A file, or all *.json of a directory. Raises OSError, ValueError, KeyError."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return {key: row for file in files for key, row in rows_of(json.loads(file.read_text()))}


def main(arguments: Sequence[str]) -> int:
    words = argparse.ArgumentParser(prog="scripts/bench compare", description=__doc__.partition("\n\n")[2])
    words.add_argument("old", type=Path, metavar="OLD", help="a file that --json has written, or a directory of such")
    words.add_argument("new", type=Path, metavar="NEW", help="the same, later")
    words.add_argument("--all", action="store_true", help="show what stayed the same as well")
    args = words.parse_args(arguments)
    try:
        old, new = read(args.old), read(args.new)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench compare: {error}", file=sys.stderr)
        return 2
    shared = [key for key in old if key in new]
    if not shared:
        print("bench compare: the two have no row in common", file=sys.stderr)
        return 2
    found = {key: verdict(old[key], new[key]) for key in shared}
    table = Table(title=f"{args.old} -> {args.new}")
    table.add_column("what", overflow="fold")
    for column in ("old", "new", "unit", ""):
        table.add_column(column, justify="right")
    colours = {"worse": "red", "gone": "red", "better": "green"}
    for key in shared:
        if found[key] or args.all:
            said = f"[{colours[found[key]]}]{found[key]}" if found[key] else ""
            table.add_row(" / ".join(key[1:]).replace("[", r"\["), str(old[key]), str(new[key]), new[key].unit, said)
    console = Console(highlight=False)
    if table.row_count:
        console.print(table)
    counts = {word: sum(said == word for said in found.values()) for word in ("better", "worse", "gone")}
    only = f"; {len(old) - len(shared)} rows only in the old, {len(new) - len(shared)} only in the new"
    console.print(f"{len(shared)} rows: " + ", ".join(f"{count} {word}" for word, count in counts.items()) + only)
    return 1 if counts["worse"] or counts["gone"] else 0
