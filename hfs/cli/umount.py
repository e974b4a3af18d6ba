"""`hfs umount MOUNTPOINT`: unmounts and waits until the daemon has ended, so that its cache is free."""

from __future__ import annotations

import os

import click

from hfs.cli.command import Command
from hfs.cli.shared import complain, complete_mounts
from hfs.client import given_mounts
from hfs.mounting import mountinfo, mounting
from hfs.mounting.given import why_not_ours
from mountd.base.errors import MountError


@click.command(cls=Command, examples=["hfs umount /data"])
@click.argument("mountpoint", type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("-l", "--lazy", is_flag=True, help="Take it away now; it ends when its last user has gone.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount MOUNTPOINT and wait until its daemon has ended.

    Where other commands or sessions have joined the mount it stays until the last of them has ended.
    """
    place = mountinfo.canonical(mountpoint)
    if mountinfo.at(place) is None and (given := given_mounts.named(place)) is not None:
        raise MountError(why_not_ours(place, given.keeper.pid))
    os.chdir("/")  # we may stand in it ourselves
    try:
        mounting.unmount(place, lazy=lazy)
    except mounting.StillHeld as held:
        complain(str(held))
