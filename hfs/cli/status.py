"""`hfs status [MOUNT]`: what a mount's daemon does, or the list of all mounts of hfs. And `hfs why [MOUNT]`: the one
cause for which jobs wait most, and the one change to make."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from hfs.cli.command import Command
from hfs.cli.exit_codes import DONE, FAILED
from hfs.cli.shared import complete_mounts, control_option, sole_mount, target_of
from hfs.client.client import Client, find_socket
from hfs.client.control_socket import Address
from hfs.mountd.core.errors import HfsError, MountError, printable
from hfs.mounting import mountinfo, probe
from hfs.mounting.mountinfo import Mount

if TYPE_CHECKING:
    from hfs.mounting.keeper import FoundKeeper

_AGAIN_S = 0.2
_AT_ONCE = 16
_LIST_LIMIT_S = 2.0
"""For each mount of the list: a hung one must not hide the others."""
_OTHERS_S = 10.0
"""For all mounts of other users together: who likes has many that say nothing."""
_SOURCE_LIMIT_S = 5.0
"""Within the time that a probe has."""
_READERS = 5
_LINK_BYTES = 1 << 20
"""Of fewer no rate is told."""
_WATCH_S = 2.0
_NOTE = (
    "Reads that the kernel answers by itself, from its page cache, by passthrough or in overlays, never reach the "
    "daemon and are not in these figures, those of readers included."
)


@click.command(cls=Command, examples=["hfs status", "hfs status /data --watch", "hfs status /data --json"])
@click.argument("mount", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait until it answers."
)
@click.option("--ready", is_flag=True, help="Only whether it answers and SOURCE can be read: exit code 0 or 1.")
@click.option("--all", "everything", is_flag=True, help="All figures, and the counters with their meaning.")
@click.option("--watch", is_flag=True, help="The same screen again and again, until Ctrl-C.")
@click.option("--cluster", is_flag=True, help="All nodes of the job (--peers), a line each.")
@control_option
@click.pass_context
def status(
    ctx: click.Context,
    mount: str | None,
    as_json: bool,
    wait_s: float,
    ready: bool,
    everything: bool,
    watch: bool,
    cluster: bool,
    control: str | None,
) -> None:
    """Show the state of the mount that MOUNT lies in; without MOUNT, all mounts of hfs.

    Where only one mount can be shown (--all, --watch, --cluster), MOUNT is the only mount by default.
    The list ends with exit code 1 if one of them does not answer, for root if one of its own.
    """
    if control is None and (cluster or everything or watch):
        mount = mount or sole_mount()
    if ready and mount is None and control is None:
        mount = sole_mount()
    if mount is None and control is None:
        ctx.exit(_list_mounts(as_json=as_json))
    client, found = _wait_for(mount, control, wait_s, page_cache=as_json or everything)
    if ready:
        _see_that_it_is_ready(found)
        return
    if cluster:
        _print_cluster(client.cluster(), as_json=as_json)
        return
    if as_json:
        click.echo(json.dumps(found))
    elif everything:
        _print_all(found)
    elif watch:
        _watch(client, found)
    else:
        from hfs.cli.status_screen import screen

        click.echo("\n".join(screen(found)))


@click.command(cls=Command, examples=["hfs why /data"])
@click.argument("mount", required=False, type=click.UNPROCESSED, shell_complete=complete_mounts)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all causes that were found.")
@click.option("--all", "everything", is_flag=True, help="All causes, the most expensive first.")
@control_option
def why(mount: str | None, as_json: bool, everything: bool, control: str | None) -> None:
    """Say why jobs that read from the mount that MOUNT lies in wait, and what to change. Default: the only mount.

    Looks at the last minute, and at the last epochs that learners have told of. Says "nothing" where nothing is worth
    a change, or nothing is proven.
    """
    from hfs.cli.situation import situation_of
    from hfs.policies.diagnosis.causes import WORTH, found, nothing

    client = Client(control) if control is not None else target_of(mount or sole_mount()).client
    situation = situation_of(client.status(page_cache=True))
    findings = found(situation)
    if as_json:
        click.echo(json.dumps({"causes": [finding._asdict() for finding in findings]}))
        return
    if not findings:
        click.echo(f"nothing: {nothing(situation) or 'jobs do not wait for their data'}")
    for finding in findings if everything else findings[:1]:
        # What is worth just naming, or all of the time, was not measured: it is there to put causes in their order.
        share = f" (about {finding.cost:.0%} of the time)" if WORTH < finding.cost < 1 else ""
        click.echo(printable(finding.what) + share)
        click.echo(f"  seen: {printable(finding.evidence)}")
        click.echo(f"  change: {printable(finding.remedy)}")


def _see_that_it_is_ready(found: dict[str, Any]) -> None:
    """Raises MountError where SOURCE cannot be read. For others than root and the owner it answers: that is all that
    they may know."""
    source = (found.get("source") or {}).get("path")
    if source is None:
        return
    as_user = ((found.get("config") or {}).get("as-user") or {}).get("value")
    as_user = as_user if isinstance(as_user, str) else None
    try:
        probe.look(source, as_user, limit_s=_SOURCE_LIMIT_S)
    except OSError as error:
        why = f"cannot be read: {error.strerror}; is its file system up?"
        raise MountError(f"{found['mountpoint']}: SOURCE {source} {why}") from None


def _watch(client: Client, found: dict[str, Any]) -> None:
    """Until Ctrl-C, or the daemon has gone. In a pipe or a file one screen below the other."""
    from rich.live import Live
    from rich.text import Text

    from hfs.cli.render import stdout
    from hfs.cli.status_screen import screen

    if not stdout().is_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                click.echo("\n".join([*screen(found), ""]))
                time.sleep(_WATCH_S)
                found = client.status()
        return
    with contextlib.suppress(KeyboardInterrupt), Live(console=stdout(), auto_refresh=False) as live:
        while True:
            live.update(Text("\n".join(screen(found)), overflow="fold"), refresh=True)
            time.sleep(_WATCH_S)
            found = client.status()


def _print_all(found: dict[str, Any]) -> None:
    from hfs.cli.learners import epochs_table, learners_table
    from hfs.cli.render import render_tree, stdout

    console = stdout()
    readers = found.pop("readers", None) or []
    found["readers"] = {
        f"{reader['command']} ({reader['pid']})": {"reads": reader["reads"], "bytes": reader["bytes"]}
        for reader in readers[:_READERS]
    }
    hints = found.pop("hints", None) or {}
    for table in render_tree(found):
        console.print(table)
    for shown in (learners_table(hints), epochs_table(hints)):
        if shown is not None:
            console.print(shown)
    console.print(_NOTE)


def _wait_for(
    mount: str | None, control: str | None, wait_s: float, *, page_cache: bool
) -> tuple[Client, dict[str, Any]]:
    """The client of the daemon, and its status."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            client = Client(control) if control is not None else target_of(mount or "").client
            return client, client.status(page_cache=page_cache)
        except HfsError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_S)


def _print_cluster(nodes: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"nodes": nodes}))
        return
    from rich.markup import escape

    from hfs.cli.figures import figure
    from hfs.cli.render import new_table, stdout

    known = {str(node["node"]): node.get("figures") or {} for node in nodes}
    all_names = dict.fromkeys(name for figures in known.values() for name in figures)
    names = [name for name in all_names if " " not in name and name != "share"]
    table = new_table("", "node", *(name.replace("_", " ") for name in names))
    for node in nodes:
        figures = known[node["node"]]
        shown = [figure(name if name.startswith("peer_") else "bytes", figures.get(name)) for name in names]
        table.add_row(
            escape(printable(node["node"])), *(shown if figures else [escape(printable(node.get("error", "")))])
        )
    stdout().print(table)
    for line in links_shown({str(node["node"]): known[node["node"]] for node in nodes if node.get("error") != "gone"}):
        click.echo(printable(line))


def links_shown(known: dict[str, dict[str, int]]) -> Iterator[str]:
    """What `known`, the figures of all nodes, says of them together: who stages which part of the data and has read how
    much from whom, the slowest of these ways, and what was read from the source again, and why."""
    shares = {node: figures["share"] / 1e6 for node, figures in known.items() if "share" in figures}
    if len(shares) == len(known) and (left := 1 - sum(shares.values())) > 0.001:
        shares["no cache has room for"] = left
    yield "shares of the data: " + ", ".join(f"{node} {share:.1%}" for node, share in shares.items())
    rates = {}
    for node, figures in known.items():
        came = {name.removeprefix("bytes of "): size for name, size in figures.items() if name.startswith("bytes of ")}
        if came:
            yield f"{node} has read " + ", ".join(f"{size / 1e6:,.0f} MB from {other}" for other, size in came.items())
        for other, size in came.items():
            if size >= _LINK_BYTES:
                rates[size / max(1, figures.get(f"us of {other}", 0)), node] = other
    if len(rates) > 1:
        (rate, node), other = min(rates.items())
        yield f"slowest: {node} from {other}, {rate:,.3g} MB/s of a request; the fastest has {max(rates)[0]:,.3g}"
    whys = {"peer_misses": "requests without an answer", "peer_dropped": "chunks that came too fast for a cache disk"}
    counts = {why: sum(figures.get(name, 0) for figures in known.values()) for name, why in whys.items()}
    if any(counts.values()):
        yield "read from the source twice: " + ", ".join(f"{many:,} {why}" for why, many in counts.items() if many)


def _list_mounts(*, as_json: bool) -> int:
    from concurrent.futures import ThreadPoolExecutor

    from hfs.mounting import keeper

    mounts = mountinfo.hfs_mounts()
    places = {mount.mountpoint for mount in mounts}
    in_turn = mountinfo.in_fair_order(mounts)
    until_s = time.monotonic() + _OTHERS_S
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = dict(zip(in_turn, threads.map(partial(_row, until_s), in_turn), strict=True))
    rows = [found[mount] for mount in mounts]
    rows += [_given_row(given) for given in keeper.of_given_mounts() if given.seen_at not in places]
    if as_json:
        click.echo(json.dumps({"mounts": rows}))
    elif not rows:
        click.echo("no mounts of hfs")
    else:
        _print_list(rows)
    # Any user can have root see a mount that does not answer.
    theirs = {mount.mountpoint for mount in mounts if os.geteuid() == 0 and mount.owner_uid not in {None, 0}}
    return DONE if all(row["answers"] for row in rows if row["mountpoint"] not in theirs) else FAILED


def _row(until_s: float, mount: Mount) -> dict[str, Any]:
    """`until_s`: one of another user is waited for no longer."""

    def limit_s() -> float:
        left_s = until_s - time.monotonic() if mount.is_of_others else _LIST_LIMIT_S
        if left_s <= 0:
            raise MountError(f"not asked: the mounts of other users have {_OTHERS_S:g} s together")
        return min(left_s, _LIST_LIMIT_S)

    row = {"mountpoint": mount.mountpoint, "source": mount.source.removeprefix("hfs#")}
    return _answered(row, lambda: find_socket(mount.mountpoint, limit_s=limit_s()), limit_s)


def _given_row(given: FoundKeeper) -> dict[str, Any]:
    """Of a mount that somebody else has made, which is not seen here, or not known by its type."""
    row = {"mountpoint": given.seen_at or given.name, "source": given.config.get("source"), "pid": given.pid}
    return _answered(row, given.control, lambda: _LIST_LIMIT_S)


def _answered(row: dict[str, Any], address: Callable[[], Address], limit_s: Callable[[], float]) -> dict[str, Any]:
    """With what its daemon says, or why it does not."""
    try:
        client = Client(address())
        row |= {"pid": client.pid(limit_s()), "staged": client.status(limit_s()).get("staged"), "answers": True}
    except HfsError as error:
        row |= {"answers": False, "error": str(error)}
    return row


def _print_list(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    from hfs.cli.figures import count, size
    from hfs.cli.render import new_table, stdout

    table = new_table("", "mountpoint", "source", "process", "staged")
    for row in rows:
        staged = row.get("staged") or {}
        shown = f"{count(staged['files'], 'file')}, {size(staged['bytes'])}" if staged else "?"
        table.add_row(
            escape(printable(row["mountpoint"])),
            escape(printable(row["source"])),
            str(row.get("pid") or "?"),
            shown if row["answers"] else escape(printable(row["error"])),
        )
    stdout().print(table)
