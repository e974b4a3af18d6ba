"""`hfs-hint send|record|replay|show`: hints without touching the training script.

`send` and `replay` speak for a learner and stay connected: the daemon forgets an order when its connection ends. They
do not know how far the training is, so the daemon takes the order for one whose pace it does not know: it stages ahead
as far as the cache has room. Exit codes are those of `hfs`.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import hfs
from hfs.cli import CommandGroup, streams
from hfs.cli.exit_codes import DONE, FAILED, PARTLY, SIGNALLED
from hfs.cli.figures import count
from hfs.cli.hint_input import read_list, read_order, within
from hfs.cli.shared import MountTarget, complain, control_option, hold, not_started, sole_mount, targets_of
from hfs.client.control_socket import DaemonSilent
from hfs.layouts.layout import Layout
from hfs.layouts.trace import Read, traced, waits_of
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.hints import encode_layout, layout_digest
from hfs.mountd.wire.layout import LayoutError
from hfs.mountd.wire.protocol import Join
from hfs.mounting import mountinfo
from hfs.training.hint_connection import HintConnection
from hfs.training.launcher import job_name, process_token, rank_and_world

_Indices = npt.NDArray[np.int64]

_ANSWER_S = 60.0
"""For the daemon to plan an order: seconds for a hundred million samples."""
_POLL_S = 1.0
_LOOKS = 10
"""So often it is looked whether files can be had, where their staging is not waited for."""
_ALL_BUT = 0.9999
"""Of shares that are rounded."""
_STUCK_S = 60.0
"""Without progress for so long, there is no room for the rest, or the source is silent."""

mount_option = click.option("--mount", metavar="DIR", help="The mount. Default: the only one.")


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hfs.__version__, "-V", "--version", prog_name="hfs-hint")
def hint() -> None:
    """Tell the daemon of a mount in which order its files will be read.

    Exit codes: 0 done, 1 failed, 2 usage, 3 partly done.
    """


@hint.command(examples=["hfs-hint send --order epoch0.npy --files train.txt --until-staged"])
@mount_option
@click.option(
    "--order", "order_file", metavar="NPY", required=True, help="Indices of the epoch, one-dimensional, .npy."
)
@click.option("--files", "list_file", metavar="LIST", help="Index i is the file in line i (from 0) of LIST.")
@click.option("--layout", "layout_file", metavar="LAYOUT", help="Index i is sample i of LAYOUT (hfs layout build).")
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, metavar="E")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="R", help="Which learner reads so. Default: the launcher's."
)
@click.option("--world", type=click.IntRange(min=1), metavar="W", help="Of how many.")
@click.option("--name", default="", metavar="N", help="For hfs status.")
@click.option("--until-staged", is_flag=True, help="End when all of it is staged.")
@control_option
@click.pass_context
def send(
    ctx: click.Context,
    /,
    mount: str | None,
    order_file: str,
    list_file: str | None,
    layout_file: str | None,
    epoch: int,
    rank: int | None,
    world: int | None,
    name: str,
    until_staged: bool,
    control: str | None,
) -> None:
    """Send the order of an epoch and stay until Ctrl-C: the daemon follows it as long as this runs.

    Without --until-staged start it in the background beside the training, and end it with the epoch.
    """
    if (list_file is None) == (layout_file is None):
        raise ConfigError("give either --files or --layout")
    if (rank is None) != (world is None) or (rank is not None and world is not None and rank >= world):
        raise ConfigError("give both --rank and --world, 0 <= R < W, or none")
    target = _target(mount, control)
    code = DONE
    if list_file is not None:
        files = read_list(list_file)
        order = read_order(order_file, len(files))
        layout, numbers = within(files, target.mountpoint)
        order = numbers[order]
        if (order < 0).any():
            order, code = order[order >= 0], PARTLY
            if not len(order):
                raise ConfigError(f"{order_file}: it names only files that are not below {target.mountpoint}")
    else:
        layout = _load(str(layout_file), target)
        order = read_order(order_file, layout.samples)
    learner = rank_and_world() if rank is None or world is None else (rank, world)
    ctx.exit(_follow(target, layout, order, epoch, learner, name, until_staged=until_staged) or code)


@hint.command(
    context_settings={"allow_interspersed_args": False},
    examples=["hfs-hint record -o train.trace -- python train.py --data /data"],
)
@mount_option
@click.option("-o", "--output", metavar="TRACE", required=True, help="Where to keep what was read: a layout.")
@control_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record(
    ctx: click.Context, /, mount: str | None, output: str, control: str | None, command: tuple[str, ...]
) -> None:
    """Record what is read from the mount until Ctrl-C, or while COMMAND runs (its exit code is then ours).

    Sample i of TRACE is the i-th read. What the kernel answers from its page cache is not seen: record the first epoch
    of a fresh mount. While it records there are no overlays. Nothing is written if nothing was read.
    """
    target = _target(mount, control)
    child: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if command:
            child.append(subprocess.Popen(command))
        else:
            click.echo("recording; Ctrl-C ends it", err=True)

    reads: list[Read] = []
    lost = 0
    status = target.client.status()
    if (status.get("by_kernel") or {}).get("overlays"):
        complain("while it records, staged files are not opened by the kernel itself; those open already are not seen")
    before = waits_of(status)
    parts = target.client.touches(start, lambda: bool(child and child[0].poll() is not None))
    try:
        with hold():
            while True:
                try:
                    part = next(parts, None)
                    if part is None:
                        break
                    lost += part.lost
                    reads += [
                        Read(path, touch.offset, touch.size, touch.at_us, touch.thread)
                        for touch in part.touches
                        if (path := target.seen(touch.path)) is not None
                    ]
                except KeyboardInterrupt:
                    break
    except OSError as error:
        ctx.exit(not_started(command[0], error))
    finally:
        parts.close()  # type: ignore[attr-defined] # it is a generator
    code = child[0].wait() if child else DONE
    if lost:
        complain(f"{lost:,} reads came faster than they could be recorded and are missing")
    if not reads:
        complain("nothing was read through the daemon")
        ctx.exit(code or FAILED)
    reads.sort(key=lambda read: read.at_us)  # opens that no Python has answered are told a moment later
    trace = traced(reads, target.mountpoint, waits_of(target.client.status()) - before)
    trace.save(output)
    click.echo(f"{output}: {count(trace.samples, 'read')} of {count(trace.file_count, 'file')}", err=True)
    ctx.exit(SIGNALLED - code if code < 0 else code or (PARTLY if lost else DONE))


@hint.command(examples=["hfs-hint replay train.trace --warm"])
@click.argument("trace", type=click.UNPROCESSED)
@mount_option
@click.option("--warm", is_flag=True, help="Stage its files whole, and end; else hint the order of its reads.")
@click.option("--until-staged", is_flag=True, help="End when all of it is staged.")
@control_option
@click.pass_context
def replay(
    ctx: click.Context, /, trace: str, mount: str | None, warm: bool, until_staged: bool, control: str | None
) -> None:
    """Use what `record` has kept: as a hint (until Ctrl-C), or to stage the files before the job."""
    target = _target(mount, control)
    layout = _load(trace, target)
    if not warm:
        order = np.arange(layout.samples)
        ctx.exit(_follow(target, layout, order, 0, (0, 1), "replay", until_staged=until_staged))
    from hfs.cli.reporting import BarReporter

    files = layout.files
    with BarReporter("warmed") as reporter:
        for start in range(0, len(files), 100_000):  # each far below the longest frame
            wanted = [target.named(file) for file in files[start : start + 100_000]]
            result = target.client.warm(wanted, 0, reporter.news_for(target.shown))
            reporter.end_part(result, target.shown)
        reporter.close()
    ctx.exit(PARTLY if reporter.total.failed else DONE)


@hint.command(examples=["hfs-hint show"])
@mount_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@control_option
def show(mount: str | None, as_json: bool, control: str | None) -> None:
    """Show who has joined, how far they are, and where the time of their epochs went."""
    status = _target(mount, control).client.status()
    hints = status.get("hints") or {}
    if as_json:
        click.echo(json.dumps(hints))
        return
    from hfs.cli.learners import epochs_table, learners_table
    from hfs.cli.render import stdout

    tables = [table for table in (learners_table(hints), epochs_table(hints)) if table is not None]
    for table in tables:
        stdout().print(table)
    if tables and (status.get("by_kernel") or {}).get("overlays"):
        click.echo("What is staged the kernel opens by itself: how far a learner is its sampler says, not its reads.")
    if not tables:
        click.echo("no hints")


def _target(mount: str | None, control: str | None) -> MountTarget:
    if control is not None and mount is None:
        return targets_of([], control)[0]
    (target,) = targets_of([mount or sole_mount("--mount")], control)
    return target


def _load(path: str, target: MountTarget) -> Layout:
    """A layout that fits the files of the mount. Raises ConfigError."""
    try:
        layout = Layout.load(path)
    except LayoutError as error:
        raise ConfigError(str(error)) from None
    wrong = layout.changed(target.mountpoint) if mountinfo.at(target.mountpoint) is not None else []
    for text in wrong[:10]:
        complain(text)
    if wrong:
        raise ConfigError(f"{path}: {len(wrong):,} of {layout.file_count:,} files are not as they were; make it again")
    return layout


def _follow(
    target: MountTarget,
    layout: Layout,
    order: _Indices,
    epoch: int,
    rank_world: tuple[int, int],
    name: str,
    *,
    until_staged: bool,
) -> int:
    """Send the order and stay. Gives the exit code."""
    blob = encode_layout(layout.frame(target.part))
    digest = layout_digest(blob)
    rank, world = rank_world
    join = Join(
        layout=digest, name=name or "hfs-hint", job=job_name(world), rank=rank, world=world, process=process_token()
    )
    learner = HintConnection.join(target.client.address, join, blob)
    try:
        with hold():
            learner.send_order(epoch, order)
            learner.wait_answered(_ANSWER_S)
            samples = f"{count(len(order), 'sample')} of epoch {epoch}"
            click.echo(f"{samples} {'is' if len(order) == 1 else 'are'} known to the daemon", err=True)
            return _stay(target, learner, join, until_staged=until_staged)
    except KeyboardInterrupt:
        return DONE  # this is how it is ended
    finally:
        learner.close()


def _stay(target: MountTarget, learner: HintConnection, join: Join, *, until_staged: bool) -> int:
    share, since, is_told, looks = -1.0, time.monotonic(), False, 0
    while True:
        time.sleep(_POLL_S)
        looks += 1
        if not learner.usable():
            raise DaemonSilent(learner.trouble or "the daemon is gone")
        if not until_staged and (is_told or looks > _LOOKS):
            continue
        hints = target.client.status().get("hints") or {}
        missing, files = _missing(hints, join)
        if missing and not is_told:
            is_told = True
            names = f"names in a list are relative to {target.mountpoint}, and the daemon's log has one that failed"
            complain(f"{missing:,} of {files:,} files cannot be had; {names}")
        if not until_staged:
            continue
        now_share = _staged_share(hints, join)
        if now_share >= 1.0:
            return DONE
        if missing and now_share + missing / files > _ALL_BUT:
            return PARTLY if now_share else FAILED
        if now_share > share:
            share, since = now_share, time.monotonic()
        elif time.monotonic() - since > _STUCK_S:
            complain(f"{share:.1%} is staged, and for {_STUCK_S:g} s no more: no room in the cache, or a silent source")
            return PARTLY


def _missing(hints: dict[str, Any], join: Join) -> tuple[int, int]:
    """How many files of the layout could not be fetched up to now, and how many there are."""
    for layout in hints.get("layouts") or []:
        if layout.get("digest") == join.layout:
            return int(layout.get("missing") or 0), max(1, int(layout.get("files") or 1))
    return 0, 1


def _staged_share(hints: dict[str, Any], join: Join) -> float:
    for learner in hints.get("learners") or []:
        if (learner.get("job"), learner.get("rank"), learner.get("name")) == (join.job, join.rank, join.name):
            return float(learner.get("staged_share") or 0.0)
    return 0.0


def main() -> None:
    """The entry point of the `hfs-hint` command."""
    streams.guard()
    hint(prog_name="hfs-hint")
