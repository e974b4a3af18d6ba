"""`hfs decode`: turns encoded samples back into NumPy files."""

from __future__ import annotations

import os
from typing import Literal

import click

from hfs.cli.command import Command
from hfs.cli.encode import GOES_ON, continue_option, jobs_option, json_option, overwrite_option, show, to_make
from hfs.cli.reporting import under_bar
from hfs.codecs.codec import WantedOutput
from hfs.codecs.converting import Outcome, decode_file, in_processes
from hfs.codecs.dataset import SUFFIX
from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError


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
@jobs_option
@overwrite_option
@continue_option
@json_option
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
    pairs = to_make(list(zip(files, outputs, strict=True)), made, destination, overwrite=overwrite, goes_on=goes_on)
    wanted = WantedOutput(
        dtype=dtype, op=op, channels=channels, max_bytes=None if max_size is None else _size(max_size)
    )
    work = in_processes(_one, pairs, (wanted,), jobs)
    outcomes = under_bar(work, len(pairs), "file", "to decode", f"decoded{GOES_ON}")
    show(ctx, "decoded", outcomes, as_json=as_json)


def _one(pair: tuple[str, str], wanted: WantedOutput) -> Outcome:
    return decode_file(*pair, wanted)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise ConfigError(f"--max-size: {text!r} is not possible; allowed: a size like 500M or 2GB") from None
