"""`hfs cache warm|check|evict|unpin|list|du`: work on what is staged, by the mount's daemon, or on a cache without one;
and `hfs refresh`: the source has changed, and is to be seen as it is now.

The daemon does the work and is told to stop by closing the connection (Ctrl-C). Here paths become (mount, relative
path), long lists become several requests, and what comes back becomes a progress bar or lines of JSON.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from hfs.cli.command import Command, CommandGroup
from hfs.cli.exit_codes import DONE, FAILED, PARTLY
from hfs.cli.shared import MountTarget, complain, complete_mounts, control_option, lines_of, sole_mount, targets_of
from hfs.mountd.core.config.key import parse_duration, parse_size
from hfs.mountd.core.errors import ConfigError, printable
from hfs.mountd.wire.protocol import Progress, Result, Row, Rows

if TYPE_CHECKING:
    from hfs.cli.reporting import Reporter

_REQUEST_BYTES = 8 * 1024**2
"""Paths of one request: far below the largest frame, and the daemon can begin with the first part of a long list."""
_LEAST_AGE_S = 0.001
"""--older-than 0 is an age, too: pinned files stay."""
_PATH_BYTES = 8
"""What a path costs besides its own bytes, generously."""

News = Callable[[Progress | Rows], None]
Ask = Callable[[MountTarget, list[bytes], News], Result]

_paths_argument = click.argument("paths", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_mounts)
_cache_option = click.option(
    "--cache", "directory", metavar="DIR", help="A cache that no daemon uses, instead of a mount."
)
_json_option = click.option("--json", "as_json", is_flag=True, help='Lines of JSON, the last with "final": true.')


class _Asked(NamedTuple):
    """What a command on paths is given."""

    paths: tuple[str, ...]
    directory: str | None
    """Of a cache that no daemon uses; None: the paths are of mounts."""
    as_json: bool
    control: str | None

    @property
    def inside(self) -> list[bytes]:
        """Paths for a cache without a mount: relative to the root that its mount had."""
        return [os.fsencode(path.strip("/")) for path in self.paths]

    def targets(self, *, everything: bool = False) -> list[MountTarget]:
        """The mounts that the paths lie in, else the only one. `everything`: whatever paths are given."""
        found = targets_of(self.paths or ([] if self.control is not None else [sole_mount("PATH")]), self.control)
        return [target._replace(paths=[]) for target in found] if everything else found

    def work(self, done: str, targets: list[MountTarget], ask: Ask) -> NoReturn:
        """Put one command to each mount, report, and end with its exit code."""
        with _reporter(done, self.as_json) as reporter:
            _put(reporter, targets, ask)
        click.get_current_context().exit(_code(reporter))

    def work_offline(self, done: str, ask: Callable[[News], Result]) -> NoReturn:
        """Do it without a daemon, report, and end with its exit code."""
        with _reporter(done, self.as_json) as reporter:
            reporter.end_part(ask(reporter.news_for(os.fsdecode)), os.fsdecode)
            reporter.close()
        click.get_current_context().exit(_code(reporter))


def _on_paths(command: Callable[..., None]) -> Callable[..., None]:
    """A command on paths of mounts, or of a cache without one, gets them as `_Asked`, and its other options by name."""

    @_paths_argument
    @_cache_option
    @_json_option
    @control_option
    @functools.wraps(command)
    def asked(paths: tuple[str, ...], directory: str | None, as_json: bool, control: str | None, **others: Any) -> None:
        command(_Asked(paths, directory, as_json, control), **others)

    return asked


@click.group(cls=CommandGroup)
def cache() -> None:
    """Work on what is staged: of a mount, or of a cache directory (--cache) with nothing mounted.

    Exit codes: 0 done, 1 failed, 2 usage, 3 partly done.
    """


@cache.command(examples=["hfs cache warm /data/train", "hfs cache warm --dry-run /data"])
@_paths_argument
@click.option("--files-from", metavar="LIST", help="Read names from LIST (- is stdin), one a line, below PATH or here.")
@click.option("-0", "--null", is_flag=True, help="Names in LIST end with a zero byte, not a newline.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Files at a time. Default: the daemon's choice."
)
@click.option("--pin", is_flag=True, help="Keep it: it goes for no room, only by hfs cache evict PATH or unpin.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be read, whether it fits, and how long it takes; a few files are read for that.",
)
@_json_option
@control_option
@click.pass_context
def warm(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    files_from: str | None,
    null: bool,
    jobs: int | None,
    pin: bool,
    dry_run: bool,
    as_json: bool,
    control: str | None,
) -> None:
    """Stage PATHs, files or whole directories, ahead of the job.

    What is staged already is skipped, so a warm that was interrupted goes on where it was. Returns when all of it would
    survive a crash of the machine.

    --pin: nothing else takes its place then, neither other data nor other mounts of the cache; a file that changes at
    the source loses its pin. What does not fit is named, and not pinned.
    """
    wanted = list(paths) if files_from is None else list(_names(files_from, paths, b"\0" if null else b"\n"))
    if not wanted:
        raise ConfigError("no PATH; give files or directories of a mount, or --files-from LIST")
    targets = targets_of(wanted, control)
    if dry_run:
        from hfs.cli.reporting import tell_estimates

        ctx.exit(tell_estimates(targets, as_json=as_json))
    with _reporter("warmed", as_json) as reporter:
        _put(reporter, targets, lambda t, part, news: t.client.warm(part, jobs or 0, news, pin=pin))
    ctx.exit(_code(reporter))


@cache.command(examples=["hfs cache check", "hfs cache check /data/train --against-source"])
@click.option("--against-source", is_flag=True, help="Compare with the bytes of SOURCE too.")
@_on_paths
def check(asked: _Asked, against_source: bool) -> None:
    """Read what is staged of PATHs again and verify it; without PATH, all that the only mount has staged.

    What is damaged is dropped and counts as failed.
    """
    if asked.directory is not None:
        from hfs.mounting import offline

        if against_source:
            raise ConfigError("--against-source needs the mount: give a path below it instead of --cache")
        asked.work_offline("checked", functools.partial(offline.check, asked.directory, asked.inside))
    asked.work(
        "checked",
        asked.targets(),
        lambda t, part, news: t.client.check(part, against_source=against_source, news=news),
    )


@cache.command(examples=["hfs cache evict /data/old", "hfs cache evict --cache /nvme/hfs --older-than 7d"])
@click.option("--all", "everything", is_flag=True, help="All that is staged, of every source.")
@click.option("--older-than", "older_than", metavar="AGE", help="Only what was last used longer ago, like 7d or 12h.")
@click.option("--source", metavar="DIR", help="With --cache: only the cache of this source.")
@click.option("--to", "to_size", metavar="SIZE", help="With --cache: what was used longest ago, until no more is left.")
@_on_paths
def evict(asked: _Asked, everything: bool, older_than: str | None, source: str | None, to_size: str | None) -> None:
    """Drop what is staged of PATHs. Open files stay, and make it partly done.

    --all means everything in the cache of the mount: of the one that PATH lies in, or of the only one.
    """
    older_than_s = _age_s(older_than)
    if asked.directory is not None:
        from hfs.mounting import offline

        directory, inside = asked.directory, asked.inside
        if to_size is not None:
            if inside or everything or older_than or source:
                raise ConfigError("--to chooses by itself what goes: give nothing else but --cache")
            to_bytes = _to_bytes(to_size)
            asked.work_offline("evicted", lambda _news: offline.shrink(directory, to_bytes))
        if bool(inside) == everything and not (older_than_s or source):
            raise ConfigError("give either PATHs or --all, or --older-than AGE, or --source DIR")
        asked.work_offline("evicted", lambda _news: offline.evict(directory, inside, older_than_s, source))
    if source is not None or to_size is not None:
        raise ConfigError("--source and --to need --cache DIR")
    everything = everything or bool(older_than_s and not asked.paths)
    if not asked.paths and not everything:
        raise ConfigError("no PATH; give paths of a mount, or --all")
    asked.work(
        "evicted",
        asked.targets(everything=everything),
        lambda t, part, news: t.client.evict(part, everything=everything, older_than_s=older_than_s, news=news),
    )


@cache.command(examples=["hfs cache unpin /data/train"])
@click.option("--all", "everything", is_flag=True, help="All that is pinned, of every source.")
@_on_paths
def unpin(asked: _Asked, everything: bool) -> None:
    """Let what was pinned of PATHs (hfs cache warm --pin) go for room again. It stays staged while there is room."""
    if bool(asked.paths) == everything and (asked.directory is not None or not asked.paths):
        raise ConfigError("give either PATHs or --all")
    if asked.directory is not None:
        from hfs.mounting import offline

        directory = asked.directory
        asked.work_offline("unpinned", lambda _news: offline.unpin(directory, asked.inside))
    asked.work("unpinned", asked.targets(everything=everything), lambda t, part, _news: t.client.unpin(part))


@cache.command(name="list", examples=["hfs cache list /data", "hfs cache list --cache /nvme/hfs --json"])
@_on_paths
def list_(asked: _Asked) -> None:
    """List what is staged of PATHs: bytes staged, of how many, and the name. Without PATH, all of the only mount."""
    from hfs.cli.reporting import ListPrinter

    printer = ListPrinter(as_json=asked.as_json)

    def rows(target: MountTarget | None) -> News:
        def news(part: Progress | Rows) -> None:
            for row in part.rows if isinstance(part, Rows) else []:
                printer.row(_name(target, row), row)

        return news

    if asked.directory is not None:
        from hfs.mounting import offline

        results = [offline.list_rows(asked.directory, asked.inside, rows(None))]
    else:
        results = [target.client.list(_all_or(target.paths), rows(target)) for target in asked.targets()]
    printer.close()
    click.get_current_context().exit(PARTLY if any(result.failed for result in results) else DONE)


@cache.command(examples=["hfs cache du --cache /nvme/hfs"])
@click.option("--cache", "directory", metavar="DIR", help="The cache root. Default: that of the configuration.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def du(directory: str | None, as_json: bool) -> None:
    """Show what each cache of a root holds: source, owner, bytes staged and pinned, share of the size, last use."""
    from hfs.cli.config import NO_OPTIONS, load_config
    from hfs.mounting import offline

    path = directory or load_config(NO_OPTIONS, required=False)[0].cache
    if not path:
        raise ConfigError("no cache: give --cache DIR, or set it in the configuration (hfs config)")
    if not os.path.isdir(path):
        raise ConfigError(f"--cache {path}: no such directory; give the DIR of hfs mount --cache DIR")
    size_bytes, caches = offline.listed(path)
    used_bytes = sum(each["used_bytes"] for each in caches)
    if as_json:
        click.echo(json.dumps({"root": path, "size_bytes": size_bytes, "used_bytes": used_bytes, "caches": caches}))
        return
    from hfs.cli.figures import duration, size
    from hfs.cli.render import new_table, stdout

    table = new_table("", "source", "owner", "staged", "pinned", "share", "last used", "mounted at")
    for each in sorted(caches, key=lambda each: -each["used_bytes"]):
        ago = "now" if each["running"] else f"{duration(max(0.0, time.time() - each['used_s']))} ago"
        sizes = (size(each[name]) for name in ("used_bytes", "pinned_bytes", "granted_bytes"))
        table.add_row(printable(each["source"]), each["owner"], *sizes, ago, printable(each["mountpoint"]))
    stdout().print(table)
    limit = "; without --cache-size the disk is the limit" if size_bytes is None else f" of {size(size_bytes)}"
    click.echo(f"{size(used_bytes)}{limit}")


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
    from hfs.cli.figures import count

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


def _age_s(text: str | None) -> float:
    """0: no age was given. Raises ConfigError."""
    try:
        return 0.0 if text is None else max(parse_duration(text), _LEAST_AGE_S)
    except ValueError:
        raise ConfigError(f"--older-than {text}: give an age like 7d, 12h or 30m") from None


def _to_bytes(text: str) -> int:
    """Raises ConfigError."""
    try:
        return parse_size(text)
    except ValueError:
        raise ConfigError(f"--to {text}: give a size like 200G") from None


def _name(target: MountTarget | None, row: Row) -> str:
    """What to call a staged file: by the mount's path, or by its identity where no name is known."""
    if not row.path:
        return f"[{row.source_id}:{row.inode}]"
    return os.fsdecode(row.path) if target is None else target.shown(row.path)


def _names(list_name: str, base: Sequence[str], end: bytes) -> Iterator[str]:
    """The names in a list, relative ones below the one PATH that may be given (else below here)."""
    if len(base) > 1:
        raise ConfigError("with --files-from give at most one PATH, which its names are below")
    try:
        with click.open_file(list_name, "rb") as stream:
            text = stream.read()
            for name in lines_of(text) if end == b"\n" else text.split(end):
                if name:
                    yield os.path.join(*base, os.fsdecode(name))
    except OSError as error:
        raise ConfigError(f"--files-from {list_name}: {error.strerror}; give a file of names, or -") from None


def _all_or(paths: list[bytes]) -> list[bytes]:
    """No paths where the root is among them: all that is staged, whatever the daemon knows of names."""
    return [] if b"" in paths else paths


def _parts(paths: list[bytes]) -> Iterator[list[bytes]]:
    """The paths in requests of bounded size; one empty request for no paths."""
    part: list[bytes] = []
    size = 0
    for path in paths:
        if part and size + len(path) + _PATH_BYTES > _REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(path)
        size += len(path) + _PATH_BYTES
    yield part


def _put(reporter: Reporter, targets: list[MountTarget], ask: Ask) -> None:
    for target in targets:
        paths = target.paths if reporter.done in {"warmed", "unpinned"} else _all_or(target.paths)
        for part in _parts(paths):
            reporter.end_part(ask(target, part, reporter.news_for(target.shown, target.mountpoint)), target.shown)
    reporter.close()


def _reporter(done: str, as_json: bool) -> Reporter:
    from hfs.cli.reporting import BarReporter, JsonReporter

    return JsonReporter(done) if as_json else BarReporter(done)


def _code(reporter: Reporter) -> int:
    """An evict that had to leave open files is partly done; a warm that found files staged is done."""
    failed = reporter.total.failed + (reporter.total.skipped + reporter.held_files if reporter.done == "evicted" else 0)
    if not failed:
        return DONE
    return PARTLY if reporter.total.files else FAILED
