"""Running the command line in this process. Not a test module."""

import contextlib
from pathlib import Path

import click
from click.testing import CliRunner, Result

from hfs.cli import cli
from hfs.cli.hint import hint as hfs_hint


def hfs(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """Run the command line in this process, which stays where it is: `hfs umount` goes to /."""
    return _run(cli, "hfs", arguments, stdin)


def hint(*arguments: str | Path) -> Result:
    """The same of `hfs-hint`."""
    return _run(hfs_hint, "hfs-hint", arguments, None)


def _run(program: click.Command, name: str, arguments: tuple[str | Path, ...], stdin: str | bytes | None) -> Result:
    with contextlib.chdir("."):
        result = CliRunner().invoke(program, [str(argument) for argument in arguments], input=stdin, prog_name=name)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
