"""`hfs refresh PATH...`: the source has changed, and is to be seen as it is now, whatever ttl or --immutable say."""

from __future__ import annotations

import json

import click

from hfs.cli.command import Command
from hfs.cli.exit_codes import DONE, FAILED, PARTLY
from hfs.cli.figures import count
from hfs.cli.shared import complain, complete_mounts, control_option, targets_of


@click.command(cls=Command, examples=["hfs refresh /data/train"])
@click.argument("paths", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each mount.")
@control_option
@click.pass_context
def refresh(ctx: click.Context, /, paths: tuple[str, ...], as_json: bool, control: str | None) -> None:
    """Look at the source now, for PATHs, files or whole directories of a mount.

    Names, attributes and listings are looked up anew at the next use, on this node. What has changed is fetched again
    when it is read; what has not stays staged. Open files go on with the version that they have.
    """
    files = failed = 0
    for target in targets_of(paths, control):
        result = target.client.refresh(target.paths)
        files += result.files
        failed += result.failed
        for fault in result.faults:
            complain(f"{target.shown(fault.path)}: {fault.message}")
        if as_json:
            click.echo(json.dumps({"mountpoint": target.mountpoint, "names": result.files, "failed": result.failed}))
    if not as_json:
        click.echo(f"{count(files, 'name')} {'is' if files == 1 else 'are'} looked up anew")
    ctx.exit(DONE if not failed else PARTLY if files else FAILED)
