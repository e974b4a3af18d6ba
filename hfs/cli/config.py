"""`hfs config`: every key of the configuration, its value here and now, and where it came from."""

from __future__ import annotations

import json
from typing import Any

import click

from hfs.cli.command import Command
from hfs.cli.mount_options import load_config, mount_flags
from hfs.mountd.core.config import KEYS, describe
from hfs.mountd.core.printable import printable


@click.command(cls=Command, examples=["hfs config", "hfs config --json"])
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@mount_flags
def config(as_json: bool, **arguments: Any) -> None:
    """Show the configuration that hfs mount would use, and where each value comes from.

    Defaults < TOML files < environment HFS_* < command line. Sizes are in bytes, times in seconds.
    """
    found, origins = load_config(arguments, required=False)
    described = describe(found, origins)
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
