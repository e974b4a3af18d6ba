"""`hfs mount SOURCE MOUNTPOINT --cache DIR`: returns when the mount answers, or says why there is none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import click

from hfs.cli import overlays
from hfs.cli.command import Command, Stopped
from hfs.cli.metrics import tell_what_is_missing
from hfs.cli.mount_options import load_config, mount_flags, prepared, without_stale
from hfs.cli.shared import complain, hold, target_of
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mounting import jobs, joining, keeper, mountinfo, mounting, taking_away, view
from hfs.mounting.given import is_given, take_if_given
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
    alone = config.foreground or config.peers != "none" or take_over or is_given(config.mountpoint)
    if job is not None and (not job or alone):
        raise ConfigError("job: an ID that is not empty, with a directory, without --foreground, --peers, --take-over")
    with hold(), _told_what_is_left(config):
        if take_over:
            _take_over(config, origins)
            return
        config = without_stale(prepared(config))
        if _joined(config, origins, job):
            return
        try:
            check_places(config)
        except HfsError:
            with joining.turn_if_any(config):
                if _joined(config, origins, job):  # of a command that was just mounting there
                    return
            raise
        if not config.foreground:
            with joining.turn(config):
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
            overlays.settle(config.mountpoint, config.io_mode)
            if verbose:
                tell_parts(config.mountpoint)
            _mention_working_directory(config.mountpoint)
            return
        given, config, origins = take_if_given(config, origins)

    # With --peers mpi this is what mpirun has started, and the daemon, its child, is the rank.
    code = "import sys; from hfs.cli.mount import settled; settled(*sys.argv[1:])"
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
    if config.foreground or config.peers != "none":
        raise ConfigError("take-over: not with --foreground or --peers: the keeper of the mount starts the daemon")
    config = prepared(config)
    pid = mounting.take_over(config, origins)
    complain(f"{config.mountpoint}: taken over by process {pid}, hfs {metadata.version('hfs-cache')}")
    tell_what_is_missing(config, config.mountpoint)
    overlays.settle(config.mountpoint, config.io_mode)


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
    if config.peers != "none":
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
            held = found.keeper.hold_session() if job is None else found.keeper.hold_job(job)
            if not held:
                continue  # it has just begun to end
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


def parts(status: Mapping[str, Any]) -> list[str]:
    """A line for each part that makes reads fast: what holds in this mount, or why it does not."""
    io_mode, kernel = status.get("io_mode", {}), status.get("kernel", {})
    lines = [f"io mode: {io_mode.get('mode')} ({io_mode.get('reason')})"]
    lines += [f"{name}: {io_mode.get(name)}" for name in ("passthrough", "stateless", "extension")]
    lines.append(f"overlays: {overlays.line(status)}")
    for name, figure, unit in (("readahead", "read_ahead_kb", " KiB"), ("background requests", "max_background", "")):
        value = kernel.get(figure)
        lines.append(f"{name}: {value}{unit}" if value is not None else f"{name}: as the kernel has it")
    return lines + list(kernel.get("notes", []))


def settled(mountpoint: str, io_mode: str, verbose: str) -> None:
    """A mount in the foreground answers."""
    overlays.settle(mountpoint, io_mode)
    if verbose:
        tell_parts(mountpoint)


def tell_parts(mountpoint: str) -> None:
    """Say on stderr how files are read in this mount."""
    try:
        status = target_of(mountpoint).client.status()
    except HfsError as error:  # mounted it is all the same
        complain(f"no figures: {error}")
        return
    complain(*parts(status))


def _mention_working_directory(mountpoint: str) -> None:
    """A shell that stands in MOUNTPOINT stands in the directory below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return
    if here == mountpoint or here.startswith(mountpoint.rstrip("/") + "/"):
        complain(f'your shell still stands in the directory below the mount; go in: cd "{here}"')
