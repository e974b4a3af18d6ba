"""`hfs mount SOURCE MOUNTPOINT --cache DIR`: returns when the mount answers, or says why there is none."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import click

from hfs import daemon_process, mounting
from hfs.cli.shared import complain, hold, load_config, mount_flags, prepared
from hfs.client import Client, find_socket
from hfs.places import check_places
from mountd.config import Config
from mountd.errors import HfsError, MountError

__all__ = ["mount", "parts", "ready_to_mount"]


@click.command
@click.argument("source", required=False, type=click.UNPROCESSED)
@click.argument("mountpoint", required=False, type=click.UNPROCESSED)
@click.option("-f", "--foreground", is_flag=True, default=None, help="Stay, and log to stderr; Ctrl-C unmounts.")
@mount_flags
def mount(**arguments: Any) -> None:
    """Show the files of SOURCE, read-only, at MOUNTPOINT.

    Returns when the mount answers. Keys may also stand in /etc/hfs/config.toml, $XDG_CONFIG_HOME/hfs/config.toml, in
    the environment as HFS_KEY, and in -o; see hfs config. With -v it says how files will be read, and what of the fast
    ways is not possible here, and why.
    """
    verbose = bool(arguments.get("verbose"))
    config, origins = load_config(arguments)
    with hold():
        config = ready_to_mount(config)
        if not config.foreground:
            mounting.start(config, origins).leave()
            if verbose:
                _tell_parts(config.mountpoint)
            _mention_working_directory(config.mountpoint)
            return

    def mounted() -> None:
        complain(f"{config.mountpoint}: mounted")
        if verbose:  # in a thread: the daemon, which answers, is this process
            threading.Thread(target=_tell_parts, args=(config.mountpoint,), name="hfs-parts", daemon=True).start()

    try:
        daemon_process.serve(config, origins, mounted)
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


def parts(status: Mapping[str, Any]) -> list[str]:
    """A line for each part that makes reads fast: what holds in this mount, or why it does not."""
    io_mode, kernel = status.get("io_mode", {}), status.get("kernel", {})
    lines = [f"io mode: {io_mode.get('mode')} ({io_mode.get('reason')})"]
    lines += [f"{name}: {io_mode.get(name)}" for name in ("passthrough", "stateless", "extension")]
    for name, figure, unit in (("readahead", "read_ahead_kb", " KiB"), ("background requests", "max_background", "")):
        value = kernel.get(figure)
        lines.append(f"{name}: {value}{unit}" if value is not None else f"{name}: as the kernel has it")
    return lines + list(kernel.get("notes", []))


def _tell_parts(mountpoint: str) -> None:
    try:
        status = Client(find_socket(mountpoint)).status()
    except HfsError as error:  # mounted it is all the same
        complain(f"no figures: {error}")
        return
    complain("\n".join(parts(status)))


def _mention_working_directory(mountpoint: str) -> None:
    """A shell that stands in MOUNTPOINT stands in the directory below the mount."""
    try:
        here = os.getcwd()
    except OSError:
        return
    if here == mountpoint or here.startswith(mountpoint.rstrip("/") + "/"):
        complain(f'your shell still stands in the directory below the mount; go in: cd "{here}"')
