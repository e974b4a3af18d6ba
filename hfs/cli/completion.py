"""`hfs completion SHELL`: prints the script that makes a shell complete `hfs` and `hfs-hint`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hfs.cli.command import Command
from hfs.mountd.core.errors import MountError


@click.command(cls=Command, examples=['eval "$(hfs completion bash)"', "hfs completion fish | source"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL for hfs and hfs-hint.

    Paths are completed, and mountpoints of hfs where a mount is meant.
    """
    from hfs.cli.hint import hint

    kind = get_completion_class(shell)
    if kind is None:
        raise MountError(f"this release of click knows no completion for {shell}; update click")
    for program, command in (("hfs", ctx.find_root().command), ("hfs-hint", hint)):
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(kind(command, {}, program, variable).source())
