"""`hfs doctor`: what is wrong with this set-up, before anybody mounts or with the mounts that are there. And `hfs debug
bundle [MOUNT]`: what somebody needs who is to find out what happened, in one archive without names."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import click

from hfs.cli.command import Command, CommandGroup
from hfs.cli.config import NO_OPTIONS, load_config
from hfs.cli.exit_codes import CANNOT_WORK, DONE, LIMITS
from hfs.cli.shared import complete_mounts
from hfs.doctor import CheckResult, Level, Surroundings, examine, here, worst
from hfs.doctor.surroundings import fault
from hfs.mountd.core.errors import ConfigError, MountError, printable
from hfs.mounting import mountinfo

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
        config, _ = load_config({**NO_OPTIONS, **given}, required=False)
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


@click.group(cls=CommandGroup)
def debug() -> None:
    """Help others to find out what happened here."""


@debug.command(examples=["hfs debug bundle /data"])
@click.argument("mount", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option(
    "-o", "--output", metavar="FILE", type=click.UNPROCESSED, help="The archive. Default: hfs-debug-TIME.tar.gz here."
)
@click.option("--with-names", is_flag=True, help="Leave names of files of the data set as they are.")
def bundle(mount: str | None, output: str | None, with_names: bool) -> None:
    """Pack versions, configuration, status, logs, limits and doctor's findings into an archive for a report.

    Names of files below SOURCE are masked, and no file of it is looked at. Only you may read the archive. MOUNT: only
    of the mount that it lies in.
    """
    from hfs.cli.figures import size
    from hfs.doctor.bundle import Collector, write
    from hfs.mountd.core.config import describe

    around, findings = surroundings(None, None)
    place = None
    if mount is not None:
        found = mountinfo.enclosing(mountinfo.canonical(mount, around.table), around.table)
        if found is None or found.fstype != mountinfo.HFS_TYPE:
            raise ConfigError(f"{mount}: not in a mount of hfs; hfs status lists the mounts")
        place = found.mountpoint
    try:
        configuration: dict[str, object] = dict(describe(*load_config(NO_OPTIONS, required=False)))
    except ConfigError as error:
        configuration = {"error": str(error)}
    collector = Collector(around, place, with_names=with_names)
    findings += examine(around.without_source())
    files = dict(collector.gather(configuration, report(findings)))
    path = output or time.strftime("hfs-debug-%Y%m%d-%H%M%S.tar.gz")
    try:
        length = write(path, files)
    except FileExistsError:
        raise MountError(f"{path}: is there already; give another name with -o FILE") from None
    except OSError as error:
        raise MountError(f"{path}: cannot be written ({error.strerror}); give another with -o FILE") from None
    names = "with names of files" if with_names else "names of files are masked"
    click.echo(f"{os.path.abspath(path)}: {size(length)}, {names}; look through it before you give it away")
