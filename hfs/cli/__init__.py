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
from hfs.cli import streams
from hfs.cli.command import Command, CommandGroup

__all__ = ["Command", "CommandGroup", "cli", "main"]

_COMMANDS = {
    "mount": "Show the files of SOURCE, read-only, at MOUNTPOINT.",
    "umount": "Unmount MOUNTPOINT and wait until its daemon has ended.",
    "run": "Mount, run COMMAND with its own user and environment, unmount.",
    "status": "Show the state of the mount that MOUNT lies in; without MOUNT, all mounts of hfs.",
    "why": "Say why jobs that read from the mount that MOUNT lies in wait, and what to change.",
    "refresh": "Look at the source now, for PATHs, files or whole directories of a mount.",
    "cache": "Work on what is staged: of a mount, or of a cache directory (--cache) with nothing mounted.",
    "sweep": "Take away what was left: dead mounts, mounts and daemons of ended jobs, sockets, expired caches.",
    "doctor": "Find what is wrong with this set-up, and say the remedy of each fault.",
    "plan": "Say how long an epoch takes on 1 to 1024 nodes and where more nodes gain nothing.",
    "layout": "Work on layouts: which bytes of which files each sample of a data set is.",
    "trace": "Use what `hfs-hint record` has kept of a job.",
    "encode": "Encode the samples in SRC (HDF5, .npy, .npz, or a directory of such) into .hfsc files in DST.",
    "decode": "Decode SRC (an .hfsc file, or a directory of such) into .npy files in DST, .npz for those with labels.",
    "config": "Show the configuration that hfs mount would use, and where each value comes from.",
    "slurm": "Print a script for Slurm, to stdout.",
    "fd-mount": "Mount at MOUNTPOINT, as root, for a process without rights.",
    "completion": "Print the completion script of SHELL for hfs and hfs-hint.",
    "man": "Print the man page of COMMAND (hfs itself without one), or write those of all commands below a directory.",
    "debug": "Help others to find out what happened here.",
}
"""Each is the command of the same name, `_` for `-`, in the file of that name or of `_FILES`. What it does is said here
too, so that `--help` need not import them all."""
_FILES = {
    "completion": "man",
    "debug": "doctor",
    "decode": "encode",
    "fd-mount": "mount",
    "refresh": "cache",
    "umount": "mount",
    "why": "status",
}
"""Where several commands are about one thing."""
_HEADINGS = {
    "mount": "Mounts",
    "cache": "The cache",
    "doctor": "Before a job",
    "config": "For administrators, and set-up",
}
"""What stands in the help above these commands."""


class _Commands(CommandGroup):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """In the order in which people need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """The command, or None. `hfs status` must answer at once, so nothing else is imported for it."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"hfs.cli.{_FILES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """For `hfs --help`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, text in _COMMANDS.items():
            heading = _HEADINGS.get(name) or list(sections)[-1]
            sections.setdefault(heading, []).append((name, text))
        for heading, commands in sections.items():
            with formatter.section(heading):
                formatter.write_dl(commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hfs.__version__, "-V", "--version", prog_name="hfs")
def cli() -> None:
    """Show a slow shared file system, cached on a local disk.

    A daemon reads SOURCE once, in large pieces, keeps what it read on a local disk and serves every process of the
    machine from there, read-only and unchanged.
    """


def main() -> None:
    """The entry point of the `hfs` command."""
    streams.guard()
    cli(prog_name="hfs")
