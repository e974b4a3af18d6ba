"""`hfs layout build`: makes the layout of a data set, once, for hints (`layout="train.h5.layout"`)."""

from __future__ import annotations

import os

import click

from hfs import mountinfo
from mountd.errors import ConfigError

__all__ = ["layout"]


@click.group()
def layout() -> None:
    """Work on layouts: which bytes of a file each sample of a data set is."""


@layout.command()
@click.argument("file", type=click.UNPROCESSED)
@click.option("--dataset", "datasets", metavar="NAME", multiple=True, required=True, help="Repeat it for several.")
@click.option("-o", "--output", metavar="OUT", help="[default: FILE.layout in this directory]")
@click.option("--root", metavar="DIR", help="SOURCE or MOUNTPOINT above FILE. Default: the mount that FILE lies in.")
def build(file: str, datasets: tuple[str, ...], output: str | None, root: str | None) -> None:
    """Find where the rows of data sets lie in the HDF5 FILE, and keep that in OUT.

    Sample i is row i of each data set. Reads the structure of FILE only. A layout belongs to one version of FILE.
    """
    from hfs.layouts.hdf5 import build_hdf5

    if root is None:
        mount = mountinfo.enclosing(mountinfo.canonical(file))
        if mount is None or mount.fstype != mountinfo.HFS_TYPE:
            raise ConfigError(f"{file} is in no mount of hfs: say with --root what will be mounted")
        root, file = mount.mountpoint, mountinfo.canonical(file)
    output = f"{os.path.basename(file)}.layout" if output is None else output
    made = build_hdf5(file, datasets, root)
    made.save(output)
    click.echo(f"{output}: {made.samples:,} samples of {os.fsdecode(made.files[0])}")
