"""Rows of small staged files that the kernel opens by itself: the first pass of a later job, and those after it."""

import statistics
from pathlib import Path

from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_access import TURNS, Access
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import served_bytes, small_folder, title
from scripts.benchmarks.native_job import USERS, Job, StagedFor, staged_for
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import FOUR, ONE
from scripts.benchmarks.table import Row, at_least, at_most

ACCESSES = (ONE, FOUR)
BAR_FIRST, BAR_LATER = 0.15, 0.85
WATCHED = 3
"""Passes in which requests are counted."""
NO_REQUESTS = 0.01
"""A file. What a daemon reads besides is a few times a second."""


def small(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    for user in USERS:
        with staged_for(work, small_folder(work, options), user) as data:
            for seed in range(options.runs):
                for access in ACCESSES:
                    key = f"{user} {access.processes}"
                    with (
                        got.attempt(*(f"{key} {what}" for what in ("first", "later", "requests", "pages"))),
                        data.job(access.processes) as job,
                    ):
                        _passes(data, job, access, options, seed, got, key)
    rows = []
    for user in USERS:
        for access in ACCESSES:
            key, what = f"{user} {access.processes}", f"{user}, {title(access, options)}"
            rows += [
                got.row(f"{what}, first pass of a later job: speed / native", f"{key} first", at_least(BAR_FIRST)),
                got.row("  later passes: speed / native", f"{key} later", at_least(BAR_LATER)),
                got.row("  requests at the daemon then, a file", f"{key} requests", at_most(NO_REQUESTS), ""),
                got.row("  pages in memory / bytes of the data", f"{key} pages", at_most(1.05)),
            ]
    return rows


def _passes(data: StagedFor, job: Job, access: Access, options: Options, seed: int, got: Results, key: str) -> None:
    reads = data.duel(job, access, options, seed)
    reads.pass_s(data.native, once=True)  # names of the cache are in memory too: somebody has just written them
    native_s = statistics.median(reads.pass_s(data.native, once=True) for _ in range(TURNS))
    got.add(f"{key} first", native_s / reads.pass_s(data.place, once=True))
    got.add(f"{key} later", reads.again(data.place))
    status = job.status()
    before = _requests(status["pid"])
    for _ in range(WATCHED):
        reads.pass_s(data.place, once=True)
    opens = WATCHED * access.processes * len(data.names)
    got.add(f"{key} requests", (_requests(status["pid"]) - before) / opens)
    # What the mount itself has in memory came from the daemon: whoever opened its files to look would bring it.
    resident = job.resident_bytes(data.copies()) + served_bytes(job.status())
    got.add(f"{key} pages", resident / data.bytes)


def _requests(pid: int) -> int:
    """Reads that a daemon has done, of which one is for each request of the kernel's."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["syscr"])
