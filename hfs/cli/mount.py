"""`hfs mount SOURCE MOUNTPOINT --cache DIR` returns when the mount answers, or says why there is none; `hfs umount`
waits until its daemon has ended, so that its cache is free; `hfs fd-mount` does the part that needs rights for a
process that has none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click

from hfs.cli.command import Command, Stopped
from hfs.cli.config import load_config, mount_flags, prepared, without_stale
from hfs.cli.mount_notes import mention_working_directory, settle_overlay, tell_parts, tell_what_is_missing
from hfs.cli.shared import complain, complain_of, complete_mounts, hold
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mounting import jobs, joining, keeper, mountinfo, mounting, probe, taking_away, view
from hfs.mounting.given import SOCKET_ENDS, is_given, take_if_given, why_not_ours
from hfs.mounting.preflight import check_mountpoint, check_places


@click.command(
    cls=Command,
    examples=[
        "hfs mount /lustre/imagenet /data --cache /nvme/$USER/hfs",
        "hfs mount /nfs/data /mnt/data --cache /nvme/hfs --as-user alice",
    ],
)
@click.argument("source", required=False, type=click.UNPROCESSED)
@click.argument("mountpoint", required=False, type=click.UNPROCESSED)
@click.option("-f", "--foreground", is_flag=True, default=None, help="Stay, and log to stderr; Ctrl-C unmounts.")
@click.option("--take-over", is_flag=True, help="MOUNTPOINT is mounted: go on there with this release of hfs.")
@click.option("--job", metavar="ID", help="For a prolog: keep it until this job's hfs umount --job ID, the last one's.")
@mount_flags
def mount(take_over: bool, job: str | None, **arguments: Any) -> None:
    """Show the files of SOURCE, read-only, at MOUNTPOINT.

    Returns when the mount answers. Keys may also stand in /etc/hfs/config.toml, $XDG_CONFIG_HOME/hfs/config.toml, in
    the environment as HFS_KEY, and in -o; see hfs config. With -v it says how files will be read, and what of the fast
    ways is not possible here, and why.

    MOUNTPOINT may also be a connection that somebody else has opened and mounted: /dev/fd/N, or a socket of hfs
    fd-mount. That mount is served then, which needs no rights.

    With --take-over a mount that is there goes on with the daemon of this release, and the options given now: jobs wait
    for a second at most and see no error.

    With --job the mount is a job's: it goes with the last of the jobs that it was mounted for (hfs slurm prolog).
    """
    verbose = bool(arguments.get("verbose"))
    config, origins = load_config(arguments)
    alone = config.foreground or config.peers == "mpi" or take_over or is_given(config.mountpoint)
    if job is not None and (not job or alone):
        without = "without --foreground, --peers mpi, --take-over"
        raise ConfigError(f"job: an ID that is not empty, with a directory, {without}")
    with hold(), _told_what_is_left(config), probe.kept():
        if take_over:
            _take_over(config, origins)
            return
        config = without_stale(prepared(config))
        if _joined(config, origins, job):
            return
        try:
            check_places(config)
        except HfsError:
            with joining.start_lock_if_any(config):
                if _joined(config, origins, job):  # of a command that was just mounting there
                    return
            raise
        if not config.foreground:
            with joining.start_lock(config):
                if _joined(config, origins, job):  # of a command that was faster
                    return
                given, config, origins = take_if_given(config, origins)
                if job is None:
                    mounting.start(config, origins, session=os.getsid(0), given=given).leave()
                else:
                    _start_for_job(config, origins, job)
            if (remedy := jobs.remedy_in_step(config.source)) is not None:
                complain(f"{config.mountpoint}: {remedy}")
            tell_what_is_missing(config, config.mountpoint)
            settle_overlay(config.mountpoint, config.io_mode)
            if verbose:
                tell_parts(config.mountpoint)
            mention_working_directory(config.mountpoint)
            return
        given, config, origins = take_if_given(config, origins)

    # With --peers mpi this is what mpirun has started, and the daemon, its child, is the rank.
    code = "import sys; from hfs.cli.mount_notes import settled; settled(*sys.argv[1:])"
    when_mounted = ["-c", code, config.mountpoint, config.io_mode, "verbose" if verbose else ""]
    is_told = verbose or config.io_mode == "overlay"
    mounting.stay(config, origins, when_mounted if is_told else [], given)


@contextlib.contextmanager
def _told_what_is_left(config: Config) -> Iterator[None]:
    """Ctrl-C may come before the mount is there, or just after it."""
    try:
        yield
    except KeyboardInterrupt:
        place = mountinfo.canonical(config.mountpoint)
        mount = mountinfo.at(place)
        if mount is not None and mount.fstype == mountinfo.HFS_TYPE:
            raise Stopped(f"{place} is mounted; hfs umount {place} ends that") from None
        raise Stopped(f"nothing is mounted at {place}; what is staged stays, and the same command mounts it") from None


def _take_over(config: Config, origins: dict[str, str]) -> None:
    if config.foreground or config.peers == "mpi":
        raise ConfigError("take-over: not with --foreground or --peers mpi: the keeper of the mount starts the daemon")
    config = prepared(config)
    pid = mounting.take_over(config, origins)
    complain(f"{config.mountpoint}: taken over by process {pid}, hfs {metadata.version('hfs-cache')}")
    tell_what_is_missing(config, config.mountpoint)
    settle_overlay(config.mountpoint, config.io_mode)


def _start_for_job(config: Config, origins: dict[str, str], job: str) -> None:
    """A mount that ends with the last job. Raises as `mounting.start`."""
    mounting.start(config, origins, permanent=False).leave()
    try:
        kept = keeper.find(config.mountpoint)
        if kept is None or not kept.hold_job(job):
            text = f"{config.mountpoint}: the mount has no keeper that answers; its log is {config.log_file}"
            raise MountError(text)
    except BaseException:
        taking_away.detach(config.mountpoint, lazy=True)
        raise


def _joined(config: Config, origins: dict[str, str], job: str | None) -> bool:
    """Whether SOURCE has a daemon already, and MOUNTPOINT shows its mount now. Raises ConfigError, MountError."""
    if config.peers == "mpi":
        return False  # a daemon of a job that finds its cache in use has to tell the others
    while (found := joining.wait_running(config)) is not None:
        if config.foreground or is_given(config.mountpoint):
            where = f"{config.source} is already mounted at {found.mountpoint}, from the same cache"
            instead = "leave out --foreground to use that" if config.foreground else "use that"
            raise MountError(f"{where}; {instead}, or give another --cache")
        found.check(config, origins)
        elsewhere = config.mountpoint != found.mountpoint
        if elsewhere:
            check_mountpoint(config)
            if os.geteuid() != 0:
                remedy = f"use {found.mountpoint}, or hfs run, which shows it elsewhere for one command"
                raise MountError(f"{config.source} is already mounted at {found.mountpoint}; {remedy}")
        try:
            held = False
            with contextlib.suppress(ConnectionError):  # it has just ended
                held = found.keeper.hold_session() if job is None else found.keeper.hold_job(job)
            if not held:
                continue  # or begun to
            if elsewhere:
                view.bind(found.mountpoint, config.mountpoint, found.device)
        except OSError as error:
            with contextlib.suppress(OSError, HfsError):
                found.keeper.release_session() if job is None else found.keeper.release_job(job)
            why = f"cannot be mounted on ({error.strerror}); choose another directory"
            raise MountError(f"{config.mountpoint}: {why}") from None
        complain(f"{config.mountpoint}: served by the daemon of {config.source} that is there already")
        tell_what_is_missing(config, config.mountpoint)
        return True
    return False


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
    if place is not None and mountinfo.at(place) is None and (given := keeper.of_given(place)) is not None:
        raise MountError(why_not_ours(place, given.pid))
    os.chdir("/")  # we may stand in it ourselves
    if job:
        for released in jobs.release_job(job, place, wait=not lazy):
            complain(released)
        return
    assert place is not None
    try:
        with probe.kept():
            mounting.unmount(place, lazy=lazy)
    except mounting.MountInUse as held:
        complain_of(held)


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
    from hfs.mounting.given import MountOffer, check, give_connections

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
