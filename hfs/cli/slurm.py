"""`hfs slurm prolog|epilog|job|task`: prints scripts for Slurm, with a site's places in them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from hfs.cli.command import CommandGroup
from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError, printable
from hfs.slurm import printed

_DEFAULT_CONFIG = "/etc/hfs/slurm.toml"

_source = click.option("--source", metavar="DIR", help="The directory to show. Default: one to be edited.")
_cache = click.option("--cache", metavar="DIR", help="On a disk of the node. Default: below $TMPDIR or /tmp.")
_cache_size = click.option("--cache-size", metavar="SIZE", help="At most this much in the cache, like 500G.")
_command = click.argument("command", nargs=-1, type=click.UNPROCESSED)
_ARGUMENTS = {"allow_interspersed_args": False}


@click.group(cls=CommandGroup)
def slurm() -> None:
    """Print a script for Slurm, to stdout. Each says at its head what it does, and who puts it where.

    Values may name variables of the job, in single quotes: '/nvme/$USER/hfs'.
    """


@slurm.command(
    examples=[
        "hfs slurm prolog > /etc/slurm/hfs-prolog",
        "hfs slurm prolog --config /etc/hfs/imagenet.toml --config /etc/hfs/era5.toml",
    ]
)
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    default=(_DEFAULT_CONFIG,),
    help=f"What is mounted where: keys of hfs mount, as TOML. One for each mount. Default: {_DEFAULT_CONFIG}",
)
def prolog(configs: tuple[str, ...]) -> None:
    """Print a prolog for all jobs: root mounts data sets for the users of the node, before a job starts."""
    for config in configs:
        if not os.path.isabs(config):
            raise ConfigError(f"--config {config}: a prolog starts in /; give the absolute path")
    _show("prolog", {"configs": configs})


@slurm.command(examples=["hfs slurm epilog > /etc/slurm/hfs-epilog"])
def epilog() -> None:
    """Print the epilog that goes with the prolog: ends the job's use, unmounts with the last, cleans up."""
    _show("epilog", {})


@slurm.command(
    context_settings=_ARGUMENTS,
    examples=["hfs slurm job --nodes 2 --source /lustre/imagenet -- python train.py --data '$data' > job.sh"],
)
@_source
@click.option("--at", metavar="DIR", help="Where to show it; the same on all nodes. Default: below $TMPDIR or /tmp.")
@_cache
@_cache_size
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--peers", is_flag=True, help="Nodes share their caches by MPI; see the page about many nodes.")
@_command
def job(at: str | None, nodes: int, peers: bool, **given: Any) -> None:
    """Print a job for users, of one or more nodes: daemons in a step of their own, COMMAND in another.

    COMMAND finds the data at $data, the place that --at names.
    """
    values = _values(given)
    if at is not None:
        values["mountpoint"] = at
    if peers:
        values["options"] = [*values.get("options", ()), "--peers", "mpi"]
    _show("job", values, {"nodes": str(nodes)})


@slurm.command(
    context_settings=_ARGUMENTS,
    examples=["hfs slurm task --source /lustre/imagenet -- python train.py '$SLURM_ARRAY_TASK_ID' > task.sh"],
)
@_source
@_cache
@_cache_size
@_command
def task(**given: Any) -> None:
    """Print the task of a job array for users: tasks on one node share its cache.

    COMMAND finds the data at SOURCE itself.
    """
    _show("task", _values(given))


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """What stands in the script. Raises ConfigError."""
    values: dict[str, Any] = {name: given[name] for name in ("source", "cache") if given[name] is not None}
    if (size := given["cache_size"]) is not None:
        try:
            parse_size(size)
        except ValueError:
            raise ConfigError(f"--cache-size {size}: no size; give one like 500G") from None
        values["options"] = ["--cache-size", size]
    if given["command"]:
        values["training"] = given["command"]
    return values


def _show(name: str, values: dict[str, Any], settings: dict[str, str] | None = None) -> None:
    text = printed(name, {"hfs": _own_command(), **values}, settings)
    click.echo("\n".join(map(printable, text.split("\n"))), nl=False)


def _own_command() -> str:
    """The command that prints a script is the one that it calls: a prolog has no PATH of anybody's. Beside the
    interpreter, as /usr/bin/python3 of `pip install --user`, may be one of the same name of another package."""
    given = os.path.abspath(sys.argv[0])
    if os.path.basename(given) == "hfs" and os.access(given, os.X_OK) and os.path.isfile(given):
        return given
    beside = Path(sys.executable).parent / "hfs"
    return str(beside) if beside.exists() else shutil.which("hfs") or "hfs"
