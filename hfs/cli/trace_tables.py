"""The tables of `hfs trace simulate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.markup import escape

from hfs.cli.figures import count, duration, size
from hfs.cli.render import new_table, stdout
from hfs.planning.recorded import Recorded
from hfs.planning.simulating import Row, SimulationInputs, advice

_NAMES = {
    "latency_s": "a fetch from SOURCE takes",
    "source_rate": "SOURCE gives all nodes together",
    "between_s": "between two reads of a reader",
    "readers": "readers of a node",
}


def show(found: Recorded, inputs: SimulationInputs, made: Sequence[Row], best: Row, whole_bytes: int) -> None:
    """Print what was simulated, and what is recommended."""
    console = stdout()
    table = new_table("inputs", "", "value", "")
    table.columns[1].justify = "right"
    files = len(set(found.pieces.files.tolist()))
    table.add_row("data", size(found.bytes), f"{count(files, 'file')}; a cache of {size(whole_bytes)} holds all")
    order = "in the order of the names" if found.in_order else "in random order"
    table.add_row("epochs in the trace", f"{len(found.epochs)}", order)
    for name, title in _NAMES.items():
        given = getattr(inputs, name)
        table.add_row(
            title, _value(name, given.value), escape(f"{given.origin} ({given.note})" if given.note else given.origin)
        )
    console.print(table)
    several = any(row.nodes > 1 for row in made)
    columns = [
        "eviction",
        *(["nodes"] if several else []),
        "cache",
        "hits",
        "from SOURCE",
        *(["from nodes"] if several else []),
    ]
    table = new_table("epochs after the first", *columns, "epoch", "first epoch", "")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in made:
        each = [sum(getattr(o, name) for o in row.later) / len(row.later) for name in ("source_bytes", "peer_bytes")]
        table.add_row(
            row.way,
            *([f"{row.nodes}"] if several else []),
            size(row.cache_bytes),
            f"{row.hit_share:.1%}",
            size(each[0]),
            *([size(each[1])] if several else []),
            duration(row.later_s),
            duration(row.outcomes[0].seconds),
            "<" if row is best else "",
        )
    console.print(table)
    for line in advice(made, best, whole_bytes, size):
        console.print(line, highlight=False)


def _value(name: str, value: float) -> str:
    if name == "readers":
        return f"{value:.0f}"
    if not math.isfinite(value):
        return "-"
    return f"{size(value)}/s" if name.endswith("_rate") else duration(value)
