"""The command line of scripts/bench: which rows of which benchmark, how often, and where the result goes.

A group that fails becomes rows that say so; the others are measured all the same.
"""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from scripts.benchmarks import (
    about,
    async_io,
    codecs,
    common,
    compare,
    eviction,
    fastpath,
    first_epoch,
    house,
    lmdbio,
    loading,
    mount,
    native,
    node,
    nodes,
    peers,
    planes,
    recipes,
    status,
    table,
    trace,
    trust,
    why,
)
from scripts.benchmarks.options import Options

BENCHMARKS = {
    "async-io": async_io,
    "codecs": codecs,
    "eviction": eviction,
    "fastpath": fastpath,
    "first-epoch": first_epoch,
    "house": house,
    "lmdbio": lmdbio,
    "loading": loading,
    "mount": mount,
    "native": native,
    "node": node,
    "nodes": nodes,
    "peers": peers,
    "planes": planes,
    "recipes": recipes,
    "status": status,
    "trace": trace,
    "trust": trust,
    "why": why,
}


PLOTS = common.WORK / "plots"


def parser() -> argparse.ArgumentParser:
    usual = ", ".join(f"{name} {benchmark.RUNS}" for name, benchmark in BENCHMARKS.items())
    words = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures what hfs promises. Ratios are taken within a run; a row shows the median of the runs.",
        epilog="scripts/bench compare OLD NEW shows what got better or worse from one file of rows to another; "
        "scripts/bench all measures everything, piece by piece; scripts/bench pages writes the tables of the docs.",
    )
    words.add_argument("name", metavar="NAME", choices=sorted(BENCHMARKS), help="what to measure: %(choices)s")
    words.add_argument("--quick", action="store_true", help="one run, smaller data; the rows say how much smaller")
    words.add_argument("--runs", type=int, metavar="N", help=f"runs of each row (default {usual}; with --quick 1)")
    words.add_argument("--seed", type=int, metavar="N", default=1, help="of the first run of `trust --only calls`")
    words.add_argument("--only", metavar="GROUP[,GROUP...]", help="only these groups of rows")
    words.add_argument(
        "--plots", type=Path, metavar="DIR", default=PLOTS, help="where plots go (default build/bench/plots)"
    )
    words.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["compare"]:
        return compare.main(given[1:])
    if given[:1] in (["all"], ["guard"], ["pages"]):
        from scripts.benchmarks import all_pieces, guard, pages  # they need BENCHMARKS, which are here

        return {"all": all_pieces, "guard": guard, "pages": pages}[given[0]].main(given[1:])
    words = parser()
    args = words.parse_args(given)
    groups = BENCHMARKS[args.name].GROUPS
    chosen = list(groups) if args.only is None else args.only.split(",")
    if unknown := [name for name in chosen if name not in groups]:
        words.error(f"--only: {', '.join(unknown)} is none of {', '.join(groups)}")
    runs = (1 if args.quick else BENCHMARKS[args.name].RUNS) if args.runs is None else args.runs
    if runs < 1:
        words.error("--runs: at least 1")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        words.error(f"--json: {args.json.absolute().parent} is no directory")

    # A closed terminal and a plain kill clean up as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    options = Options(args.quick, runs, args.plots, args.seed)
    rows: list[table.Row] = []
    machine = about.about(common.ROOT, args.name, quick=args.quick, runs=runs)
    console, news = Console(highlight=False), Console(stderr=True, highlight=False)
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cores / 2:
        news.print(f"[yellow]the load of this machine is {busy:.1f} on {cores} cores: times will be noisy[/yellow]")
    try:
        with common.work_folder(common.WORK) as work:
            for name in chosen:
                begin = time.monotonic()
                command = " ".join(["scripts/bench", args.name, "--only", name, *(["--quick"] if args.quick else [])])
                news.print(f"[dim]{name} ...[/dim]")
                try:
                    rows += groups[name](work, options, command)
                except Exception as error:  # noqa: BLE001 - one group that fails must not take the others with it
                    if not isinstance(error, common.BenchError):
                        traceback.print_exc()
                    rows.append(table.failed_row(name, str(error) or type(error).__name__, command))
                news.print(f"[dim]{name}: {time.monotonic() - begin:.0f} s[/dim]")
                if args.json is not None:
                    table.write(args.json, rows, machine)
    except common.BenchError as error:
        news.print(f"bench: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    table.show(console, f"scripts/bench {args.name}{' --quick' if args.quick else ''}", rows)
    return 1 if any(row.value is None and row.unit != table.SKIPPED for row in rows) else 0
