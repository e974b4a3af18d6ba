"""`hfs encode`: makes encoded samples of those in HDF5 and NumPy files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import click

from hfs.cli import figures, render
from hfs.cli.command import Command
from hfs.cli.exit_codes import FAILED, PARTLY
from hfs.cli.shared import complain
from hfs.codecs.accuracy import Accuracy
from hfs.codecs.converting import Outcome, encode_sample, in_processes
from hfs.codecs.dataset import SUFFIX
from hfs.codecs.registry import codecs
from hfs.codecs.sources import Many, found
from hfs.mountd.base.errors import ConfigError
from hfs.mountd.base.printable import printable

_SHOWN = 20
"""Faults that are shown of many."""

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: len(os.sched_getaffinity(0)),
    metavar="N",
    help="Processes at work at once. [default: as many as there are cores]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="The sums as one JSON object.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files of DST that exist.")


@click.command(cls=Command, examples=["hfs encode /lustre/cosmoflow /lustre/cosmoflow-encoded --jobs 16"])
@click.argument("source", metavar="SRC", type=click.Path(exists=True))
@click.argument("destination", metavar="DST", type=click.Path(file_okay=False))
@click.option(
    "--codec",
    default="auto",
    metavar="CODEC",
    help="cosmoflow (counts, lossless), deepcam (float32 fields, lossy), plain, or auto: by the type of the values.",
)
@click.option("--data", "name", metavar="NAME", help="The array to encode. [default: the largest of a file]")
@click.option(
    "--samples",
    "many",
    type=click.Choice(["auto", "one", "many"]),
    default="auto",
    help="One sample a file, or many along the first axis. [default: by the number of axes]",
)
@click.option(
    "--channels", type=click.Choice(["first", "last"]), help="The axis of the channels. [default: the shorter]"
)
@click.option(
    "--max-relative-error",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="E",
    help="deepcam: no value differs by more than this share of itself.",
)
@jobs_option
@overwrite_option
@json_option
@click.pass_context
def encode(
    ctx: click.Context,
    source: str,
    destination: str,
    codec: str,
    name: str | None,
    many: Many,
    channels: str | None,
    max_relative_error: float | None,
    jobs: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Encode the samples in SRC (HDF5, .npy, .npz, or a directory of such) into .hfsc files in DST.

    Every sample is decoded again and compared. The other arrays of a file (labels) are kept beside it as they are;
    texts and attributes are not. Exit codes: 0 done, 1 failed, 2 usage, 3 some samples could not be encoded.
    """
    if codec not in {"auto", *codecs()}:
        raise ConfigError(f"codec: {codec!r} is not known; there are auto, {', '.join(codecs())}")
    samples, faults = found(source, name, many)
    refuse_existing([os.path.join(destination, one.output + SUFFIX) for one in samples], overwrite=overwrite)
    options = {"channels": channels, "max_relative_error": max_relative_error}
    outcomes = worked(len(samples), in_processes(encode_sample, samples, (destination, codec, options), jobs))
    outcomes += [Outcome(path, fault=str(error)) for path, error in faults.items()]
    show(ctx, "encoded", outcomes, as_json=as_json)


def refuse_existing(outputs: list[str], *, overwrite: bool) -> None:
    """Raises ConfigError for two samples of one name, and for files that exist."""
    if len(set(outputs)) < len(outputs):
        double = next(one for one in outputs if outputs.count(one) > 1)
        raise ConfigError(f"{double} would be made twice: files of one name and several suffixes; convert them apart")
    if not overwrite and (there := [one for one in outputs if os.path.exists(one)]):
        raise ConfigError(f"{there[0]} exists" + f" (and {len(there) - 1} more)" * (len(there) > 1) + ": --overwrite?")


def worked(count: int, work: Iterator[Outcome]) -> list[Outcome]:
    """What came of the work, which is done under a progress bar."""
    from rich import progress

    outcomes: list[Outcome] = []
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
    console = render.stderr()
    with progress.Progress(
        *columns, progress.TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("samples", total=count)
        for outcome in work:
            outcomes.append(outcome)
            bar.advance(task)
    return outcomes


def show(ctx: click.Context, done: str, outcomes: list[Outcome], *, as_json: bool) -> None:
    """Say what came of the work. Ends the command with its exit code if something failed."""
    faults = sorted((one for one in outcomes if one.fault), key=lambda one: one.name)
    if as_json:
        right = [one for one in outcomes if not one.fault]
        sums = {
            "raw_bytes": sum(one.raw_bytes for one in right),
            "encoded_bytes": sum(one.encoded_bytes for one in right),
        }
        named = [{"sample": printable(one.name), "message": str(one.fault)} for one in faults]
        click.echo(json.dumps({"samples": len(right), "failed": len(faults), **sums, "faults": named}))
        if faults:
            ctx.exit(PARTLY if right else FAILED)
        return
    for one in faults[:_SHOWN]:
        complain(f"{one.name}: {one.fault}" if one.name not in str(one.fault) else str(one.fault))
    if len(faults) > _SHOWN:
        complain(f"{len(faults) - _SHOWN:,} more samples failed")
    for line in _summary(done, [one for one in outcomes if not one.fault]):
        click.echo(printable(line))
    if faults:
        ctx.exit(PARTLY if len(faults) < len(outcomes) else FAILED)


def _summary(done: str, outcomes: list[Outcome]) -> Iterator[str]:
    for codec in sorted({one.codec for one in outcomes}):
        of = [one for one in outcomes if one.codec == codec]
        raw, encoded = (sum(one.raw_bytes for one in of), sum(one.encoded_bytes for one in of))
        ratio = f"{raw / encoded:.2f}x" if encoded else ""
        yield f"{len(of):,} samples {done}, {codec}: {figures.size(raw)} raw, {figures.size(encoded)} encoded, {ratio}"
        close = sum((one.accuracy for one in of if one.accuracy), Accuracy())
        if close.values:
            share, elsewhere = close.off / close.values, (close.off - close.near_zero_off) / close.values
            yield f"  off by more than 10 %: {share:.3%} of the values, {elsewhere:.3%} that are not near zero"
            yield f"  largest error: {close.worst:.2g} standard deviations of its channel"
        elif done == "encoded":
            yield "  all values as they were"
