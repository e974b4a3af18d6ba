"""Rows of an LMDB that training jobs read themselves: directly, through the mount, and with an order that it knows.

The reader is the same in all three. Directly from a busy source an epoch with readahead=False takes half an hour, so
it is extrapolated from its first records, in two ways:

by requests     every READ is one page, and a page stays in memory: an epoch is as many of them as the file has pages.
                The bars are held against this one, the lesser of the two.
by records      every record costs as much as the first ones, for which pages of the tree had to be read, too. So it is
                where the data is larger than memory.

What goes through the mount is always measured whole.
"""

from collections.abc import Sequence
from dataclasses import replace

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.lmdbio_data import PAGE, RECORDS, RECORDS_QUICK, Database, database
from scripts.benchmarks.lmdbio_readers import Epoch, Job, OwnReads
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Bar, Row, at_least, at_most, measured_rows

PART_QUICK = 600
"""Records from which a direct epoch with readahead=False is extrapolated in a quick run; else a tenth, in 220 s."""

_EPOCH = ("epoch_s", "first_s", "source_s", "cpu_s", "reads", "bytes", "ordered", "switches", "major_faults")
_OWN = ("own", "mean", "in_order")


def by_requests(part: Epoch, database: Database) -> Epoch:
    """A whole epoch of one-page requests, each page of the file once."""
    pages = database.bytes // PAGE
    return replace(part.scaled(pages / part.reads), records=database.records)


def _add(got: Results, name: str, job: Job, epoch: Epoch, own: OwnReads | None = None) -> None:
    for what in ("epoch_s", "first_s", "source_s", "cpu_s", "reads", "switches", "major_faults"):
        got.add(f"{name} {what}", getattr(epoch, what))
    got.add(f"{name} ordered", epoch.ordered / epoch.reads)
    got.add(f"{name} bytes", epoch.source_bytes / job.database.bytes)
    got.add(f"{name} bound", epoch.epoch_s / job.bound_s)
    if own:
        got.add(f"{name} own", own.reads)
        got.add(f"{name} mean", own.mean_bytes / 1024**2)
        got.add(f"{name} in_order", own.in_order)


def _keys(name: str, *more: str) -> list[str]:
    return [f"{name} {what}" for what in (*_EPOCH, "bound", *more)]


def _epoch_rows(got: Results, name: str, words: str, bytes_bar: Bar | None = None) -> list[Row]:
    return [
        got.row(f"  {words}", f"{name} epoch_s", unit="s"),
        got.row("    until the first batch", f"{name} first_s", unit="s"),
        got.row("    last byte from the source", f"{name} source_s", unit="s"),
        got.row("    CPU time of the readers", f"{name} cpu_s", unit="s"),
        got.row("    READ requests at the source", f"{name} reads", unit=""),
        got.row("    of them in offset order", f"{name} ordered"),
        got.row("    source bytes / file", f"{name} bytes", bytes_bar),
        got.row("    context switches of the readers", f"{name} switches", unit=""),
        got.row("    major faults of the readers", f"{name} major_faults", unit=""),
    ]


def _own_rows(got: Results, name: str, mean: Bar | None = None, in_order: Bar | None = None) -> list[Row]:
    return [
        got.row("    reads that the daemon sent", f"{name} own", unit=""),
        got.row("    their mean", f"{name} mean", mean, "MiB"),
        got.row("    of them in offset order", f"{name} in_order", in_order),
    ]


class _Runs:
    """The runs of one group: each direct once, through the mount without and with a hint."""

    def __init__(self, work: Work, options: Options, command: str, *, readers: int, preset: str, readahead: bool):
        self.database = database(work, options)
        self.got = got = Results(command)
        whole = preset == "lustre" and not options.quick  # in four minutes
        self.part = self.database.records if whole else options.part(self.database.records, PART_QUICK)
        flags = ["--readahead"] if readahead else []
        for seed in range(options.runs):
            job = Job(work, self.database, preset, readers, seed)
            with got.attempt(*_keys("direct", "by_records")):
                direct = job.direct(None if readahead else self.part, *flags)
                got.add("direct by_records", direct.epoch_s * self.database.records / direct.records)
                _add(got, "direct", job, direct if readahead else by_requests(direct, self.database))
            for name, hint in (("mount", False), ("hint", True)):
                with got.attempt(*_keys(name, *_OWN, "faster", "faster_by_records", "fewer")):
                    epoch, own = job.mounted(*flags, hint=hint)
                    _add(got, name, job, epoch, own)
                    got.add(f"{name} faster", got.last("direct epoch_s") / epoch.epoch_s)
                    got.add(f"{name} faster_by_records", got.last("direct by_records") / epoch.epoch_s)
                    got.add(f"{name} fewer", got.last("direct reads") / epoch.reads)
        self.what = (
            f"LMDB of {self.database.records} records of 3 KB, {readers} readers, random, {preset}, epoch 1"
            f"{options.scale(RECORDS, RECORDS_QUICK)}"
        )


def _told(got_by_head: Sequence[tuple[Row, Sequence[Row]]]) -> list[Row]:
    """Each head, and what could be measured of the rows below it: a head without a value says why."""
    return [row for head, below in got_by_head for row in (head, *measured_rows(below))]


def _fixed(work: Work, options: Options, command: str, readers: int, preset: str, bars: dict[str, Bar]) -> list[Row]:
    """readahead=False."""
    runs = _Runs(work, options, command, readers=readers, preset=preset, readahead=False)
    got, part = runs.got, f"direct extrapolated from {runs.part} of {runs.database.records} records"

    def results(name: str, words: str) -> tuple[Row, list[Row]]:
        head = f"{runs.what}, readahead=False: {words}: speed-up over {part}, by requests"
        return got.row(head, f"{name} faster", bars.get(f"{name} faster")), [
            got.row("  over the same by records (data larger than memory)", f"{name} faster_by_records"),
            got.row("  time / file at the bandwidth", f"{name} bound", bars.get(f"{name} bound")),
            got.row("  times fewer READ requests at the source", f"{name} fewer", bars.get(f"{name} fewer")),
            *_epoch_rows(got, name, words, bars.get(f"{name} bytes")),
            *_own_rows(got, name, bars.get(f"{name} mean"), bars.get(f"{name} in_order")),
        ]

    direct, *below = _epoch_rows(got, "direct", f"{part}, by requests")
    return _told([results("hint", "mount, hinted with layout"), results("mount", "mount, unmodified"), (direct, below)])


def random(work: Work, options: Options, command: str) -> list[Row]:
    bars = {
        "mount faster": at_least(10),
        "hint faster": at_least(40),
        "hint bound": at_most(1.1),
        "hint fewer": at_least(100),
        "hint mean": at_least(4),
        "hint in_order": at_least(0.9),
    }
    return _fixed(work, options, command, 2, "busy", bars)


def random_8(work: Work, options: Options, command: str) -> list[Row]:
    bars = {
        "hint faster": at_least(12),
        "hint bytes": at_most(1.05),
        "mount bytes": at_most(1.05),
        "hint mean": at_least(4),
        "hint in_order": at_least(0.9),
    }
    return _fixed(work, options, command, 8, "busy", bars)


def random_lustre(work: Work, options: Options, command: str) -> list[Row]:
    return _fixed(work, options, command, 2, "lustre", {})


def readahead(work: Work, options: Options, command: str) -> list[Row]:
    """The default of lmdb.open: the kernel reads 128 KiB around a page that is asked for, while that seems to pay."""
    runs = _Runs(work, options, command, readers=2, preset="busy", readahead=True)
    got = runs.got

    def results(name: str, words: str, faster: Bar | None, bound: Bar | None) -> tuple[Row, list[Row]]:
        head = f"{runs.what}, default readahead: {words}: speed-up over direct"
        return got.row(head, f"{name} faster", faster), [
            got.row("  time / file at the bandwidth", f"{name} bound", bound),
            *_epoch_rows(got, name, words),
            *_own_rows(got, name),
        ]

    direct, *below = _epoch_rows(got, "direct", "direct, measured whole")
    return _told(
        [
            results("hint", "mount, hinted with layout", None, at_most(1.1)),
            results("mount", "mount, unmodified", at_least(1), None),
            (direct, below),
        ]
    )
