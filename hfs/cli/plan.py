"""`hfs plan`: how long an epoch will take on how many nodes, by each way of loading, before anybody has to try."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from hfs.cli import figures, render
from hfs.cli.command import Command
from hfs.cli.shared import complain
from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.planning.planning import (
    RATES,
    DataSet,
    Given,
    Inputs,
    NotMeasured,
    Rate,
    decode_rate,
    epochs,
    file_rate,
    folder_rate,
    look_through,
    nodes_of,
    rate_of,
)
from hfs.policies.cluster.cost_model import WAYS

_NODES = "1,2,4,8,16,32,64,128,256,512,1024"
_STEP_SAMPLES = 128
_NEEDED = ("storage", "train")
"""Rates that nobody can assume."""
_REMOTE = "12.5GB/s"
"""One link of 100 Gbit/s for all nodes together: little for a cluster, and what the plan then says holds anywhere."""

_TITLES = {
    "direct": "direct",
    "node_cache": "node cache",
    "distributed": "shared caches",
    "locality": "locality-aware",
}
"""Of the ways in which an epoch is loaded."""
_COLOURS = {"direct": "#c0392b", "node_cache": "#e08e0b", "distributed": "#2e86c1", "locality": "#1e8449"}

_RATE_HELP = "Like 200MB/s or '1300 samples/s'."


@click.command(
    cls=Command,
    examples=["hfs plan --dataset 150GB --samples 1281167 --storage-rate 5GB/s --train-rate '1400 samples/s'"],
)
@click.option("--dataset", metavar="SIZE|PATH", help="The data set: its size, like 150GB, or where it lies.")
@click.option("--samples", type=click.IntRange(min=1), help="How many. [default: the files at or below PATH]")
@click.option("--nodes", metavar="N,N,...", default=_NODES, show_default=True, help="Sizes of the job.")
@click.option("--storage-rate", metavar="RATE", help=f"What SOURCE gives to all nodes together. {_RATE_HELP}")
@click.option("--train-rate", metavar="RATE", help="What one node trains on; is never measured or assumed.")
@click.option("--preprocess-rate", metavar="RATE", help="What one node prepares (decodes, crops). [default: no limit]")
@click.option(
    "--remote-rate", metavar="RATE", help=f"What all nodes read from each other's caches. [default: {_REMOTE}]"
)
@click.option("--local-rate", metavar="RATE", help="What one node reads from its own cache. [default: no limit]")
@click.option("--cache", metavar="SIZE", help="The cache of each node. [default: as large as the data set]")
@click.option(
    "--step-samples",
    type=click.IntRange(min=1),
    help=f"Samples that one node trains on in a step. [default: {_STEP_SAMPLES}]",
)
@click.option("--measure", is_flag=True, help="Measure on this machine what is not given: needs a PATH; 5 s a rate.")
@click.option("--cache-dir", metavar="DIR", help="Where --measure measures the cache. [default: that of PATH's mount]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False), help="Draw it as well (needs matplotlib).")
def plan(nodes: str, as_json: bool, plot: str | None, **given: Any) -> None:
    """Say how long an epoch takes on 1 to 1024 nodes and where more nodes gain nothing.

    Four ways of loading: directly from SOURCE; with a cache on each node; with caches that the nodes share; and with
    batches that are divided by who has what (LocalityAwareSampler). Epochs after the first, which is as the direct way;
    the equations are those of Yang and Cong. --storage-rate and --remote-rate are of all nodes together, --train-rate,
    --preprocess-rate and --local-rate of one node.
    """
    if plot is not None:
        _check_plot(plot)
    counts = nodes_of(nodes)
    found = epochs(_inputs(**given), counts)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)
    if plot is not None:
        _draw(found, plot)


def _check_plot(file: str) -> None:
    """See that a picture can be drawn there, before anything is asked or computed for it. Raises ConfigError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib")
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise ConfigError(f"--plot {file}: {folder} is no directory")
    if os.path.splitext(file)[1] not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"--plot {file}: give a file that ends in .png, .svg or .pdf")


def _inputs(
    dataset: str | None,
    samples: int | None,
    cache: str | None,
    step_samples: int | None,
    measure: bool,
    cache_dir: str | None,
    **rates: str | None,
) -> Inputs:
    """Raises ConfigError for all that is missing at once, and for what cannot be; NotMeasured."""
    if dataset is None:
        raise ConfigError(_missing(None, samples, measure, rates))
    size, found = _size(dataset), None
    if size is None:
        found = look_through(dataset)
        size = found.bytes
    if not size:
        raise ConfigError(f"--dataset is {dataset!r}: give more than 0")
    count = samples or (found.files if found is not None else 1)
    sample_bytes = size / count
    known, faults = {}, []
    for name in RATES:
        if (text := rates[f"{name}_rate"]) is not None:
            try:
                known[name] = Given(rate_of(f"--{name}-rate", text, sample_bytes), "given")
            except ConfigError as error:
                faults.append(str(error))
    if missing := _missing(dataset, samples, measure, rates):
        faults.append(missing)
    if faults:
        raise ConfigError("; and ".join(faults))
    if measure and found is not None:
        known = {**_measured(dataset, found, sample_bytes, cache_dir, set(known)), **known}
    assumed = {
        "preprocess": Given(math.inf, "assumed", "no limit"),
        "remote": Given(rate_of("", _REMOTE, sample_bytes), "assumed", "one link of 100 Gbit/s"),
        "local": Given(math.inf, "assumed", "no limit, as in the paper"),
    }
    assert {*RATES} - {*assumed} == set(_NEEDED)
    cache_bytes = Given(math.inf, "assumed", "all of the data set fits")
    if cache is not None:
        bytes_ = _size(cache)
        if bytes_ is None:
            raise ConfigError(f"--cache is {cache!r}: give a size like 1.5TB")
        cache_bytes = Given(bytes_, "given")
    return Inputs(
        dataset_bytes=Given(size, "given" if found is None else "measured"),
        samples=Given(count, "given" if samples else "measured"),
        rates={name: known.get(name) or assumed[name] for name in RATES},
        cache_bytes=cache_bytes,
        step_samples=Given(step_samples or _STEP_SAMPLES, "given" if step_samples else "assumed"),
    )


def _missing(dataset: str | None, samples: int | None, measure: bool, rates: dict[str, str | None]) -> str:
    """All that is to be given; empty: nothing."""
    is_size = dataset is not None and _size(dataset) is not None
    if is_size and measure:
        return "--measure reads the data set: give its path as --dataset"
    missing = []
    if dataset is None:
        missing.append("--dataset: the size of the data set, like 150GB, or where it lies")
    if is_size and samples is None:
        missing.append("--samples N: how many a data set has of which only the size is given")
    for name in _NEEDED:
        if rates[f"{name}_rate"] is None and not (name == "storage" and measure):
            also = " (or --measure, with the data set's path)" if name == "storage" else ""
            missing.append(f"--{name}-rate{also}: {RATES[name]}, like 200MB/s or '1300 samples/s'")
    return "give " + "; and ".join(missing) if missing else ""


def _size(text: str) -> int | None:
    """Bytes; None: no size."""
    try:
        return parse_size(text)
    except (ValueError, TypeError):
        return None


def _measured(
    path: str,
    found: DataSet,
    sample_bytes: float,
    cache_dir: str | None,
    given: set[str],
) -> dict[str, Given]:
    """The rates that can be measured here, but those that are given. What could not be is said."""
    from hfs.client.client import Client, find_socket
    from hfs.mounting import mountinfo

    paths = list(found.paths)
    place = mountinfo.canonical(path)
    mount = mountinfo.enclosing(place)
    if mount is not None and mount.fstype == mountinfo.HFS_TYPE:
        # The mount's source, not what the mount has of it. Its own root may be the mountpoint (--over): then the mount.
        status = Client(find_socket(place)).status()
        is_trusted = mount.owner_uid in {None, 0, os.geteuid()}  # files are written in the cache that it names
        told = ((status.get("config") or {}).get("cache") or {}).get("value")
        cache_dir = cache_dir or (told if is_trusted and isinstance(told, str) else None)
        root = mount.mountpoint.rstrip("/")
        source = ((status.get("source") or {}).get("path") or root).rstrip("/")  # others are not told
        if is_trusted and source != root:
            paths = [source + mountinfo.canonical(file)[len(root) :] for file in paths]
    rates: dict[str, Given] = {}

    def attempt(name: str, note: str, measure: Callable[[], Rate]) -> None:
        if name in given:
            return
        complain(f"measuring {RATES[name]} ...")
        try:
            rates[name] = Given(measure().bytes_a_second / sample_bytes, "measured", note)
        except NotMeasured as error:
            complain(f"not measured: {error}")

    attempt("storage", "by this node alone; several may get more", lambda: file_rate(paths))
    if cache_dir is not None:
        attempt("local", f"in {cache_dir}", lambda: folder_rate(cache_dir))
    if "preprocess" not in given:
        attempt("preprocess", "decoding by Pillow on all cores", lambda: decode_rate(paths))
    if "storage" not in {*rates, *given}:
        raise HfsError(f"{path}: its rate could not be measured: give --storage-rate")
    return rates


def _draw(found: Mapping[str, Any], file: str) -> None:
    """Seconds of an epoch over the number of nodes, both logarithmic; the paper's figure 1, for each way of loading.
    Raises ConfigError where the picture cannot be kept."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # needs no screen
    axis = figure.subplots()
    nodes = [row["nodes"] for row in found["epochs"]]
    # Ways that take the same time lie on each other: the later ones are narrower, so that all are seen.
    for width, way in zip((8, 6, 4, 2), WAYS, strict=True):
        seconds = [row[f"{way}_s"] for row in found["epochs"]]
        colour, title = _COLOURS[way], _TITLES[way]
        axis.plot(nodes, seconds, color=colour, linewidth=width, marker="o", markersize=width + 2, label=title)
    training = [row["train_s"] for row in found["epochs"]]
    axis.plot(nodes, training, color="black", linestyle=":", linewidth=1.5, label="training alone")
    axis.set_xscale("log", base=2)
    axis.set_xticks(nodes, [str(count) for count in nodes])
    axis.minorticks_off()
    axis.set_xlabel("nodes")
    axis.set_yscale("log")
    axis.set_ylabel("seconds of an epoch")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written ({error.strerror}); give another FILE") from None


def _show(found: Mapping[str, Any]) -> None:
    """Print what `hfs.planning.planning.epochs` has found."""
    console = render.stdout()
    console.print(_inputs_table(found["inputs"]))
    table = _table("an epoch after the first", "nodes", "training", *(_TITLES[way] for way in WAYS))
    for row in found["epochs"]:
        cells = [figures.duration(row["train_s"])]
        for way in WAYS:
            shown, waits = figures.duration(row[f"{way}_s"]), row[f"{way}_s"] > row["train_s"] * (1 + 1e-9)
            cells.append(f"[yellow]{shown}[/yellow]" if waits else shown)
        table.add_row(f"{row['nodes']:,}", *cells)
    console.print(table)
    # A table of its own: as rows of the one above, what they are called would leave its figures no room on 80 columns.
    table = _table("on how many nodes", "", "training waits for data", "twice as many gain < 10 %")
    for way in WAYS:
        least: list[int | None] = [found["ways"][way][name] for name in ("waits_from", "gains_end")]
        shown_least = ("never" if count is None else f"from {figures.count(count, 'node')}" for count in least)
        table.add_row(_TITLES[way], *shown_least)
    console.print(table)


def _inputs_table(inputs: Mapping[str, Any]) -> Table:
    table = _table("inputs", "", "value", "", "")
    sample_bytes = inputs["dataset_bytes"]["value"] / inputs["samples"]["value"]
    table.add_row("data set", figures.size(inputs["dataset_bytes"]["value"]), "", inputs["dataset_bytes"]["origin"])
    samples = inputs["samples"]
    table.add_row("samples", f"{samples['value']:,.0f}", f"{figures.size(sample_bytes)} each", samples["origin"])
    for name, meaning in RATES.items():
        rate = inputs[f"{name}_rate"]
        value = rate["value"]
        shown = ("-", "") if value is None else (f"{value:,.6g} samples/s", f"{figures.size(value * sample_bytes)}/s")
        note = f" ({rate['note']})" if rate["note"] else ""
        table.add_row(meaning, *shown, escape(rate["origin"] + note))
    cache, step = inputs["cache_bytes"], inputs["step_samples"]
    note = f" ({cache['note']})" if cache["note"] else ""
    table.add_row(
        "cache of a node", "-" if cache["value"] is None else figures.size(cache["value"]), "", cache["origin"] + note
    )
    table.add_row("samples of a node in a step", f"{step['value']:,.0f}", "", step["origin"])
    return table


def _table(title: str, *columns: str) -> Table:
    """Figures stand to the right, except in the first column and one without a title at the end."""
    table = render.new_table(title, *columns)
    for column in table.columns[1 : -1 if columns[-1] == "" else None]:
        column.justify = "right"
    return table
