"""The options of a mount, the configuration that they make together with the environment and the files, and `hfs
config`, which shows it: every key, its value here and now, and where it came from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from hfs.cli.command import Command
from hfs.cli.shared import complain
from hfs.mountd.core.config import KEYS, Config, describe
from hfs.mountd.core.config.key import Key
from hfs.mountd.core.config.loading import config_files, load, state_directory
from hfs.mountd.core.errors import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])

NO_OPTIONS: dict[str, Any] = {"options": (), "config_file": None, "verbose": False}
"""Of a command that takes the configuration as the environment and the files have it."""


def _option(key: Key) -> Callable[[_Command], _Command]:
    """The option of a key. Its value is plain text here: `core.config.loading` judges it, so that all faults are told
    together."""
    if not key.kind.metavar:
        return click.option(f"--{key.name}", is_flag=True, default=None, help=key.help)
    default = "" if key.missing else f" [default: {key.default}]".replace("`", "")
    return click.option(f"--{key.name}", metavar=key.kind.metavar, help=key.help + default)


_FLAGS: tuple[Callable[[_Command], _Command], ...] = (
    *(_option(key) for key in KEYS if key.option),
    click.option("-v", "--verbose", is_flag=True, help="Log more (log-level=debug), say how reads will be served."),
    click.option("-o", "options", metavar="KEY=VALUE,...", multiple=True, help="Any key of the configuration."),
    click.option("--config", "config_file", metavar="FILE", help="Read this TOML file instead of the usual two."),
)


def mount_flags(command: _Command) -> _Command:
    """Add the options that `hfs mount`, `hfs run` and `hfs config` share."""
    for option in reversed(_FLAGS):
        command = option(command)
    return command


def load_config(arguments: Mapping[str, Any], *, required: bool = True) -> tuple[Config, dict[str, str]]:
    """The configuration from a command's arguments, the environment and the files. Raises ConfigError."""
    given = dict(arguments)
    options, config_file = given.pop("options"), given.pop("config_file")
    if given.pop("verbose"):
        given["log_level"] = "debug"
    files = config_files(os.environ, config_file)
    return load(given, os.environ, files, options=options, required=required, warn=complain)


def prepared(config: Config) -> Config:
    """The same with absolute paths, and a log file unless in the foreground."""
    from hfs.mountd.core.socket_places import why_elsewhere
    from hfs.mounting import logs
    from hfs.mounting.preflight import absolute

    if (why := why_elsewhere()) is not None:
        complain(why)
    config = absolute(config)
    if config.log_file is None and not config.foreground:
        config = msgspec.structs.replace(config, log_file=logs.default_log_file(config, state_directory(os.environ)))
        if (why := logs.why_none(config)) is not None:
            complain(why)
    return config


def without_stale(config: Config) -> Config:
    """The same, once a mount that a dead daemon has left at MOUNTPOINT is out of the way."""
    from hfs.mounting import taking_away

    if taking_away.clean_stale(config.mountpoint):
        complain(f"{config.mountpoint}: removed the mount that a dead daemon had left")
    return config


@click.command(cls=Command, examples=["hfs config", "hfs config --json"])
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@mount_flags
def config(as_json: bool, **arguments: Any) -> None:
    """Show the configuration that hfs mount would use, and where each value comes from.

    Defaults < TOML files < environment HFS_* < command line. Sizes are in bytes, times in seconds.
    """
    described = describe(*load_config(arguments, required=False))
    if as_json:
        click.echo(json.dumps(described))
        return
    from hfs.cli.render import new_table, stdout

    table = new_table("", "key", "value", "origin", "allowed")
    for key in KEYS:
        value = described[key.name]["value"]
        shown = "" if value in {None, ""} else json.dumps(value) if isinstance(value, bool) else str(value)
        table.add_row(key.name, printable(shown), printable(str(described[key.name]["origin"])), key.kind.allowed)
    stdout().print(table)
