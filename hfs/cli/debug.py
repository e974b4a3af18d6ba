"""`hfs debug bundle [MOUNT]`: what somebody needs who is to find out what happened, in one archive without names."""

from __future__ import annotations

import os
import time

import click

from hfs.cli.command import CommandGroup
from hfs.cli.mount_options import load_config
from hfs.cli.shared import complete_mounts
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mounting import mountinfo

_NO_OPTIONS = {"options": (), "config_file": None, "verbose": False}


@click.group(cls=CommandGroup)
def debug() -> None:
    """Help others to find out what happened here."""


@debug.command(examples=["hfs debug bundle /data"])
@click.argument("mount", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option(
    "-o", "--output", metavar="FILE", type=click.UNPROCESSED, help="The archive. Default: hfs-debug-TIME.tar.gz here."
)
@click.option("--with-names", is_flag=True, help="Leave names of files of the data set as they are.")
def bundle(mount: str | None, output: str | None, with_names: bool) -> None:
    """Pack versions, configuration, status, logs, limits and doctor's findings into an archive for a report.

    Names of files below SOURCE are masked, and no file of it is looked at. Only you may read the archive. MOUNT: only
    of the mount that it lies in.
    """
    from hfs.cli.doctor import report, surroundings
    from hfs.cli.figures import size
    from hfs.doctor import examine
    from hfs.doctor.bundle import Collector, write
    from hfs.mountd.core.config import describe

    around, findings = surroundings(None, None)
    place = None
    if mount is not None:
        found = mountinfo.enclosing(mountinfo.canonical(mount, around.table), around.table)
        if found is None or found.fstype != mountinfo.HFS_TYPE:
            raise ConfigError(f"{mount}: not in a mount of hfs; hfs status lists the mounts")
        place = found.mountpoint
    try:
        configuration: dict[str, object] = dict(describe(*load_config(_NO_OPTIONS, required=False)))
    except ConfigError as error:
        configuration = {"error": str(error)}
    collector = Collector(around, place, with_names=with_names)
    findings += examine(around.without_source())
    files = dict(collector.gather(configuration, report(findings)))
    path = output or time.strftime("hfs-debug-%Y%m%d-%H%M%S.tar.gz")
    try:
        length = write(path, files)
    except FileExistsError:
        raise MountError(f"{path}: is there already; give another name with -o FILE") from None
    except OSError as error:
        raise MountError(f"{path}: cannot be written ({error.strerror}); give another with -o FILE") from None
    names = "with names of files" if with_names else "names of files are masked"
    click.echo(f"{os.path.abspath(path)}: {size(length)}, {names}; look through it before you give it away")
