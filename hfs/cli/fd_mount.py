"""`hfs fd-mount MOUNTPOINT --socket PATH --user UID`: the part of a mount that needs rights, for one that has none."""

from __future__ import annotations

import os

import click

from hfs.cli.command import Command
from hfs.cli.shared import complain, hold
from hfs.mountd.core.errors import ConfigError
from hfs.mounting import mountinfo
from hfs.mounting.given import SOCKET_ENDS
from hfs.mounting.offering import MountOffer, check, give_connections


@click.command("fd-mount", cls=Command, examples=["hfs fd-mount /data --socket /run/hfs/data.sock --user 65534"])
@click.argument("mountpoint", type=click.UNPROCESSED)
@click.option("--socket", "path", required=True, metavar="PATH", help="Where the connection is given: *.sock.")
@click.option("--user", required=True, metavar="UID[:GID]", help="Who may have it, and owns the mount.")
@click.option("--owner-only", is_flag=True, help="Nobody else may enter the mount.")
@click.option("--noexec", is_flag=True, help="Programs in the mount cannot be executed.")
def fd_mount(mountpoint: str, path: str, user: str, owner_only: bool, noexec: bool) -> None:
    """Mount at MOUNTPOINT, as root, for a process without rights.

    That process is hfs mount SOURCE PATH, run by user UID: it is given the connection and serves the mount. When it
    has ended the mount stays, dead, and the next that comes gets a new one on top. Stays in the foreground; SIGTERM
    takes the mounts away and ends it.
    """
    uid, gid = _ids(user)
    if not path.endswith(SOCKET_ENDS):
        raise ConfigError(f"--socket {path}: hfs mount knows it by its name; let that end in {SOCKET_ENDS}")
    offer = MountOffer(
        mountinfo.canonical(mountpoint), os.path.abspath(path), uid, gid, allow_other=not owner_only, noexec=noexec
    )
    check(offer)
    try:
        with hold():
            give_connections(offer, complain)
    except KeyboardInterrupt:
        return


def _ids(user: str) -> tuple[int, int]:
    uid, _, gid = user.partition(":")
    if not uid.isdecimal() or not (gid or "0").isdecimal():
        raise ConfigError(f"--user {user}: not a number, or two; give UID or UID:GID")
    return int(uid), int(gid or uid)
