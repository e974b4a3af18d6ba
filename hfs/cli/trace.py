"""`hfs trace simulate`: hits and epoch times of a recorded job with other caches, evictions and numbers of nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import click

from hfs.cli import CommandGroup
from hfs.cli.figures import count, duration, size
from hfs.cli.reporting import under_bar
from hfs.cli.shared import complain
from hfs.mountd.core.config.key import parse_duration, parse_size
from hfs.mountd.core.errors import ConfigError
from hfs.planning.planning import Given, NotMeasured, file_rate, look_through, rate_of
from hfs.planning.simulating import (
    MOST_NODES,
    PARTS,
    Recorded,
    Row,
    SimulationInputs,
    advice,
    fits_bytes,
    inputs_of,
    load,
    mount_of,
    recommended,
    recorded,
    rows,
)
from hfs.policies.cache.eviction import DEFAULT
from hfs.policies.simulation.node import WAYS

_EPOCHS = 3
"""The first, and two after it: where the cache is full they are alike."""
_NAMES = {
    "latency_s": "a fetch from SOURCE takes",
    "source_rate": "SOURCE gives all nodes together",
    "between_s": "between two reads of a reader",
    "readers": "readers of a node",
}


@click.group(cls=CommandGroup)
def trace() -> None:
    """Use what `hfs-hint record` has kept of a job."""


@trace.command(
    examples=[
        "hfs trace simulate train.trace --cache-size 120GB --cache-size 240GB --eviction lru --nodes 1 --nodes 4",
    ]
)
@click.argument("trace", type=click.UNPROCESSED)
@click.option(
    "--cache-size", "sizes", metavar="SIZE", multiple=True, help="Of each node; several. [default: parts of the data]"
)
@click.option(
    "--eviction",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help=f"Several. hinted: {DEFAULT}, with hints. [default: all]",
)
@click.option(
    "--nodes",
    "nodes",
    type=click.IntRange(1, MOST_NODES),
    multiple=True,
    help="That share their caches; several. [default: 1]",
)
@click.option("--epochs", type=click.IntRange(1, 100), default=_EPOCHS, show_default=True, help="The first included.")
@click.option("--source-latency", metavar="TIME", help="One fetch, like 4ms. [default: as recorded]")
@click.option(
    "--source-rate", metavar="RATE", help="What SOURCE gives to all nodes together, like 500MB/s or '1300 samples/s'."
)
@click.option("--compute", metavar="TIME", help="What a reader does between two reads. [default: as recorded]")
@click.option("--readers", type=click.IntRange(1, 4096), help="On each node. [default: as recorded]")
@click.option("--measure", "source", metavar="SOURCE", help="Measure latency and rate of SOURCE, in 10 s.")
@click.option(
    "-o", "options", metavar="KEY=VALUE", multiple=True, help="Of the mount: ttl, siblings, buffer, chunk, ..."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def simulate(
    trace: str,
    sizes: tuple[str, ...],
    ways: tuple[str, ...],
    nodes: tuple[int, ...],
    epochs: int,
    options: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Say what a recorded job gets out of other caches: hits, and how long its epochs take.

    TRACE is what `hfs-hint record` has kept of its first epoch on a fresh mount. One row for each combination. What
    the kernel's page cache spares comes on top.
    """
    mount, chunk_bytes = mount_of(options)
    found = recorded(load(trace), chunk_bytes)
    inputs = inputs_of(found, _given(found.bytes / len(found.pieces), **given))
    whole_bytes = fits_bytes(found.pieces)
    cache_sizes = [_size(text) for text in sizes] or [round(whole_bytes * part) for part in PARTS]
    wanted, counts = ways or WAYS, nodes or [1]
    work = rows(found, inputs, mount, cache_sizes=cache_sizes, ways=wanted, nodes=counts, epochs=epochs)
    number = len(cache_sizes) * len(wanted) * len(counts)
    made = under_bar(work, number, "mount", "to simulate", "simulated; nothing is kept of them")
    for note in found.notes:
        complain(note)
    best = recommended(made)
    if as_json:
        data = {"files": len(set(found.pieces.files.tolist())), "bytes": found.bytes, "cache_bytes": whole_bytes}
        shown = {"inputs": inputs.shown(), "data": data, "notes": found.notes}
        click.echo(json.dumps({**shown, "rows": [row.shown() for row in made], "recommended": best.shown()}))
    else:
        _show(found, inputs, made, best, whole_bytes)


def _size(text: str) -> int:
    try:
        found = parse_size(text)
    except (ValueError, TypeError):
        found = 0
    if not found:
        raise ConfigError(f"--cache-size is {text!r}: give a size like 240GB")
    return found


def _duration(option: str, text: str) -> Given:
    try:
        return Given(parse_duration(text), "given")
    except (ValueError, TypeError):
        raise ConfigError(f"{option} is {text!r}: give a time like 4ms") from None


def _given(
    mean_bytes: float,
    source_latency: str | None,
    source_rate: str | None,
    compute: str | None,
    readers: int | None,
    source: str | None,
) -> dict[str, Given]:
    """What is not to be taken from the trace."""
    found = _measured(source) if source is not None else {}
    if source_latency is not None:
        found["latency_s"] = _duration("--source-latency", source_latency)
    if source_rate is not None:
        samples_a_second = rate_of("--source-rate", source_rate, mean_bytes)
        found["source_rate"] = Given(samples_a_second * mean_bytes, "given")
    if compute is not None:
        found["between_s"] = _duration("--compute", compute)
    if readers is not None:
        found["readers"] = Given(readers, "given")
    return found


def _measured(source: str) -> dict[str, Given]:
    """Latency by one reader, rate by many. Raises NotMeasured."""
    data = look_through(source)
    complain(f"measuring {source} ...")
    half = len(data.paths) // 2 or 1
    alone = file_rate(data.paths[:half], threads=1)
    together = file_rate(data.paths[half:] or data.paths)
    if not alone.files:
        raise NotMeasured(f"{source}: nothing was read")
    note = "by this node alone; several may get more"
    return {
        "latency_s": Given(1 / alone.files_a_second, "measured", "a file, its bytes included"),
        "source_rate": Given(together.bytes_a_second, "measured", note),
    }


def _show(found: Recorded, inputs: SimulationInputs, made: Sequence[Row], best: Row, whole_bytes: int) -> None:
    """Print what was simulated, and what is recommended."""
    from rich.markup import escape

    from hfs.cli.render import new_table, stdout

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
