"""`hfs layout`: makes the layout of a data set, once, for hints (`layout="train.layout"`), shows it and checks it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import click
import numpy as np

from hfs.cli import CommandGroup, figures
from hfs.cli.exit_codes import DONE, FAILED
from hfs.cli.shared import complain
from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import ConfigError, printable
from hfs.mountd.wire.layout import LayoutError
from hfs.mounting import mountinfo, probe

_SHOWN = 3
"""Samples, files and faults that are shown of many."""

_ANSWER_S = 2.0

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group(cls=CommandGroup)
def layout() -> None:
    """Work on layouts: which bytes of which files each sample of a data set is."""


def _options_of_formats(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that formats say they have, each once."""
    from hfs.layouts.registry import formats

    known = formats()
    options = {option.name: option for one in known.values() for option in one.options}
    for option in reversed(options.values()):
        names = ", ".join(one.name for one in known.values() if option.name in {o.name for o in one.options})
        wanted: dict[str, Any] = {"is_flag": True} if option.kind is bool else {"metavar": option.metavar}
        flag = f"--{option.name.replace('_', '-')}"
        command = click.option(flag, option.name, multiple=option.multiple, help=f"{names}: {option.help}", **wanted)(
            command
        )
    names = "|".join(("auto", *known))
    shown = "[default: auto]"
    return click.option("--format", "format_name", default="auto", metavar=names, help=shown)(command)


@layout.command(examples=["hfs layout build /data/train.lmdb -o train.layout"])
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.UNPROCESSED)
@_options_of_formats
@click.option("-o", "--output", metavar="OUT", help="[default: FILE.layout in this directory]")
@click.option("--root", metavar="DIR", help="SOURCE or MOUNTPOINT above FILE. Default: the mount that FILE lies in.")
@json_option
def build(
    files: tuple[str, ...], format_name: str, output: str | None, root: str | None, as_json: bool, **options: object
) -> None:
    """Find where the samples of a data set lie in FILE..., and keep that in OUT.

    Reads as little as the format allows, at most each FILE once. Nobody may write to FILE meanwhile: a layout belongs
    to one version of it. Several files are the shards of one data set, in the order in which they are given.
    """
    from hfs.layouts.registry import build as build_layout

    if missing := [file for file in files if not os.path.lexists(file)]:
        raise ConfigError(f"{missing[0]}: no such file; give the files of a data set")
    if root is None:
        mounts = [mountinfo.enclosing(mountinfo.canonical(file)) for file in files]
        mount = mounts[0]
        if mount is None or mount.fstype != mountinfo.HFS_TYPE:
            raise ConfigError(f"{files[0]} is in no mount of hfs: say with --root what will be mounted")
        root, files = mount.mountpoint, tuple(mountinfo.canonical(file) for file in files)
    output = f"{os.path.basename(files[0].rstrip('/'))}.layout" if output is None else output
    made = build_layout(files, root, format_name, options)
    made.save(output)
    if as_json:
        click.echo(json.dumps({"layout": os.path.abspath(output), **_summary(made)}))
        return
    of = os.fsdecode(made.files[0]) if made.file_count == 1 else f"{made.file_count:,} files"
    _say(f"{output}: {figures.count(made.samples, 'sample')} of {of} ({made.made_from})")


@layout.command(examples=["hfs layout show train.layout"])
@click.argument("file", metavar="LAYOUT", type=click.UNPROCESSED)
@json_option
def show(file: str, as_json: bool) -> None:
    """Say what LAYOUT is of, how large it is, and where its first and last samples lie."""
    found = _loaded(file)
    kept = os.stat(file).st_size
    if as_json:
        ends = [{"sample": number, "extents": _extents(found, number)} for number in _ends(found.samples)]
        click.echo(json.dumps({"layout": os.path.abspath(file), **_summary(found), "ends": ends}))
        return
    extents = found.extent_count
    _say(f"made from  {found.made_from or 'not said'}")
    _say(f"samples    {found.samples:,}" + (", with their keys" if found.keys is not None else ""))
    _say(f"extents    {extents:,}" if extents else "extents    none: a sample is a whole file")
    total = found.sample_bytes
    _say(f"bytes      {'not known' if total is None else f'{figures.size(total)} of samples'}")
    _say(f"this file  {figures.size(kept)}, {kept / found.samples:.1f} bytes a sample")
    files = found.files
    for number in _ends(found.file_count):
        size, mtime_ns = _of(found.file_sizes, number), _of(found.file_mtimes_ns, number)
        version = "version not known" if size < 0 else f"{size:,} bytes, modified {np.datetime64(mtime_ns, 'ns')} UTC"
        _say(f"file {number}  {os.fsdecode(files[number])}: {version}")
    for number in _ends(found.samples):
        _say(f"sample {number}  {', '.join(_shown(found, files, number)) or 'has no bytes'}")


@layout.command(examples=["hfs layout check train.layout"])
@click.argument("file", metavar="LAYOUT", type=click.UNPROCESSED)
@click.option(
    "--root",
    metavar="DIR",
    help="SOURCE or MOUNTPOINT above its files. [default: this directory, or the mount that has them]",
)
@json_option
@click.pass_context
def check(ctx: click.Context, /, file: str, root: str | None, as_json: bool) -> None:
    """Say whether LAYOUT still belongs to its files, by their sizes and times.

    Ends with 0 if it does, with 1 if it must be built again.
    """
    found = _loaded(file)
    root = _root_of(found) if root is None else root
    wrong = found.changed(root)
    if as_json:
        click.echo(json.dumps({"layout": os.path.abspath(file), "right": not wrong, "faults": wrong}))
        ctx.exit(FAILED if wrong else DONE)
    for line in wrong[:_SHOWN]:
        complain(line)
    if wrong:
        raise LayoutError(f"{file}: {len(wrong):,} faults: it does not belong to these files; build it again")
    files = "1 file as it was" if found.file_count == 1 else f"{found.file_count:,} files as they were"
    _say(f"{file}: right: {files}, {figures.count(found.samples, 'sample')}")


def _loaded(file: str) -> Layout:
    """Raises LayoutError."""
    try:
        return Layout.load(file)
    except LayoutError as error:
        raise LayoutError(f"{error}; hfs layout build makes one") from None


def _summary(found: Layout) -> dict[str, object]:
    """For programs: what a layout is of."""
    return {
        "made_from": found.made_from,
        "samples": found.samples,
        "files": found.file_count,
        "extents": found.extent_count,
        "sample_bytes": found.sample_bytes,
        "keys": found.keys is not None,
    }


def _extents(found: Layout, number: int) -> list[dict[str, object]]:
    """Of a sample; a size of None: all of the file."""
    files = found.files
    return [
        {"file": printable(os.fsdecode(files[file])), "offset": int(offset), "size": None if size < 0 else int(size)}
        for file, offset, size in found.extents_of(number)
    ]


def _root_of(found: Layout) -> str:
    """Where the first file of a layout is. Raises ConfigError if neither here nor in a mount of hfs."""
    first = os.fsdecode(found.files[0])
    for root in (".", *(mount.mountpoint for mount in mountinfo.hfs_mounts() if _answers(mount.mountpoint))):
        if os.path.lexists(os.path.join(root, first)):
            return root
    raise ConfigError(f"{first} is neither below this directory nor in a mount of hfs: say with --root where it is")


def _answers(mountpoint: str) -> bool:
    """Whether a mount can be looked into: one that hangs, or is another user's, has nothing to do with this layout."""
    try:
        probe.look(mountpoint, limit_s=_ANSWER_S)
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    """A result; names of files may hold anything."""
    click.echo(printable(text))


def _ends(count: int) -> Iterable[int]:
    """The first few numbers and the last."""
    return sorted({*range(min(_SHOWN, count)), count - 1})


def _of(values: np.typing.NDArray[Any], number: int) -> int:
    return int(values[number]) if len(values) else -1


def _shown(found: Layout, files: list[bytes], number: int) -> Iterable[str]:
    """Each extent of a sample."""
    for file, offset, size in found.extents_of(number):
        place = f" at {offset:,}" if found.extent_count else ""
        length = "all of it" if size < 0 else f"{size:,} bytes"
        yield f"{os.fsdecode(files[file])}: {length}{place}"
