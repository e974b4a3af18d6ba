"""The tables of `hfs plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from hfs.cli.figures import count, duration, size
from hfs.cli.render import new_table, stdout
from hfs.planning.planning import RATES
from hfs.policies.cluster.cost_model import WAYS

TITLES = {
    "direct": "direct",
    "node_cache": "node cache",
    "distributed": "shared caches",
    "locality": "locality-aware",
}


def show(found: Mapping[str, Any]) -> None:
    """Print what `hfs.planning.planning.epochs` has found."""
    console = stdout()
    console.print(_inputs_table(found["inputs"]))
    table = _table("an epoch after the first", "nodes", "training", *(TITLES[way] for way in WAYS))
    for row in found["epochs"]:
        cells = [duration(row["train_s"])]
        for way in WAYS:
            waits = row[f"{way}_s"] > row["train_s"] * (1 + 1e-9)
            cells.append(f"[yellow]{duration(row[f'{way}_s'])}[/yellow]" if waits else duration(row[f"{way}_s"]))
        table.add_row(f"{row['nodes']:,}", *cells)
    console.print(table)
    # A table of its own: as rows of the one above, what they are called would leave its figures no room on 80 columns.
    table = _table("on how many nodes", "", "training waits for data", "twice as many gain < 10 %")
    for way in WAYS:
        counts: list[int | None] = [found["ways"][way][name] for name in ("waits_from", "gains_end")]
        table.add_row(TITLES[way], *("never" if least is None else f"from {count(least, 'node')}" for least in counts))
    console.print(table)


def _inputs_table(inputs: Mapping[str, Any]) -> Table:
    table = _table("inputs", "", "value", "", "")
    sample_bytes = inputs["dataset_bytes"]["value"] / inputs["samples"]["value"]
    table.add_row("data set", size(inputs["dataset_bytes"]["value"]), "", inputs["dataset_bytes"]["origin"])
    table.add_row(
        "samples", f"{inputs['samples']['value']:,.0f}", f"{size(sample_bytes)} each", inputs["samples"]["origin"]
    )
    for name, meaning in RATES.items():
        rate = inputs[f"{name}_rate"]
        value = rate["value"]
        shown = ("-", "") if value is None else (f"{value:,.6g} samples/s", f"{size(value * sample_bytes)}/s")
        note = f" ({rate['note']})" if rate["note"] else ""
        table.add_row(meaning, *shown, escape(rate["origin"] + note))
    cache, step = inputs["cache_bytes"], inputs["step_samples"]
    note = f" ({cache['note']})" if cache["note"] else ""
    table.add_row(
        "cache of a node", "-" if cache["value"] is None else size(cache["value"]), "", cache["origin"] + note
    )
    table.add_row("samples of a node in a step", f"{step['value']:,.0f}", "", step["origin"])
    return table


def show_imbalance(rows: list[dict[str, Any]]) -> None:
    """Print the rows of `hfs plan --imbalance`."""
    columns = ("samples of a node", "nodes", "median", "half of all", "estimate")
    table = _table("share of a global batch that moves for balance", *columns)
    for row in rows:
        table.add_row(
            f"{row['step_samples']:,}",
            f"{row['nodes']:,}",
            f"{row['median']:.2%}",
            f"{row['quartile_1']:.2%} to {row['quartile_3']:.2%}",
            f"{row['estimate']:.2%}",
        )
    stdout().print(table)


def _table(title: str, *columns: str) -> Table:
    """Figures stand to the right, except in the first column and one without a title at the end."""
    table = new_table(title, *columns)
    for column in table.columns[1 : -1 if columns[-1] == "" else None]:
        column.justify = "right"
    return table
