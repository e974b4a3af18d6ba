"""`hfs run --source S --at M --cache D -- CMD ...`: a mount that lives as long as one command.

Ends with the command's exit code; what hfs itself cannot do ends with 125, so that a job script can tell the two apart.
Whatever happens to the command or to us short of SIGKILL, the mount is taken away again.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click
import msgspec

from hfs.cli.exit_codes import CANNOT_EXECUTE, NOT_FOUND, RUN_FAILED, SIGNALLED
from hfs.cli.mount import ready_to_mount
from hfs.cli.shared import complain, hold, load_config, mount_flags
from hfs.client.client import Client, find_socket
from hfs.mounting import command as commands
from hfs.mounting import mountinfo, mounting
from mountd.base.errors import ConfigError, HfsError
from mountd.core.config import Config

_BUSY_S = 5.0
"""Background processes of the command usually end within seconds of it."""
_BUSY_AGAIN_S = 0.1


class _RunUsageError(click.UsageError):
    exit_code = RUN_FAILED


class _Run(click.Command):
    """`hfs run` with a usage error as its own failure: code 2 would look like the command's."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse. Raises UsageError with exit code 125."""
        try:
            return super().make_context(*arguments, **extra)
        except click.UsageError as error:
            raise _RunUsageError(error.format_message(), error.ctx) from None


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.option("--source", metavar="DIR", help="The directory to show.")
@click.option("--at", "mountpoint", metavar="DIR", help="Where to show it while the command runs.")
@mount_flags
@click.option("--quiet", is_flag=True, help="No summary at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, quiet: bool, command: tuple[str, ...], **arguments: Any) -> None:
    """Mount, run COMMAND with its own user and environment, unmount.

    The exit code is COMMAND's, or 128 + N if signal N ended it; 125 if hfs failed, 126 if COMMAND cannot be executed,
    127 if it is not found. Signals are forwarded. A summary goes to stderr.
    """
    started = time.monotonic()
    config: Config | None = None
    try:
        with hold():
            config, origins = load_config(arguments)
            if config.peers == "mpi":
                raise ConfigError(
                    "peers: mpi is for hfs mount under mpirun or srun, one a node; then run COMMAND by itself"
                )
            config = ready_to_mount(msgspec.structs.replace(config, foreground=False))
            daemon = mounting.start(config, origins)
            # From here to the end none of them may end us before the mount is gone: they wait, or go to the command.
            signal.pthread_sigmask(signal.SIG_BLOCK, commands.FORWARDED | {signal.SIGCHLD})
    except HfsError as error:
        complain(str(error))
        ctx.exit(RUN_FAILED)
    except KeyboardInterrupt:
        complain("interrupted before the command was started")
        if config is not None and _is_mounted(config.mountpoint):  # in the moment after the start
            mounting.detach(config.mountpoint, lazy=True)
        ctx.exit(RUN_FAILED)
    mounted = time.monotonic()
    code = RUN_FAILED
    try:
        code = _run_command(command, config.mountpoint)
    finally:
        seconds = {"mounted after": mounted - started, "command": time.monotonic() - mounted}
        status = _last_status(config.mountpoint)
        _unmount(daemon)
        if not quiet:
            _summarize(seconds, status)
    ctx.exit(code)


def _run_command(command: tuple[str, ...], mountpoint: str) -> int:
    try:
        code = commands.run_command(command, cwd=_working_directory(mountpoint))
    except (FileNotFoundError, NotADirectoryError) as error:
        complain(f"{command[0]}: not found ({error.strerror})")
        return NOT_FOUND
    except OSError as error:
        complain(f"{command[0]}: cannot be executed ({error.strerror})")
        return CANNOT_EXECUTE
    return SIGNALLED - code if code < 0 else code


def _working_directory(mountpoint: str) -> str | None:
    """Our working directory, entered anew where it lies below MOUNTPOINT: else it is the one below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return None
    return here if here == mountpoint or here.startswith(mountpoint.rstrip("/") + "/") else None


def _last_status(mountpoint: str) -> dict[str, Any] | None:
    try:
        return Client(find_socket(mountpoint)).status()
    except HfsError as error:
        complain(f"no figures: {error}")
        return None


def _unmount(daemon: mounting.StartedDaemon) -> None:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            mounting.detach(daemon.mountpoint, lazy=False)
            break
        except mounting.Busy as busy:
            if time.monotonic() < deadline:
                time.sleep(_BUSY_AGAIN_S)
                continue
            complain(str(busy))
            complain("the mount has been taken away; its daemon goes on until these have ended")
            mounting.detach(daemon.mountpoint, lazy=True)
            daemon.leave()
            return
        except HfsError as error:
            if not _is_mounted(daemon.mountpoint):
                break  # the command has unmounted it, or another user's umount has
            complain(str(error))
            daemon.leave()
            return
    if not daemon.wait_gone(mounting.DRAIN_S):
        complain(f"process {daemon.pid} still works on the cache {mounting.DRAIN_S:g} s after the unmount")
        daemon.leave()


def _is_mounted(mountpoint: str) -> bool:
    mount = mountinfo.at(mountpoint)
    return mount is not None and mount.fstype == mountinfo.HFS_TYPE


def _summarize(seconds: dict[str, float], status: dict[str, Any] | None) -> None:
    from rich import box
    from rich.table import Table

    from hfs.cli.learners import epochs_table
    from hfs.cli.render import duration, size, stderr

    table = Table(title="hfs", box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("time", ", ".join(f"{name} {duration(value)}" for name, value in seconds.items()))
    if status is not None:
        source = status.get("source", {})
        operations = ", ".join(
            f"{source[name]:,} {name}" for name in ("reads", "opens", "stats", "listings") if source.get(name)
        )
        table.add_row("source", f"{size(source.get('bytes', 0))}, {operations or 'nothing asked'}")
        reads, read_bytes = status.get("reads", {}), status.get("read_bytes", {})
        if not any(reads.values()):
            table.add_row("served", "nothing: no read reached the daemon")
        for tier, count in reads.items():
            if count:
                table.add_row(f"served: {tier}", f"{count:,} reads, {size(read_bytes.get(tier, 0))}")
        total = sum(read_bytes.values())
        if total:
            share = f"{read_bytes.get('staged', 0) / total:.1%} of the bytes that the daemon served"
            table.add_row("staged share", share)
        staged = status.get("staged", {})
        table.add_row("staged", f"{staged.get('files', 0):,} files, {size(staged.get('bytes', 0))}")
        faults = {name: count for name, count in status.get("faults", {}).items() if count}
        faults |= {f"in the background ({name})": count for name, count in status.get("background_faults", {}).items()}
        if status.get("stale_served"):
            faults["stale_served"] = status["stale_served"]
        if faults:
            table.add_row("faults", ", ".join(f"{count:,} {name}" for name, count in faults.items()))
        table.add_row("not counted", "what the kernel answered from its page cache or by passthrough")
    console = stderr()
    console.print(table)
    epochs = epochs_table((status or {}).get("hints") or {})
    if epochs is not None:
        console.print(epochs)
