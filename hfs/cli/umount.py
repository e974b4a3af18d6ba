"""`hfs umount MOUNTPOINT`: unmounts and waits until the daemon has ended, so that its cache is free."""

from __future__ import annotations

import os

import click

from hfs.cli.command import Command
from hfs.cli.shared import complain, complain_of, complete_mounts
from hfs.client import given_mounts
from hfs.mountd.core.errors import ConfigError, MountError
from hfs.mounting import jobs, mountinfo, mounting
from hfs.mounting.given import why_not_ours


@click.command(cls=Command, examples=["hfs umount /data"])
@click.argument("mountpoint", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("-l", "--lazy", is_flag=True, help="Take it away now; it ends when its last user has gone.")
@click.option("--job", metavar="ID", help="For an epilog: this job uses MOUNTPOINT, or else any mount, no more.")
def umount(mountpoint: str | None, lazy: bool, job: str | None) -> None:
    """Unmount MOUNTPOINT and wait until its daemon has ended.

    Where other commands, sessions or jobs have joined the mount it stays until the last of them has ended.
    """
    if mountpoint is None and not job:
        raise ConfigError("give MOUNTPOINT; hfs status lists the mounts")
    place = None if mountpoint is None else mountinfo.canonical(mountpoint)
    if place is not None and mountinfo.at(place) is None and (given := given_mounts.named(place)) is not None:
        raise MountError(why_not_ours(place, given.keeper.pid))
    os.chdir("/")  # we may stand in it ourselves
    if job:
        for released in jobs.release_job(job, place, wait=not lazy):
            complain(released)
        return
    assert place is not None
    try:
        mounting.unmount(place, lazy=lazy)
    except mounting.StillHeld as held:
        complain_of(held)
