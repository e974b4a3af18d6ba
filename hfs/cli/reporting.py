"""How the work of `hfs cache` is shown: a progress bar on stderr with a closing line, or lines of JSON on stdout.

The work may come in several parts (requests, mounts); figures are summed over them. Paths that failed are named, the
first few on a terminal, all in JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import click
import msgspec

from hfs.cli.command import Stopped
from hfs.cli.exit_codes import DONE, PARTLY
from hfs.cli.shared import MountTarget, complain
from hfs.mountd.core.errors import printable
from hfs.mountd.wire.protocol import PathFault, Progress, Result, Row, Rows

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_NAMED = 20
"""Failed paths named on a terminal; a wall of them hides the sum below it."""

_GOES_ON = {
    "warmed": ("what is staged stays", "the same command goes on from there"),
    "evicted": ("the same command goes on from there",),
}
"""After Ctrl-C. Of others the same command begins anew."""

_FIGURES = ("files", "bytes", "failed", "skipped", "files_total", "bytes_total")
"""Of a Progress, as JSON has them."""

Shown = Callable[[bytes], str]
_Item = TypeVar("_Item")


class Reporter:
    """Sums parts; subclasses show. A context manager: whatever ends the work, the terminal is left in order."""

    def __init__(self, done: str) -> None:
        self.done = done
        self.total = Progress()
        """Figures of all parts up to now; `faults` is not used."""
        self.pinned_files: int | None = None
        """That are pinned now (warm), or stay because they are (evict); None: the daemon does not say."""
        self.held_files = self.held_bytes = 0
        """What overlays may have open, and goes when they do not (evict)."""
        self.holders: set[int] = set()
        """Processes that have made these overlays."""
        self._before = Progress()
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        if kind is KeyboardInterrupt:
            from hfs.cli.figures import count, size

            figures = f"at least {count(self.total.files, 'file')}, {size(self.total.bytes)}, {self.done}"
            told = [figures] if self.total.files else []
            raise Stopped("; ".join([*told, *_GOES_ON.get(self.done, ())])) from None

    def news_for(self, shown: Shown, what: str = "") -> Callable[[Progress | Rows], None]:
        """What a client's `news` is to be; `shown` writes a path for people, and `what` is worked on."""
        is_told = False

        def news(part: Progress | Rows) -> None:
            nonlocal is_told
            if isinstance(part, Progress):
                self._take(part)
                if part.room_bytes and part.free_bytes is not None and not is_told:
                    is_told = True
                    self.does_not_fit(what, part.room_bytes, part.free_bytes, is_all=not part.walking)
                self.progress([(shown(fault.path), fault) for fault in part.faults])

        return news

    def end_part(self, result: Result, shown: Shown) -> None:
        """A request has been answered."""
        self._take(
            Progress(
                files=result.files,
                bytes=result.bytes,
                failed=result.failed,
                skipped=result.skipped,
                files_total=result.files + result.failed,
                bytes_total=result.bytes,
            )
        )
        self._before = self.total
        if "pinned_files" in result.detail:
            self.pinned_files = (self.pinned_files or 0) + int(result.detail["pinned_files"])
        self.held_files += int(result.detail.get("held_files", 0))
        self.held_bytes += int(result.detail.get("held_bytes", 0))
        self.holders.update(result.detail.get("holders", ()))
        self.progress([(shown(fault.path), fault) for fault in result.faults])

    def _take(self, part: Progress) -> None:
        sums = {
            name: (getattr(self._before, name) or 0) + now
            for name in _FIGURES
            if (now := getattr(part, name)) is not None  # of totals that are not known yet
        }
        self.total = msgspec.structs.replace(part, **sums)

    @property
    def elapsed_s(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._started

    def eta_s(self) -> float | None:
        """Time left at the rate so far; None while it cannot be known."""
        total = self.total
        if total.walking or total.bytes_total is None or not total.bytes:
            return None
        return max(0, total.bytes_total - total.bytes) * self.elapsed_s / total.bytes

    def progress(self, faults: list[tuple[str, PathFault]]) -> None:
        """Show the figures and what has failed since the last call."""
        raise NotImplementedError

    def does_not_fit(self, what: str, room_bytes: int, free_bytes: int, *, is_all: bool) -> None:
        """It would take so much, of which so much fits. `is_all`: nothing more is known to come."""

    def close(self) -> None:
        """Show that all is done."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the terminal in order."""


class JsonReporter(Reporter):
    """One line for each progress, and a last one with "final": true."""

    def progress(self, faults: list[tuple[str, PathFault]]) -> None:
        self._print(final=False, faults=faults)

    def close(self) -> None:
        self._print(final=True, faults=[])

    def _print(self, *, final: bool, faults: list[tuple[str, PathFault]]) -> None:
        total, elapsed_s = self.total, self.elapsed_s
        line = {
            "final": final,
            **{name: getattr(total, name) for name in _FIGURES},
            "elapsed_s": round(elapsed_s, 3),
            "bytes_per_s": round(total.bytes / elapsed_s) if elapsed_s > 0 else None,
            "eta_s": None if self.eta_s() is None else round(self.eta_s() or 0, 1),
            "faults": [{"path": path, "message": fault.message} for path, fault in faults],
        }
        if total.room_bytes is not None:
            line |= {"room_bytes": total.room_bytes, "free_bytes": total.free_bytes}
        if final and self.pinned_files is not None:
            line["pinned_files"] = self.pinned_files
        if final and self.held_files:
            line |= {"held_files": self.held_files, "held_bytes": self.held_bytes, "holders": sorted(self.holders)}
        click.echo(json.dumps(line))


class BarReporter(Reporter):
    """A bar by rich on a terminal; without one only the closing line."""

    def __init__(self, done: str) -> None:
        super().__init__(done)
        self._named = 0
        self._said: set[str] = set()
        """Why paths failed."""
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        from rich import progress as columns

        from hfs.cli.render import stderr

        console = stderr()
        self._bar = columns.Progress(
            columns.TextColumn("{task.fields[files]}"),
            columns.BarColumn(),
            columns.DownloadColumn(),
            columns.TextColumn("{task.fields[rate]}"),
            columns.TimeRemainingColumn(),
            columns.TextColumn("{task.fields[failed]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, files="", rate="", failed="")
        self._bar.start()
        return self

    def progress(self, faults: list[tuple[str, PathFault]]) -> None:
        from hfs.cli.figures import size

        for path, fault in faults:
            if fault.of_cache and fault.message in self._said:
                continue
            self._said.add(fault.message)
            self._named += 1
            if self._named <= _NAMED:
                complain(f"{path}: {fault.message}")
        if self._bar is not None and self._task is not None:
            total = self.total
            files = f"{total.files:,}" + ("" if total.files_total is None else f"/{total.files_total:,}")
            self._bar.update(
                self._task,
                completed=total.bytes,
                total=total.bytes_total,
                files=f"{files}{'+' if total.walking else ''} files",
                rate=f"{size(total.bytes / self.elapsed_s)}/s" if total.bytes and self.elapsed_s else "",
                failed=f"{total.failed:,} failed" if total.failed else "",
            )

    def does_not_fit(self, what: str, room_bytes: int, free_bytes: int, *, is_all: bool) -> None:
        from hfs.cli.figures import size

        if is_all:
            complain(f"{what}: {_wanted(room_bytes, room_bytes, free_bytes)}")
        else:
            complain(f"{what}: needs more than {size(room_bytes)}, {size(free_bytes)} fit")

    def close(self) -> None:
        from hfs.cli.figures import count, duration, size

        self.leave()
        total = self.total
        named = min(self._named, _NAMED)
        if total.failed > named:
            complain(f"... and {total.failed - named:,} more")
        line = f"{self.done} {count(total.files, 'file')}, {size(total.bytes)}, in {duration(self.elapsed_s)}"
        if total.skipped:
            line += f"; {total.skipped:,} {'open, so they stay' if self.done == 'evicted' else 'staged already'}"
        if self.pinned_files is not None:
            line += f"; {self.pinned_files:,} pinned{', so they stay' if self.done == 'evicted' else ''}"
        if total.failed:
            line += f"; {total.failed:,} failed"
        click.echo(line)
        if self.held_files:
            held = f"{count(self.held_files, 'file')}, {size(self.held_bytes)}"
            by = ", ".join(f"process {pid}" for pid in sorted(self.holders)) or "commands that have ended"
            complain(f"{held} more go when nobody has an older overlay open any more, of those that {by} made")

    def leave(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def under_bar(work: Iterable[_Item], number: int, what: str, to_do: str, stopped: str) -> list[_Item]:
    """What comes of so many pieces of work, which are done under a bar; without a terminal a line says so first.
    `stopped`: what is to be said of those that are done after Ctrl-C."""
    from rich import progress as columns

    from hfs.cli.figures import count
    from hfs.cli.render import stderr

    console = stderr()
    if not console.is_terminal:
        complain(f"{count(number, what)} {to_do}")
    with columns.Progress(
        *(columns.SpinnerColumn(), columns.TextColumn(f"{what}s"), columns.BarColumn(), columns.MofNCompleteColumn()),
        *(columns.TimeElapsedColumn(), columns.TimeRemainingColumn()),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        found: list[_Item] = []
        try:
            for each in bar.track(work, total=number):
                found.append(each)  # noqa: PERF402 - what is done by Ctrl-C is counted
        except KeyboardInterrupt:
            raise Stopped(f"at least {len(found):,} of {count(number, what)} {stopped}") from None
        return found


def _wanted(missing_bytes: int, room_bytes: int, free_bytes: int) -> str:
    """What a warm needs, and whether that fits."""
    from hfs.cli.figures import size

    if not missing_bytes:
        return "nothing to read"
    if room_bytes <= free_bytes:
        return f"needs {size(missing_bytes)}, all of it fits"
    return f"needs {size(room_bytes)}, {size(free_bytes)} fit: stops at {free_bytes / room_bytes:.0%}"


def tell_estimates(targets: Sequence[MountTarget], *, as_json: bool) -> int:
    """A line or a JSON object for each. The exit code: PARTLY where it would not all fit, or a path failed."""
    code = DONE
    for target in targets:

        def news(part: Progress | Rows, target: MountTarget = target) -> None:
            for fault in part.faults if isinstance(part, Progress) else []:
                complain(f"{target.shown(fault.path)}: {fault.message}")

        result = target.client.estimate(target.paths, news)
        for fault in result.faults:
            complain(f"{target.shown(fault.path)}: {fault.message}")
        missing_bytes, room_bytes, free_bytes = (
            int(result.detail[name]) for name in ("missing_bytes", "room_bytes", "free_bytes")
        )
        if result.failed or room_bytes > free_bytes:
            code = PARTLY
        if as_json:
            figures = {"files": result.files, "bytes": result.bytes, "staged": result.skipped, "failed": result.failed}
            click.echo(json.dumps({"mountpoint": target.mountpoint, **figures, **result.detail}))
            continue
        from hfs.cli.figures import count, duration, size

        files = f"{count(result.files, 'file')} of {size(result.bytes)}"
        text = f"{target.mountpoint}: {files}, {result.skipped:,} of them staged; "
        text += _wanted(missing_bytes, room_bytes, free_bytes)
        seconds = result.detail.get("seconds")
        if missing_bytes and seconds is not None:
            text += f", about {duration(_rounded(float(seconds)))}"
        click.echo(printable(text))
    return code


def _rounded(seconds: float) -> float:
    """It is no better known."""
    if seconds < 60:
        return float(f"{seconds:.2g}")
    return round(seconds / 10) * 10 if seconds < 600 else round(seconds, -2)


class ListPrinter:
    """Prints rows of `hfs cache list` as they come."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._files = self._bytes = self._complete = self._pinned = 0

    def row(self, name: str, row: Row) -> None:
        self._files += 1
        self._bytes += row.staged_bytes
        self._complete += row.complete
        self._pinned += row.pinned
        if self._as_json:
            record = {**msgspec.structs.asdict(row), "path": name}
            record["open"] = record.pop("opened")
            click.echo(json.dumps(record))
        else:
            pinned = "  pinned" if row.pinned else ""
            share = "complete" if row.complete else f"{row.staged_bytes / row.size:.0%}" if row.size else "0%"
            click.echo(f"{row.staged_bytes:>15,} {row.size:>15,} {share:>8}{pinned}  {printable(name)}")

    def close(self) -> None:
        if self._as_json:
            sums = {"final": True, "files": self._files, "staged_bytes": self._bytes, "complete": self._complete}
            sums["pinned"] = self._pinned
            click.echo(json.dumps(sums))
        else:
            pinned = f", {self._pinned:,} pinned" if self._pinned else ""
            from hfs.cli.figures import count

            of = count(self._files, "file")
            click.echo(f"{self._bytes:>15,} bytes staged of {of}, {self._complete:,} complete{pinned}")
