"""`scripts/bench guard OTHER`: what a user feels, of this checkout and of another one that is built, in turns.

For before a larger change is merged: OTHER is a clone at the commit to compare with, set up by scripts/setup. The runs
are quick ones, in turns; a row is worse where its runs lie outside of the other's and its median is 3 % apart.

Exit codes: 0 nothing is worse; 1 something is, or was not measured; 2 usage.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.benchmarks.common import ROOT
from scripts.benchmarks.compare import Key, Measured, rows_of, verdict

PIECES = ("planes-warm", "planes-later", "planes-random", "first-epoch-cold", "first-epoch-batches", "mount-sequential")
ROWS = (
    *("CPU of the daemon a file", "of that of Python", "speed / floor", "files a second", "speed-up", "share of the"),
    *("first batch", "an open:", "a random", "later job"),
)
"""Names of rows begin so, or have this in them."""
TURNS = 3

Rows = Mapping[Key, Measured]


def main(arguments: Sequence[str]) -> int:
    words = argparse.ArgumentParser(prog="scripts/bench guard", description=__doc__.partition("\n\n")[2])
    words.add_argument(
        "other", type=Path, metavar="OTHER", help="a checkout of another commit that scripts/setup has set up"
    )
    words.add_argument("--turns", type=int, default=TURNS, metavar="N", help="runs of each side (default %(default)s)")
    words.add_argument("--only", metavar="PREFIX", default="", help="pieces whose names begin so")
    args = words.parse_args(arguments)
    if not (args.other / ".venv" / "bin" / "hfs").exists() or args.turns < 1:
        words.error(f"{args.other} is not set up (scripts/setup), or --turns is below 1")
    chosen, console = [name for name in PIECES if name.startswith(args.only)], Console(highlight=False)
    begun_s, runs = time.monotonic(), {"old": [], "new": []}  # type: dict[str, list[Rows]]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            for side in ("old", "new") if turn % 2 else ("new", "old"):
                console.print(f"turn {turn + 1} of {args.turns}, {side}: {time.monotonic() - begun_s:.0f} s so far")
                runs[side].append(_measured(args.other if side == "old" else ROOT, chosen, Path(folder)))
    return _shown(console, _together(runs["old"]), _together(runs["new"]))


def _measured(checkout: Path, pieces: Sequence[str], folder: Path) -> Rows:
    """One run of each piece there; without those that could not be measured."""
    found: dict[Key, Measured] = {}
    for piece in pieces:
        benchmark, group = piece.rsplit("-", 1)
        file = folder / "rows.json"
        file.unlink(missing_ok=True)
        command = [checkout / "scripts" / "bench", benchmark, "--only", group, "--quick", "--json", file]
        subprocess.run(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if file.exists():
            record: dict[str, Any] = json.loads(file.read_text())
            found |= {key: row for key, row in rows_of(record) if any(words in key[-1] for words in ROWS)}
    return found


def _together(runs: Sequence[Rows]) -> dict[Key, Measured]:
    """The median of the runs, and all of them."""

    def of(key: Key) -> Iterator[Measured]:
        return (run[key] for run in runs if key in run and run[key].value is not None)

    found = {}
    for key, row in {key: row for run in runs for key, row in run.items()}.items():
        values = [float(one.value) for one in of(key) if one.value is not None]
        median = statistics.median(values) if len(values) == len(runs) else None
        found[key] = Measured(median, row.unit, values, row.better)
    return found


def _shown(console: Console, old: Rows, new: Rows) -> int:
    table = Table(title="what a user feels")
    table.add_column("what", overflow="fold")
    for column in ("old", "new", "unit", ""):
        table.add_column(column, justify="right")
    worse = 0
    for key, before in old.items():
        after = new.get(key, Measured(None, before.unit, (), before.better))
        said = verdict(before, after)
        worse += said in {"worse", "gone"}
        table.add_row(" / ".join(key[1:]).replace("[", r"\["), str(before), str(after), before.unit, said)
    console.print(table)
    console.print(f"{len(old)} rows, {worse} worse")
    return 1 if worse or not old else 0
