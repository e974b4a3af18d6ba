"""The command line: `hfs COMMAND ...`. Each command is a thin file of this package over the rest of `hfs`.

Exit codes, the same for all commands; scripts may rely on them.

    0    done
    1    failed: what was asked for is right but could not be done (SOURCE unreadable or silent, something already
         mounted there, the cache unwritable or owned by another daemon, nothing mounted, a busy mount, a dead daemon)
    2    usage: what was given cannot be (unknown options and keys, impossible values, SOURCE or MOUNTPOINT missing or
         not a directory, MOUNTPOINT not empty without --over, the cache inside SOURCE or MOUNTPOINT)
    3    partly done: some of the files of `hfs cache` failed, or were open and stayed; some samples of
         `hfs encode` and `hfs decode` failed
    `hfs doctor` ends with 0 where nothing is wrong, 1 where mounts work with limits, 3 where they cannot work.
    `hfs run` ends with its command's code, 128 + N if signal N ended it; its own are, as for env(1),
    125  hfs itself failed, for whatever reason of the above
    126  the command could not be executed
    127  the command was not found

Messages go to stderr, one line each with a remedy, and say `hfs: ` in front; results go to stdout.
"""

from __future__ import annotations

import importlib

import click

import hfs
from mountd.base.errors import HfsError

__all__ = ["CommandGroup", "cli", "main"]

_COMMANDS = (
    "mount",
    "umount",
    "fd-mount",
    "run",
    "status",
    "why",
    "cache",
    "refresh",
    "layout",
    "plan",
    "encode",
    "decode",
    "config",
    "doctor",
    "debug",
    "completion",
)
"""Each is the command of the same name in the file of the same name, `_` for `-`."""


class CommandGroup(click.Group):
    """Turns every error of ours into its lines and its exit code."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises click's Exit with the code of an HfsError."""
        try:
            return super().invoke(ctx)
        except HfsError as error:
            from hfs.cli.exit_codes import code_of
            from hfs.cli.shared import complain

            complain(str(error))
            raise click.exceptions.Exit(code_of(error)) from None


class _Commands(CommandGroup):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """In the order in which people need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """The command, or None. `hfs status` must answer at once, so nothing else is imported for it."""
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"hfs.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hfs.__version__, prog_name="hfs")
def cli() -> None:
    """Show a slow shared file system at local-disk speed.

    A daemon reads SOURCE once, in large pieces, keeps what it read on a local disk and serves every process of the
    machine from there, read-only and unchanged.
    """


def main() -> None:
    """The entry point of the `hfs` command."""
    cli(prog_name="hfs")
