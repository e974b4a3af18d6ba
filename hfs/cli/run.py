"""`hfs run --source S --cache D -- CMD ...`: a mount that lives as long as the commands that use it.

Ends with the command's exit code; what hfs itself cannot do ends with 125, so that a job script can tell the two apart.
Whatever happens to the command or to us short of SIGKILL, the mount is taken away again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from typing import Any

import click
import msgspec

from hfs.cli.command import Command, said
from hfs.cli.config import load_config, mount_flags, prepared, without_stale
from hfs.cli.exit_codes import RUN_FAILED, SIGNALLED
from hfs.cli.mount_notes import tell_what_is_missing
from hfs.cli.shared import complain, complain_of, hold, not_started
from hfs.client.client import Client, find_socket
from hfs.mountd.core.config import Config
from hfs.mountd.core.errors import ConfigError, HfsError, MountError
from hfs.mountd.core.socket_places import mountpoint_of
from hfs.mounting import command as commands
from hfs.mounting import jobs, mountinfo, mounting, probe, taking_away
from hfs.mounting.given import is_descriptor
from hfs.mounting.preflight import real_source
from hfs.mounting.using import UsedMount, use_mount

_BUSY_S = 5.0
"""Background processes of the command usually end within seconds of it."""
_BUSY_AGAIN_S = 0.1


class _RunUsageError(click.UsageError):
    exit_code = RUN_FAILED


class _Run(Command):
    """`hfs run` with a usage error as its own failure: code 2 would look like the command's."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse. Raises UsageError with exit code 125."""
        try:
            return super().make_context(*arguments, **extra)
        except click.UsageError as error:
            raise _RunUsageError(said(error), error.ctx) from None


@click.command(
    cls=_Run,
    context_settings={"allow_interspersed_args": False},
    examples=[
        "hfs run --source /lustre/imagenet --cache /nvme/$USER/hfs -- python train.py --data /lustre/imagenet",
        "hfs run --source /lustre/imagenet --at /data --cache /nvme/$USER/hfs -- python train.py --data /data",
    ],
)
@click.option("--source", metavar="DIR", help="The directory to show.")
@click.option(
    "--at", "mountpoint", metavar="DIR", help="Where to show it. Default: at the source itself, for COMMAND alone."
)
@mount_flags
@click.option("--quiet", is_flag=True, help="No summary at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, quiet: bool, command: tuple[str, ...], **arguments: Any) -> None:
    """Mount, run COMMAND with its own user and environment, unmount.

    Without --at COMMAND sees the data at SOURCE itself, nobody else does, and its paths stay as they are. Where a
    daemon serves SOURCE from this cache already, that one is used, and goes on after COMMAND if others use it.

    The exit code is COMMAND's, or 128 + N if signal N ended it; 125 if hfs failed, 126 if COMMAND cannot be executed,
    127 if it is not found. Signals are forwarded. A summary of what was read meanwhile goes to stderr.
    """
    started = time.monotonic()
    config: Config | None = None
    try:
        with hold(), probe.kept():
            config, origins, place = _configured(arguments)
            use = use_mount(config, origins, place)
            # From here to the end none of them may end us before the mount is gone: they wait, or go to the command.
            signal.pthread_sigmask(signal.SIG_BLOCK, commands.NEWS)
        tell_what_is_missing(config, use.mountpoint)
    except HfsError as error:
        complain_of(error)
        ctx.exit(RUN_FAILED)
    except KeyboardInterrupt:
        complain("interrupted before the command was started")  # a mount of ours ends, since nobody holds it
        ctx.exit(RUN_FAILED)
    before = _status(use.mountpoint) if use.is_joined and not quiet else None
    mounted = time.monotonic()
    code, has_run = RUN_FAILED, False
    try:
        code, has_run = _run_command(command, use)
    finally:
        seconds = {
            "joined after" if use.is_joined else "mounted after": mounted - started,
            "command": time.monotonic() - mounted,
        }
        is_last = _is_last(use)
        status = _status(use.mountpoint) if has_run and not quiet else None
        if is_last or (is_last is None and not taking_away.clean_stale(use.mountpoint) and _is_mounted(use.mountpoint)):
            _unmount(use)
        use.held.close()
        if has_run and not quiet:
            _summarize(seconds, since(before, status) if use.is_joined else status, is_joined=use.is_joined)
    ctx.exit(code)


def _configured(arguments: dict[str, Any]) -> tuple[Config, dict[str, str], str]:
    """The configuration with its places settled, and where COMMAND is to see the data. Raises ConfigError."""
    config, origins = load_config(arguments, required=False)
    if is_descriptor(config.mountpoint):
        raise ConfigError(
            f"--at {config.mountpoint}: hfs run mounts by itself; hfs mount takes a connection as MOUNTPOINT"
        )
    in_place = not config.mountpoint
    if in_place and config.source:
        mountpoint = mountpoint_of(real_source(config))
        if mountpoint is None:
            raise MountError("no directory of our own to mount at, below $XDG_RUNTIME_DIR or /tmp; give --at DIR")
        config = msgspec.structs.replace(config, mountpoint=mountpoint)
    if not (config.source and config.cache):
        load_config({**arguments, "mountpoint": config.mountpoint or "/"})  # says what is missing
    if config.peers == "mpi":
        raise ConfigError("peers: mpi is for hfs mount under mpirun or srun, one a node; then run COMMAND by itself")
    if origins.get("linger_s", "").startswith("environment SLURM") and jobs.is_contained():
        # It would be killed with this job, and leave a dead mount.
        config = msgspec.structs.replace(config, linger_s=0.0)
    config = without_stale(prepared(msgspec.structs.replace(config, foreground=False)))
    return config, origins, real_source(config) if in_place else config.mountpoint


def _run_command(command: tuple[str, ...], use: UsedMount) -> tuple[int, bool]:
    """Our exit code, and whether it has run."""
    try:
        where = _working_directory(use.place)
        code = commands.run_command(
            command,
            cwd=where,
            view=use.view,
            starting=use.held.command_starts,
            started=use.command_started,
            meanwhile=lambda: _tell(use.look()),
        )
    except MountError as error:
        complain_of(error)
        return RUN_FAILED, False
    except OSError as error:
        return not_started(command[0], error), False
    finally:
        _tell(use.command_ended())
    return SIGNALLED - code if code < 0 else code, True


def _is_last(use: UsedMount) -> bool | None:
    """As of `MountReference`. A keeper that was killed has a successor first: else a mount that others go on with would
    be taken for one that nobody keeps."""
    _tell(use.wait_kept())
    is_last = use.held.leave()
    if is_last is None:  # it was killed just then
        _tell(use.wait_kept())
        is_last = use.held.leave()
    return is_last


def _tell(said: str | None) -> None:
    if said is not None:
        complain(said)


def _working_directory(place: str) -> str | None:
    """Our working directory, entered anew where it lies below `place`: else it is the one below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return None
    return here if here == place or here.startswith(place.rstrip("/") + "/") else None


def _status(mountpoint: str) -> dict[str, Any] | None:
    try:
        return Client(find_socket(mountpoint)).status()
    except HfsError as error:
        complain(f"no figures: {error}")
        return None


def _unmount(use: UsedMount) -> None:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            taking_away.detach(use.mountpoint, lazy=False)
            break
        except taking_away.Busy as busy:
            if time.monotonic() < deadline:
                time.sleep(_BUSY_AGAIN_S)
                continue
            complain_of(busy)
            complain("the mount has been taken away; its daemon goes on until these have ended")
            taking_away.detach(use.mountpoint, lazy=True)
            return
        except HfsError as error:
            if not _is_mounted(use.mountpoint):
                break  # the command has unmounted it, or another user's umount has
            complain_of(error)
            return
    if (why := use.wait_gone(mounting.DRAIN_S)) is not None:
        complain(*why.split("\n"))


def _is_mounted(mountpoint: str) -> bool:
    mount = mountinfo.at(mountpoint)
    return mount is not None and mount.fstype == mountinfo.HFS_TYPE


def _summarize(seconds: Mapping[str, float], status: Mapping[str, Any] | None, *, is_joined: bool = False) -> None:
    """What is said at the end: where the time went, and what was read from where.

    `seconds`: how long each part took; `status`: that of `hfs status --json`, or what `since` makes of it where the
    mount is others' too.
    """
    from hfs.cli.figures import duration
    from hfs.cli.learners import epochs_table
    from hfs.cli.render import stderr
    from hfs.cli.status_screen import run_lines

    console = stderr()
    lines = [", ".join(f"{name} {duration(value)}" for name, value in seconds.items())]
    lines += run_lines(status, is_joined=is_joined) if status is not None else []
    for line in lines:
        console.print(f"hfs: {line}", markup=False, highlight=False, soft_wrap=True)
    epochs = epochs_table((status or {}).get("hints") or {})
    if epochs is not None:
        console.print(epochs)


def since(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A status with what has changed since another one; None: it is not known, or another daemon serves the mount.

    Learners are those that have come meanwhile.
    """
    if before is None or now is None or before.get("pid") != now.get("pid"):
        return None
    known = {learner.get("pid") for name in ("learners", "past") for learner in _learners(before, name)}
    came = {
        name: [learner for learner in _learners(now, name) if learner.get("pid") not in known]
        for name in ("learners", "past")
    }
    traffic, staged = _changed(before, now, "traffic"), _changed(before, now, "staged", ("files", "bytes"))
    faults = {name: _changed(before, now, name) for name in ("faults", "background_faults")}
    source = _changed(before, now, "source", ("errors",))
    return {**now, **faults, "traffic": traffic, "staged": staged, "source": source, "hints": came}


def _learners(status: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return (status.get("hints") or {}).get(name) or []


def _changed(
    before: Mapping[str, Any], now: Mapping[str, Any], part: str, names: Collection[str] | None = None
) -> dict[str, Any]:
    """What this part has now, its numbers (or those of these names) less what they were."""
    earlier, later = before.get(part) or {}, now.get(part) or {}
    return {
        name: value - (earlier.get(name) or 0) if type(value) in {int, float} and name in (names or later) else value
        for name, value in later.items()
    }
