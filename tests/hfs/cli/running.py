"""Running the command line in this process. Not a test module."""

import contextlib
from pathlib import Path

from click.testing import CliRunner, Result

from hfs.cli import cli


def hfs(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    """Run the command line in this process, which stays where it is: `hfs umount` goes to /."""
    with contextlib.chdir("."):
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin, prog_name="hfs")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
