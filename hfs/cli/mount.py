"""`hfs mount SOURCE MOUNTPOINT --cache DIR`: returns when the mount answers, or says why there is none."""

from __future__ import annotations

import os
from typing import Any

import click

from hfs import daemon_process, mounting
from hfs.cli.shared import complain, hold, load_config, mount_flags, prepared
from hfs.places import check_places
from mountd.config import Config
from mountd.errors import HfsError, MountError

__all__ = ["mount", "ready_to_mount"]


@click.command
@click.argument("source", required=False, type=click.UNPROCESSED)
@click.argument("mountpoint", required=False, type=click.UNPROCESSED)
@click.option("-f", "--foreground", is_flag=True, default=None, help="Stay, and log to stderr; Ctrl-C unmounts.")
@mount_flags
def mount(**arguments: Any) -> None:
    """Show the files of SOURCE, read-only, at MOUNTPOINT.

    Returns when the mount answers. Keys may also stand in /etc/hfs/config.toml, $XDG_CONFIG_HOME/hfs/config.toml, in
    the environment as HFS_KEY, and in -o; see hfs config.
    """
    config, origins = load_config(arguments)
    with hold():
        config = ready_to_mount(config)
        if not config.foreground:
            mounting.start(config, origins).leave()
            _mention_working_directory(config.mountpoint)
            return
    try:
        daemon_process.serve(config, origins, lambda: complain(f"{config.mountpoint}: mounted"))
    except Exception as raised:
        error = daemon_process.leaf(raised)
        raise error if isinstance(error, HfsError) else MountError(daemon_process.message(error)) from raised


def ready_to_mount(config: Config) -> Config:
    """The configuration with its places settled and checked, a stale mount out of the way."""
    config = prepared(config)
    if mounting.clean_stale(config.mountpoint):
        complain(f"{config.mountpoint}: removed the mount that a dead daemon had left")
    check_places(config)
    return config


def _mention_working_directory(mountpoint: str) -> None:
    """A shell that stands in MOUNTPOINT stands in the directory below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return
    if here == mountpoint or here.startswith(mountpoint.rstrip("/") + "/"):
        complain(f'your shell still stands in the directory below the mount; go in: cd "{here}"')
