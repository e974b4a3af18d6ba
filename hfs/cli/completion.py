"""`hfs completion SHELL`: prints the script that makes a shell complete `hfs`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mountd.base.errors import MountError


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL. For bash: eval "$(hfs completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise MountError(f"this release of click knows no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "hfs", "_HFS_COMPLETE").source())
