"""`scripts/bench all`: every group of every benchmark, piece by piece, kept only where the machine was quiet.

    scripts/bench all               measures all pieces that are not nightly, and keeps each in results/
    scripts/bench all --resume      those alone that are not there, or whose subject has changed since
    scripts/bench all --minutes 9   ends before a piece that would take it past that; then --resume goes on
    scripts/bench all --quick       a quick run of each, kept below build/: whether all of them work
    scripts/bench all --stale       measures nothing: which files have more than 60 commits since to what they measure

Exit codes: 0 all that was to be measured was, and is kept; 1 something was not measured, or not kept; 2 usage.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from scripts.benchmarks import quiet
from scripts.benchmarks.common import ROOT, BenchError
from scripts.benchmarks.pieces import Piece, pieces

STALE_COMMITS = 60
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="scripts/bench all", description="Measures everything, piece by piece.")
    words.add_argument("--quick", action="store_true", help="one run of smaller data each, kept below build/ only")
    words.add_argument("--resume", action="store_true", help="leave out what is kept and has not changed since")
    words.add_argument("--nightly", action="store_true", help="what takes longer than ten minutes too")
    words.add_argument(
        "--minutes", type=float, metavar="N", help="end before a piece that would take it past N minutes"
    )
    words.add_argument("--only", metavar="PREFIX", help="pieces whose names begin so, such as first-epoch")
    words.add_argument("--keep-anyway", action="store_true", help="keep a run that had others beside it, marked so")
    words.add_argument("--stale", action="store_true", help="list what was kept long ago, and measure nothing")
    return words


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    console = Console(highlight=False)
    if args.stale:
        return _stale(console, args.only)
    wanted = [piece for piece in pieces(quick=args.quick, only=args.only) if args.nightly or not piece.is_nightly]
    if args.resume:
        wanted = [piece for piece in wanted if piece.commits_since() != 0]
    for ending in _ENDS:
        signal.signal(ending, lambda *_: sys.exit(130))
    begun_s, failed = time.monotonic(), 0
    for number, piece in enumerate(wanted):
        left_s = sum(other.expected_s() for other in wanted[number:])
        passed_s = time.monotonic() - begun_s
        if args.minutes is not None and number and passed_s + piece.expected_s() > args.minutes * 60:
            console.print(f"{len(wanted) - number} pieces are left, some {left_s / 60:.0f} min: go on with --resume")
            return 1
        console.print(f"{number + 1} of {len(wanted)}: {piece.name}, some {left_s / 60:.0f} min are left")
        try:
            console.print(f"  {_measure(piece, keep_anyway=args.keep_anyway)}")
        except BenchError as error:
            failed += 1
            console.print(f"  [red]{error}[/red]")
    console.print(f"{len(wanted) - failed} of {len(wanted)} pieces are kept")
    return 1 if failed else 0


def _measure(piece: Piece, *, keep_anyway: bool) -> str:
    """Measure it, and keep it. Raises BenchError where it cannot be measured, or is not to be kept."""
    piece.file.parent.mkdir(parents=True, exist_ok=True)
    partial = piece.file.with_suffix(".measured")
    words = [ROOT / "scripts" / "bench", piece.benchmark, "--only", piece.group, "--json", partial]
    try:
        with quiet.group() as group:
            before = group.now()
            code, said = _run([*words, *(["--quick"] if piece.quick else [])], group)
            after = group.now()
        if code:
            last = said.strip().splitlines()[-1:] or ["no word"]
            raise BenchError(f"it was not measured: {last[0]}")
        was = quiet.between(before, after)
        if not (was.is_quiet or keep_anyway or piece.quick):
            raise BenchError(f"it is not kept: {was}")
        record = json.loads(partial.read_text())
        rows = record.pop("rows")
        record |= {"spent_s": round(after.at_s - before.at_s, 1), "beside": was.record(), "quiet": was.is_quiet}
        partial.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
        partial.replace(piece.file)
    finally:
        partial.unlink(missing_ok=True)
    barred = [row for row in rows if row["holds"] is not None]
    return f"{after.at_s - before.at_s:.0f} s, {sum(row['holds'] for row in barred)} of {len(barred)} bars hold; {was}"


def _run(words: Sequence[str | Path], group: quiet.Group) -> tuple[int, str]:
    """Exit code, and what was said. Whoever ends us ends it first, so that it takes its mounts away."""

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        group.enter()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until it is known whom to end
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=begin,  # noqa: PLW1509 - this process has one thread
    ) as child:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _, said = child.communicate()
        except BaseException:
            child.terminate()
            child.wait()
            raise
    return child.returncode, said


def _stale(console: Console, only: str | None) -> int:
    for piece in pieces(quick=False, only=only):
        since = piece.commits_since()
        if since is None:
            console.print(f"{piece.name}: not kept")
        elif since > STALE_COMMITS:
            console.print(f"{piece.name}: {since} commits since to {', '.join(piece.subject)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
