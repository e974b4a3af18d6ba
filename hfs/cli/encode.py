"""`hfs encode` makes encoded samples of those in HDF5 and NumPy files, `hfs decode` turns them back into NumPy
files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import click

from hfs.cli import figures
from hfs.cli.command import Command
from hfs.cli.exit_codes import FAILED, PARTLY
from hfs.cli.reporting import under_bar
from hfs.cli.shared import complain
from hfs.codecs.codec import WantedOutput, codecs
from hfs.codecs.converting import Accuracy, Many, Outcome, decode_file, encode_sample, found, in_processes
from hfs.codecs.dataset import SUFFIX
from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError, printable

_Item = TypeVar("_Item")

_SHOWN = 20
"""Faults that are shown of many."""

_jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: len(os.sched_getaffinity(0)),
    metavar="N",
    help="Processes at work at once. [default: as many as there are cores]",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="The sums as one JSON object.")
_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files of DST that exist.")
_continue_option = click.option(
    "--continue", "goes_on", is_flag=True, help="Leave files of DST that exist: the rest of what was interrupted."
)
_GOES_ON = ", which stay; the same command with --continue goes on from there"
"""What is said after Ctrl-C."""


@click.command(cls=Command, examples=["hfs encode /lustre/cosmoflow /lustre/cosmoflow-encoded --jobs 16"])
@click.argument("source", metavar="SRC", type=click.Path(exists=True))
@click.argument("destination", metavar="DST", type=click.Path(file_okay=False))
@click.option(
    "--codec",
    default="auto",
    metavar="auto|cosmoflow|deepcam|plain",
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
@_jobs_option
@_overwrite_option
@_continue_option
@_json_option
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
    goes_on: bool,
    as_json: bool,
) -> None:
    """Encode the samples in SRC (HDF5, .npy, .npz, or a directory of such) into .hfsc files in DST.

    Every sample is decoded again and compared. The other arrays of a file (labels) are kept beside it as they are;
    texts and attributes are not. Exit codes: 0 done, 1 failed, 2 usage, 3 some samples could not be encoded.
    """
    if codec not in {"auto", *codecs()}:
        raise ConfigError(f"codec: {codec!r} is not known; there are auto, {', '.join(codecs())}")
    samples, faults = found(source, name, many)
    outputs = [[os.path.join(destination, one.output + SUFFIX)] for one in samples]
    samples = _to_make(samples, outputs, destination, overwrite=overwrite, goes_on=goes_on)
    options = {"channels": channels, "max_relative_error": max_relative_error}
    work = in_processes(encode_sample, samples, (destination, codec, options), jobs)
    outcomes = under_bar(work, len(samples), "sample", "to encode", f"encoded{_GOES_ON}")
    outcomes += [Outcome(path, fault=str(error)) for path, error in faults.items()]
    _show(ctx, "encoded", outcomes, as_json=as_json)


@click.command(cls=Command, examples=["hfs decode /lustre/cosmoflow-encoded /scratch/cosmoflow"])
@click.argument("source", metavar="SRC", type=click.Path(exists=True))
@click.argument("destination", metavar="DST", type=click.Path(file_okay=False))
@click.option(
    "--dtype", type=click.Choice(["float16", "float32"]), help="Of the values. [default: as they were, or float16]"
)
@click.option("--op", type=click.Choice(["log1p"]), help="Applied to each value.")
@click.option(
    "--channels", type=click.Choice(["first", "last"]), help="The axis of the channels. [default: where it was]"
)
@click.option(
    "--max-size", metavar="SIZE", help="What a sample may take decoded. [default: 256M, or 64 times its file]"
)
@_jobs_option
@_overwrite_option
@_continue_option
@_json_option
@click.pass_context
def decode(
    ctx: click.Context,
    source: str,
    destination: str,
    dtype: str | None,
    op: Literal["log1p"] | None,
    channels: Literal["first", "last"] | None,
    max_size: str | None,
    jobs: int,
    overwrite: bool,
    goes_on: bool,
    as_json: bool,
) -> None:
    """Decode SRC (an .hfsc file, or a directory of such) into .npy files in DST, .npz for those with labels.

    Exit codes: 0 done, 1 failed, 2 usage, 3 some files could not be decoded.
    """
    files = [source]
    root = os.path.dirname(source)
    if os.path.isdir(source):
        root = source
        files = sorted(
            os.path.join(folder, file)
            for folder, _, names in os.walk(source)
            for file in names
            if file.endswith(SUFFIX)
        )
    if not files:
        raise ConfigError(f"{source}: no {SUFFIX} file lies below it; hfs encode makes them")
    outputs = [os.path.join(destination, os.path.splitext(os.path.relpath(file, root or "."))[0]) for file in files]
    made = [[f"{one}{suffix}" for suffix in (".npy", ".npz")] for one in outputs]
    pairs = _to_make(list(zip(files, outputs, strict=True)), made, destination, overwrite=overwrite, goes_on=goes_on)
    wanted = WantedOutput(
        dtype=dtype, op=op, channels=channels, max_bytes=None if max_size is None else _max_size(max_size)
    )
    work = in_processes(_decoded, pairs, (wanted,), jobs)
    outcomes = under_bar(work, len(pairs), "file", "to decode", f"decoded{_GOES_ON}")
    _show(ctx, "decoded", outcomes, as_json=as_json)


def _decoded(pair: tuple[str, str], wanted: WantedOutput) -> Outcome:
    return decode_file(*pair, wanted)


def _max_size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise ConfigError(f"--max-size: {text!r} is not possible; allowed: a size like 500M or 2GB") from None


def _to_make(
    items: Sequence[_Item], outputs: Sequence[Sequence[str]], destination: str, *, overwrite: bool, goes_on: bool
) -> list[_Item]:
    """The items whose files, of which each makes one, are to be made. Raises ConfigError for two of one name, for files
    that exist, and where nothing can be written."""
    names = [name for of_one in outputs for name in of_one]
    if len(set(names)) < len(names):
        double = next(one for one in names if names.count(one) > 1)
        raise ConfigError(f"{double} would be made twice: files of one name and several suffixes; convert them apart")
    place = os.path.abspath(destination)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"DST {destination}: {place} is no directory that you can write to; give another")
    there = [next(filter(os.path.exists, of_one), None) for of_one in outputs]
    if goes_on:
        return [item for item, found in zip(items, there, strict=True) if found is None]
    if not overwrite and (found := [one for one in there if one is not None]):
        more = f" (and {len(found) - 1} more)" * (len(found) > 1)
        raise ConfigError(f"{found[0]} exists{more}: --overwrite, or --continue to make only what is missing")
    return list(items)


def _show(ctx: click.Context, done: str, outcomes: list[Outcome], *, as_json: bool) -> None:
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
        samples = figures.count(len(of), "sample")
        yield f"{samples} {done}, {codec}: {figures.size(raw)} raw, {figures.size(encoded)} encoded, {ratio}"
        close = sum((one.accuracy for one in of if one.accuracy), Accuracy())
        if close.values:
            share, elsewhere = close.off / close.values, (close.off - close.near_zero_off) / close.values
            yield f"  off by more than 10 %: {share:.3%} of the values, {elsewhere:.3%} that are not near zero"
            yield f"  largest error: {close.worst:.2g} standard deviations of its channel"
        elif done == "encoded":
            yield "  all values as they were"
