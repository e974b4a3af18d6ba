"""Rows of one large staged file that the kernel reads by itself: in memory, and with its pages dropped for both."""

from dataclasses import replace

from scripts.benchmarks.common import BenchError, Work, preload
from scripts.benchmarks.fastpath_access import MMAP, RANDOM_4K, RANDOM_128K, SEQUENTIAL
from scripts.benchmarks.fastpath_dropped import BLOCKS, PAGES
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import PAST_THE_DAEMON, large_folder, served_bytes, title
from scripts.benchmarks.native_job import USERS, StagedFor, staged_for
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

IN_MEMORY = {SEQUENTIAL: 0.95, RANDOM_128K: 0.95, RANDOM_4K: 0.9, MMAP: 0.85}
"""Each with its bar."""

DROPPED = (
    SEQUENTIAL,
    replace(RANDOM_128K, count=BLOCKS),
    replace(RANDOM_4K, count=PAGES),
    replace(MMAP, count=PAGES),
)
BAR_DROPPED = 0.9

_READERS = max(access.processes for access in IN_MEMORY)


def large(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    for user in USERS:
        with staged_for(work, large_folder(work, options), user) as data:
            for seed in range(options.runs):
                _in_memory(data, user, options, seed, got)
    return [
        got.row(f"{user}, {title(access, options)}: speed / native", f"{user} {access.what}", at_least(bar))
        for user in USERS
        for access, bar in IN_MEMORY.items()
    ]


def _in_memory(data: StagedFor, user: str, options: Options, seed: int, got: Results) -> None:
    with got.attempt(*(f"{user} {access.what}" for access in IN_MEMORY)), data.job(_READERS) as job:
        for access in IN_MEMORY:
            reads = data.duel(job, access, options, seed)
            preload(data.cache)  # others on the machine may have pushed it out
            before = served_bytes(job.status())
            ratio = reads.again(data.place)
            served = served_bytes(job.status()) - before
            if served > PAST_THE_DAEMON * reads.read_bytes:
                raise BenchError(f"{served} bytes of {reads.read_bytes} were served by the daemon")
            got.add(f"{user} {access.what}", ratio)


def dropped(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    for user in USERS:
        with staged_for(work, large_folder(work, options), user) as data:
            for seed in range(options.runs):
                with got.attempt(*(f"{user} {access.what}" for access in DROPPED)), data.job(_READERS) as job:
                    for access in DROPPED:
                        reads = data.duel(job, access, options, seed)
                        got.add(f"{user} {access.what}", reads.cold(data.place, data.forget))
    return [
        got.row(
            f"{user}, {title(access, options)}, page cache dropped for both: speed / native",
            f"{user} {access.what}",
            at_least(BAR_DROPPED),
        )
        for user in USERS
        for access in DROPPED
    ]
