"""LMDBIO's six steps (Pumma et al.) one after the other, each a program of its own, and hfs beside them.

All read the same batches, in random order, from a cold source. The steps build on each other as in the paper, with
processes of one node where the paper has nodes: from LMM-DM on each reads its share itself. The paper's batches are
neighbours in the file; of records in random order a batch has none, so a step before COAL has one request a record.

What has one request a record is extrapolated from its first records, by requests: each page of the file once by mmap,
each record once by pread. The first walk of DIO is measured whole and stays as it is.
"""

from dataclasses import dataclass, replace

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.lmdbio_data import PAGE, RECORDS, RECORDS_QUICK, database
from scripts.benchmarks.lmdbio_mount import by_requests
from scripts.benchmarks.lmdbio_readers import Epoch, Job
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, measured_rows

READERS = 4
PART_QUICK = 200
"""Records of all readers together, in a quick run; else a tenth, 430 s where one reads for all."""


@dataclass(frozen=True)
class Rung:
    words: str
    step: str = ""
    """Of readers/lmdb_node.py; empty: plain readers."""
    part: bool = False
    mounted: bool = False
    hint: bool = False
    readahead: bool = False


RUNGS = (
    Rung("LMDB (mmap, readahead=False)", part=True),
    Rung("LMDB (mmap, default readahead)", readahead=True),
    Rung("LMM: one process reads for all", "lmm", part=True),
    Rung("LMM-DM: each its share, cursor handed over", "dm", part=True),
    Rung("DIO: pread, after a walk", "dio", part=True),
    Rung("PROV: without the walk", "prov", part=True),
    Rung("COAL: large reads, 2.5 GB", "coal"),
    Rung("STAG: in turns", "stag"),
    Rung("through the mount, unmodified", mounted=True),
    Rung("through the mount, hinted", mounted=True, hint=True),
)

_KEYS = ("epoch_s", "faster", "first_s", "reads", "ordered", "bytes", "switches", "major_faults", "before_s")


def explicit(walk: Epoch, part: Epoch, records: int) -> Epoch:
    """A whole epoch of one request a record, behind the walk."""
    rest = part.scaled(records / part.records)
    counts = ("reads", "source_bytes", "ordered", "switches", "major_faults")
    return replace(
        rest,
        epoch_s=walk.epoch_s + rest.epoch_s,
        first_s=walk.epoch_s + part.first_s,
        source_s=walk.epoch_s + rest.source_s,
        cpu_s=walk.cpu_s + rest.cpu_s,
        **{name: getattr(walk, name) + getattr(rest, name) for name in counts},
    )


def _epoch(job: Job, rung: Rung, count: int) -> tuple[Epoch, float]:
    """A whole epoch, and the seconds of it that are before the first record."""
    flags = ["--readahead"] if rung.readahead else []
    if rung.mounted:
        return job.mounted(*flags, hint=rung.hint)[0], 0.0
    if not rung.step:
        found = job.direct(count if rung.part else None, *flags)
        return (by_requests(found, job.database) if rung.part else found), 0.0
    walk, part = job.step(rung.step, count if rung.part else None)
    if rung.step in ("lmm", "dm"):
        return by_requests(part, job.database), 0.0
    return explicit(walk, part, job.database.records), walk.epoch_s


def ladder(work: Work, options: Options, command: str, preset: str = "busy") -> list[Row]:
    files = database(work, options)
    got = Results(command)
    part = options.part(files.records, PART_QUICK)
    for seed in range(options.runs):
        job = Job(work, files, preset, READERS, seed)
        for rung in RUNGS:
            with got.attempt(*(f"{rung.words} {key}" for key in _KEYS)):
                epoch, before_s = _epoch(job, rung, part)
                for key in ("epoch_s", "first_s", "reads", "switches", "major_faults"):
                    got.add(f"{rung.words} {key}", getattr(epoch, key))
                got.add(f"{rung.words} before_s", before_s)
                got.add(f"{rung.words} ordered", epoch.ordered / epoch.reads)
                got.add(f"{rung.words} bytes", epoch.source_bytes / files.bytes)
                got.add(f"{rung.words} faster", got.last(f"{RUNGS[0].words} epoch_s") / epoch.epoch_s)

    def rows(rung: Rung) -> list[Row]:
        words, how = rung.words, f" [extrapolated from {part} records, by requests]" if rung.part else ""
        return [
            got.row(f"  {words}{how}", f"{words} epoch_s", unit="s"),
            *measured_rows(
                [
                    got.row("    times faster than LMDB", f"{words} faster"),
                    *([got.row("    of it the walk", f"{words} before_s", unit="s")] if rung.step == "dio" else []),
                    got.row("    until the first batch", f"{words} first_s", unit="s"),
                    got.row("    READ requests at the source", f"{words} reads", unit=""),
                    got.row("    of them in offset order", f"{words} ordered"),
                    got.row("    source bytes / file", f"{words} bytes"),
                    got.row("    context switches of the readers", f"{words} switches", unit=""),
                    got.row("    major faults of the readers", f"{words} major_faults", unit=""),
                ]
            ),
        ]

    what = (
        f"LMDBIO's steps: {files.records} records of 3 KB ({files.bytes // PAGE} pages), {READERS} processes, random,"
        f" {preset}, epoch 1{options.scale(RECORDS, RECORDS_QUICK)}: file at the bandwidth"
    )
    got.add("bound", job.bound_s)
    return [got.row(what, "bound", unit="s"), *(row for rung in RUNGS for row in rows(rung))]


def ladder_lustre(work: Work, options: Options, command: str) -> list[Row]:
    return ladder(work, options, command, "lustre")
