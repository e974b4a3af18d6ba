"""`hfs cache warm|check|evict|unpin|list`: work on what is staged, by the mount's daemon, or on a cache without one.

The daemon does the work and is told to stop by closing the connection (Ctrl-C). Here paths become (mount, relative
path), long lists become several requests, and what comes back becomes a progress bar or lines of JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from hfs.cli.cache_du import du
from hfs.cli.cache_estimate import tell_estimates
from hfs.cli.command import CommandGroup
from hfs.cli.exit_codes import DONE, FAILED, PARTLY
from hfs.cli.shared import MountTarget, complain, complete_mounts, control_option, lines_of, sole_mount, targets_of
from hfs.mountd.core.config.key import parse_duration, parse_size
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.protocol import Progress, Result, Row, Rows

if TYPE_CHECKING:
    from hfs.cli.reporting import Reporter

_REQUEST_BYTES = 8 * 1024**2
"""Paths of one request: far below the largest frame, and the daemon can begin with the first part of a long list."""
_LEAST_AGE_S = 0.001
"""--older-than 0 is an age, too: pinned files stay."""
_PATH_BYTES = 8
"""What a path costs besides its own bytes, generously."""

paths_argument = click.argument("paths", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_mounts)
json_option = click.option("--json", "as_json", is_flag=True, help='Lines of JSON, the last with "final": true.')
cache_option = click.option(
    "--cache", "directory", metavar="DIR", help="A cache that no daemon uses, instead of a mount."
)


@click.group(cls=CommandGroup)
def cache() -> None:
    """Work on what is staged: of a mount, or of a cache directory (--cache) with nothing mounted.

    Exit codes: 0 done, 1 failed, 2 usage, 3 partly done.
    """


@cache.command(examples=["hfs cache warm /data/train", "hfs cache warm --dry-run /data"])
@paths_argument
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
@json_option
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
        ctx.exit(tell_estimates(targets, as_json=as_json))
    with _reporter("warmed", as_json) as reporter:
        _put(reporter, targets, lambda t, part, news: t.client.warm(part, jobs or 0, news, pin=pin))
    if pin and reporter.pinned_files is None:
        complain("the daemon is of an earlier release and has pinned nothing; hfs mount --take-over brings a new one")
        ctx.exit(PARTLY)
    ctx.exit(_code(reporter, "warmed"))


@cache.command(examples=["hfs cache check", "hfs cache check /data/train --against-source"])
@paths_argument
@click.option("--against-source", is_flag=True, help="Compare with the bytes of SOURCE too.")
@cache_option
@json_option
@control_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    against_source: bool,
    directory: str | None,
    as_json: bool,
    control: str | None,
) -> None:
    """Read what is staged of PATHs again and verify it; without PATH, all that the only mount has staged.

    What is damaged is dropped and counts as failed.
    """
    if directory is not None:
        from hfs.mounting import offline

        if against_source:
            raise ConfigError("--against-source needs the mount: give a path below it instead of --cache")
        _offline(ctx, "checked", as_json, lambda news: offline.check(directory, _inside(paths), news))
        return
    targets = targets_of(_some(paths, control), control)
    _work(
        ctx,
        "checked",
        as_json,
        targets,
        lambda t, part, news: t.client.check(part, against_source=against_source, news=news),
    )


@cache.command(examples=["hfs cache evict /data/old", "hfs cache evict --cache /nvme/hfs --older-than 7d"])
@paths_argument
@click.option("--all", "everything", is_flag=True, help="All that is staged, of every source.")
@click.option("--older-than", "older_than", metavar="AGE", help="Only what was last used longer ago, like 7d or 12h.")
@click.option("--source", metavar="DIR", help="With --cache: only the cache of this source.")
@click.option("--to", "to_size", metavar="SIZE", help="With --cache: what was used longest ago, until no more is left.")
@cache_option
@json_option
@control_option
@click.pass_context
def evict(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    everything: bool,
    older_than: str | None,
    source: str | None,
    to_size: str | None,
    directory: str | None,
    as_json: bool,
    control: str | None,
) -> None:
    """Drop what is staged of PATHs. Open files stay, and make it partly done.

    --all means everything in the cache of the mount: of the one that PATH lies in, or of the only one.
    """
    older_than_s = _age_s(older_than)
    if directory is not None:
        from hfs.mounting import offline

        if to_size is not None:
            if paths or everything or older_than or source:
                raise ConfigError("--to chooses by itself what goes: give nothing else but --cache")
            to_bytes = _to_bytes(to_size)
            _offline(ctx, "evicted", as_json, lambda _news: offline.shrink(directory, to_bytes))
            return
        if bool(paths) == everything and not (older_than_s or source):
            raise ConfigError("give either PATHs or --all, or --older-than AGE, or --source DIR")
        _offline(ctx, "evicted", as_json, lambda _news: offline.evict(directory, _inside(paths), older_than_s, source))
        return
    if source is not None or to_size is not None:
        raise ConfigError("--source and --to need --cache DIR")
    everything = everything or bool(older_than_s and not paths)
    if not paths and not everything:
        raise ConfigError("no PATH; give paths of a mount, or --all")
    targets = targets_of(_some(paths, control), control)
    if everything:
        targets = [MountTarget(target.mountpoint, target.client, [], target.part) for target in targets]
    _work(
        ctx,
        "evicted",
        as_json,
        targets,
        lambda t, part, news: t.client.evict(part, everything=everything, older_than_s=older_than_s, news=news),
    )


@cache.command(examples=["hfs cache unpin /data/train"])
@paths_argument
@click.option("--all", "everything", is_flag=True, help="All that is pinned, of every source.")
@cache_option
@json_option
@control_option
@click.pass_context
def unpin(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    everything: bool,
    directory: str | None,
    as_json: bool,
    control: str | None,
) -> None:
    """Let what was pinned of PATHs (hfs cache warm --pin) go for room again. It stays staged while there is room."""
    if bool(paths) == everything and (directory is not None or not paths):
        raise ConfigError("give either PATHs or --all")
    if directory is not None:
        from hfs.mounting import offline

        _offline(ctx, "unpinned", as_json, lambda _news: offline.unpin(directory, _inside(paths)))
        return
    targets = targets_of(_some(paths, control), control)
    if everything:
        targets = [MountTarget(target.mountpoint, target.client, []) for target in targets]
    _work(ctx, "unpinned", as_json, targets, lambda t, part, _news: t.client.unpin(part))


@cache.command(name="list", examples=["hfs cache list /data", "hfs cache list --cache /nvme/hfs --json"])
@paths_argument
@cache_option
@json_option
@control_option
@click.pass_context
def list_(
    ctx: click.Context, /, paths: tuple[str, ...], directory: str | None, as_json: bool, control: str | None
) -> None:
    """List what is staged of PATHs: bytes staged, of how many, and the name. Without PATH, all of the only mount."""
    from hfs.cli.reporting import ListPrinter

    printer = ListPrinter(as_json=as_json)

    def rows(target: MountTarget | None) -> Callable[[Progress | Rows], None]:
        def news(part: Progress | Rows) -> None:
            for row in part.rows if isinstance(part, Rows) else []:
                printer.row(_name(target, row), row)

        return news

    if directory is not None:
        from hfs.mounting import offline

        results = [offline.list_rows(directory, _inside(paths), rows(None))]
    else:
        targets = targets_of(_some(paths, control), control)
        results = [target.client.list(_all_or(target.paths), rows(target)) for target in targets]
    printer.close()
    ctx.exit(PARTLY if any(result.failed for result in results) else DONE)


cache.add_command(du)


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


def _some(paths: Sequence[str], control: str | None) -> Sequence[str]:
    """The paths given, or else the whole of the only mount."""
    return paths if paths or control is not None else [sole_mount("PATH")]


def _inside(paths: Sequence[str]) -> list[bytes]:
    """Paths for a cache without a mount: relative to the root that its mount had."""
    return [os.fsencode(path.strip("/")) for path in paths]


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


Ask = Callable[[MountTarget, list[bytes], Callable[[Progress | Rows], None]], Result]


def _work(ctx: click.Context, done: str, as_json: bool, targets: list[MountTarget], ask: Ask) -> None:
    """Put one command to each mount, report, and end with its exit code."""
    with _reporter(done, as_json) as reporter:
        _put(reporter, targets, ask)
    ctx.exit(_code(reporter, done))


def _put(reporter: Reporter, targets: list[MountTarget], ask: Ask) -> None:
    for target in targets:
        paths = target.paths if reporter.done in {"warmed", "unpinned"} else _all_or(target.paths)
        for part in _parts(paths):
            reporter.end_part(ask(target, part, reporter.news_for(target.shown, target.mountpoint)), target.shown)
    reporter.close()


def _offline(
    ctx: click.Context, done: str, as_json: bool, ask: Callable[[Callable[[Progress | Rows], None]], Result]
) -> None:
    with _reporter(done, as_json) as reporter:
        reporter.end_part(ask(reporter.news_for(os.fsdecode)), os.fsdecode)
        reporter.close()
    ctx.exit(_code(reporter, done))


def _reporter(done: str, as_json: bool) -> Reporter:
    from hfs.cli.reporting import BarReporter, JsonReporter

    return JsonReporter(done) if as_json else BarReporter(done)


def _code(reporter: Reporter, done: str) -> int:
    """An evict that had to leave open files is partly done; a warm that found files staged is done."""
    failed = reporter.total.failed + (reporter.total.skipped + reporter.held_files if done == "evicted" else 0)
    if not failed:
        return DONE
    return PARTLY if reporter.total.files else FAILED
