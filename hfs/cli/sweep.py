"""`hfs sweep`: takes away what killed daemons and ended jobs have left on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from hfs.cli.command import Command
from hfs.cli.config import load_config
from hfs.cli.exit_codes import DONE, FAILED, PARTLY
from hfs.cli.shared import complain
from hfs.mountd.core.errors import ConfigError, HfsError, printable
from hfs.sweeping import Swept, TimeForOthers

_USER_S, _OTHERS_S = 10.0, 30.0
"""What is done for other users: for one, for all. The epilog gives a minute."""


@click.command(cls=Command, examples=["hfs sweep --dry-run"])
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    help="Whose cache and expire say what is too old. Default: the usual files.",
)
@click.pass_context
def sweep(ctx: click.Context, /, dry_run: bool, as_json: bool, configs: tuple[str, ...]) -> None:
    """Take away what was left: dead mounts, mounts and daemons of ended jobs, sockets, expired caches.

    For root: of all users; else your own. What answers and is in use stays, and so does what nobody knows of: whether a
    job has ended is asked of Slurm. A line for each thing. Exit code 3: something of your own is still there, 1: all.
    """
    found = []
    for swept in _all(configs, dry_run=dry_run):
        found.append(swept)
        if not as_json:
            click.echo(printable(swept.line(dry_run=dry_run)))
    kept = [swept for swept in found if swept.kept and not swept.is_theirs]
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "found": [swept._asdict() for swept in found]}))
    ctx.exit(DONE if not kept else PARTLY if len(kept) < len(found) else FAILED)


def _all(configs: tuple[str, ...], *, dry_run: bool) -> Iterator[Swept]:
    from hfs.sweeping import caches, daemons, mounts, sockets

    others = TimeForOthers(_USER_S, _OTHERS_S)
    yield from mounts.sweep(dry_run=dry_run, others=others)
    yield from daemons.sweep(dry_run=dry_run, others=others)
    yield from sockets.sweep(dry_run=dry_run, others=others)
    seen = set()
    for config_file in configs or (None,):
        no_options = {"options": (), "config_file": config_file, "verbose": False}
        config, _ = load_config(no_options, required=False)
        if not config.cache or not config.expire_s or config.cache in seen:
            if config_file is not None and not (config.cache and config.expire_s):
                raise ConfigError(f"--config {config_file}: says no cache and expire, so nothing is too old")
            continue
        seen.add(config.cache)
        try:
            yield from caches.sweep(config.cache, config.expire_s, dry_run=dry_run, others=others)
        except (HfsError, OSError) as error:
            complain(f"cache {config.cache}: {error}")
    for uid in sorted(others.stopped):
        why = f"there are no more than {others.limits}; the next sweep goes on"
        yield Swept("user", f"user {uid}", "what was not looked at", why, is_theirs=True)
