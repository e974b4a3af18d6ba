"""`hfs doctor`: what is wrong with this set-up, before anybody mounts or with the mounts that are there."""

from __future__ import annotations

import json
from typing import Any

import click

from hfs.cli.command import Command
from hfs.cli.exit_codes import CANNOT_WORK, DONE, LIMITS
from hfs.cli.mount_options import load_config
from hfs.doctor import CheckResult, Level, Surroundings, examine, here, worst
from hfs.doctor.check_result import fault
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.printable import printable

_CODES = {Level.GOOD: DONE, Level.LIMIT: LIMITS, Level.FAULT: CANNOT_WORK}
_COLORS = {Level.GOOD: "green", Level.NOTE: None, Level.LIMIT: "yellow", Level.FAULT: "red"}
_VERDICTS = {
    Level.GOOD: "nothing is wrong",
    Level.LIMIT: "mounts work, with the limits above",
    Level.FAULT: "mounts cannot work before the faults above are mended",
}


@click.command(cls=Command, examples=["hfs doctor --source /lustre/imagenet --cache /nvme/$USER/hfs"])
@click.option("--source", metavar="DIR", type=click.UNPROCESSED, help="Also look whether it can be read.")
@click.option(
    "--cache", metavar="DIR", type=click.UNPROCESSED, help="The cache root. Default: that of the configuration."
)
@click.option("--as-user", metavar="USER", help="Look at SOURCE as this user, as a mount with --as-user would.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor(ctx: click.Context, source: str | None, cache: str | None, as_user: str | None, as_json: bool) -> None:
    """Find what is wrong with this set-up, and say the remedy of each fault.

    Looks at /dev/fuse, fusermount3, the kernel, libfuse, limits, namespaces, SOURCE, the cache, and the mounts
    that are there. Changes nothing, mounts nothing, and does not wait for what hangs.

    Exit code 0: nothing is wrong. 1: mounts work, slower or with limits. 3: mounts cannot work, or one does not.
    """
    around, found = surroundings(source, cache, as_user)
    if not as_json:
        for finding in found:
            _print(finding)
    for finding in examine(around):
        found.append(finding)
        if not as_json:
            _print(finding)
    verdict = worst(found)
    if as_json:
        click.echo(json.dumps(report(found)))
    else:
        click.echo(_VERDICTS[verdict])
    ctx.exit(_CODES[verdict])


def surroundings(
    source: str | None, cache: str | None, as_user: str | None = None
) -> tuple[Surroundings, list[CheckResult]]:
    """With what the configuration says, and a fault if it cannot be read."""
    given: dict[str, Any] = {"source": source, "cache": cache, "as_user": as_user}
    try:
        config, _ = load_config({**given, "options": (), "config_file": None, "verbose": False}, required=False)
    except ConfigError as error:
        faults = [
            fault("configuration", line, "hfs config shows what is read from where") for line in str(error).splitlines()
        ]
        return here(source, cache), faults
    around = here(
        config.source or None,
        config.cache or None,
        cache_size_bytes=config.cache_size_bytes,
        allow_other=config.allow_other,
        as_user=config.as_user,
    )
    return around, []


def report(found: list[CheckResult]) -> dict[str, Any]:
    """The object of `hfs doctor --json`."""
    verdict = worst(found)
    return {
        "verdict": verdict.value,
        "exit_code": _CODES[verdict],
        "findings": [{**finding._asdict(), "level": finding.level.value} for finding in found],
    }


def _print(finding: CheckResult) -> None:
    label = click.style(f"{finding.level.value:<6}", fg=_COLORS[finding.level])
    click.echo(f"{label} {finding.check}: {printable(finding.line())}")
