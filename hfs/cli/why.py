"""`hfs why [MOUNT]`: the one cause for which jobs wait most, and the one change to make."""

from __future__ import annotations

import json

import click

from hfs.cli.command import Command
from hfs.cli.exit_codes import DONE
from hfs.cli.shared import complete_mounts, control_option, sole_mount, target_of
from hfs.cli.situation import situation_of
from hfs.client.client import Client
from hfs.mountd.core.printable import printable
from hfs.policies.diagnosis.causes import WORTH, found, nothing


@click.command(cls=Command, examples=["hfs why /data"])
@click.argument("mount", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all causes that were found.")
@click.option("--all", "everything", is_flag=True, help="All causes, the most expensive first.")
@control_option
@click.pass_context
def why(ctx: click.Context, mount: str | None, as_json: bool, everything: bool, control: str | None) -> None:
    """Say why jobs that read from the mount that MOUNT lies in wait, and what to change. Default: the only mount.

    Looks at the last minute, and at the last epochs that learners have told of. Says "nothing" where nothing is worth
    a change, or nothing is proven.
    """
    client = Client(control) if control is not None else target_of(mount or sole_mount()).client
    situation = situation_of(client.status(page_cache=True))
    findings = found(situation)
    if as_json:
        click.echo(json.dumps({"causes": [finding._asdict() for finding in findings]}))
        ctx.exit(DONE)
    if not findings:
        click.echo(f"nothing: {nothing(situation) or 'jobs do not wait for their data'}")
    for finding in findings if everything else findings[:1]:
        # What is worth just naming, or all of the time, was not measured: it is there to put causes in their order.
        share = f" (about {finding.cost:.0%} of the time)" if WORTH < finding.cost < 1 else ""
        click.echo(printable(finding.what) + share)
        click.echo(f"  seen: {printable(finding.evidence)}")
        click.echo(f"  change: {printable(finding.remedy)}")
    ctx.exit(DONE)
