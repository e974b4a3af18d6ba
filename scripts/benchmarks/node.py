"""`scripts/bench node`: many jobs and sources on one node, below one cache root. Files of 43 KB in random order.

    together  eight `hfs run` of two sources at once
    killed    three of four of one source are killed with -9
    full      a root that holds one and a half sources: a third one comes, while one is idle and one runs
    in-place  four `hfs run` of a plain user at once
    beside    a warm job beside four cold ones; beside the same four without hfs and a copy of what they read
    demand    reads on demand of one mount, while another fetches ahead from the same source
    disk      reads of staged bytes of one mount, while another stages on the same disk

Sources lie on a simulated Lustre where what reaches them is counted.
"""

import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks.common import HFS, SlowFs, Work, run, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.node_demand import demand
from scripts.benchmarks.node_disk import disk
from scripts.benchmarks.node_jobs import (
    FILE_BYTES,
    FILES,
    FILES_QUICK,
    Job,
    Watch,
    daemons_of,
    folder_of,
    ranks_of_a_plain_user,
    wait_unmounted,
)
from scripts.benchmarks.options import Options
from scripts.benchmarks.plain_user import UID
from scripts.benchmarks.table import Row, at_most, median_row

RUNS = 1
JOBS = 8
RANKS = 4
ROUNDS = 3
PRESET = "lustre"
_BLOCK = 4096


def _data_bytes(options: Options) -> int:
    """What one source takes in a cache."""
    return options.size(FILES, FILES_QUICK) * (-(-FILE_BYTES // _BLOCK) * _BLOCK + _BLOCK)


@contextlib.contextmanager
def _sources(work: Work, options: Options, count: int) -> Iterator[list[SlowFs]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(slowfs(work, folder_of(work, options, number), PRESET)) for number in range(count)]


def together(work: Work, options: Options, command: str) -> list[Row]:
    """Who comes first starts a daemon, the others join."""
    with _sources(work, options, 2) as sources:
        cache, size = work.new("cache"), 4 * _data_bytes(options)
        paths = [source.path for source in sources]
        with Watch(cache) as watch:
            jobs = [Job(paths[n % 2], cache, str(size), rounds=0, seed=n) for n in range(JOBS)]
            for job in jobs:
                job.wait_runs()
            daemons = daemons_of(paths)
            ends = [job.end() for job in jobs]
        left = wait_unmounted(paths, 2)
        read = [source.counters()["read_bytes"] / (options.size(FILES, FILES_QUICK) * FILE_BYTES) for source in sources]
    what = f"{JOBS} hfs run at once, two sources, one cache root{options.scale(FILES, FILES_QUICK)}"
    return [
        median_row(f"{what}: exits other than 0", [sum(end["exit"] != 0 for end in ends)], "", command, at_most(0)),
        median_row("  daemons", [daemons], "", command, at_most(2)),
        median_row("  source bytes / data", [max(read)], "x", command, at_most(1.02)),
        median_row(
            "  wrong bytes, failed reads", [sum(end["wrong"] + end["failed"] for end in ends)], "", command, at_most(0)
        ),
        median_row("  most that the root held / its size", [watch.most_bytes / size], "x", command, at_most(1)),
        median_row("  mounts left after 2 s", [left], "", command, at_most(0)),
    ]


def killed(work: Work, options: Options, command: str) -> list[Row]:
    """The one that has started the daemon is among them."""
    with _sources(work, options, 1) as (source,):
        cache, size = work.new("cache"), str(4 * _data_bytes(options))
        jobs = [Job(source.path, cache, size, rounds=0, seed=n).wait_runs() for n in range(4)]
        for job in jobs[:3]:
            job.kill()
        end = jobs[3].end()
        left = wait_unmounted([source.path], 2)
    failed = end["failed"] + end["wrong"] + (end["exit"] != 0)
    return [
        median_row("three of four killed with -9: reads of the fourth that fail", [failed], "", command, at_most(0)),
        median_row("  mounts left 2 s after the last has ended", [left], "", command, at_most(0)),
    ]


def full(work: Work, options: Options, command: str) -> list[Row]:
    """Idle caches go first, then what a running one holds beyond a fair share."""
    with _sources(work, options, 3) as sources:
        cache, size = work.new("cache"), _data_bytes(options) * 3 // 2
        idle, running, new = [source.path for source in sources]
        with Watch(cache) as watch:
            ends = [Job(idle, cache, str(size), rounds=1, seed=1).wait_runs().end()]
            second = Job(running, cache, str(size), rounds=0, seed=2).wait_runs()
            third = Job(new, cache, str(size), rounds=ROUNDS, seed=3).wait_runs()
            ends += [third.end(), second.end()]
    shares = _shares(cache, [idle, running, new])
    faults = sum(end["failed"] + end["wrong"] + (end["exit"] != 0) for end in ends)
    return [
        median_row("a full root, a third source comes: reads that fail", [faults], "", command, at_most(0)),
        median_row("  most that the root held / its size", [watch.most_bytes / size], "x", command, at_most(1)),
        *(median_row(f"  staged of the {name} one / size", [share / size], "x", command) for name, share in shares),
    ]


def _shares(cache: Path, paths: list[Path]) -> list[tuple[str, int]]:
    """Bytes that the caches of a root hold: of the idle source, the running one and the new one."""
    caches = json.loads(run(HFS, "cache", "du", "--cache", cache, "--json"))["caches"]
    held = {entry["source"]: int(entry["used_bytes"]) for entry in caches}
    return [(name, held[str(path)]) for name, path in zip(("idle", "running", "new"), paths, strict=True)]


def in_place(work: Work, options: Options, command: str) -> list[Row]:
    """Without privilege: the command sees the data at SOURCE, as the user who has started it."""
    got, count = Results(command), options.size(FILES, FILES_QUICK)
    uid = UID if os.geteuid() == 0 else os.getuid()
    with got.attempt("uid", "wrong", "daemons"):
        ranks = ranks_of_a_plain_user(work, folder_of(work, options, 0), RANKS)
        got.add("uid", sum(rank["uid"] != uid for rank in ranks))
        got.add("wrong", sum(rank["wrong"] + rank["failed"] + abs(2 * count - rank["files"]) for rank in ranks))
        got.add("daemons", len({rank["daemon"] for rank in ranks}))
    return [
        got.row(f"{RANKS} hfs run in place of a plain user: ranks with another uid", "uid", at_most(0), ""),
        got.row("  wrong bytes, failed reads, files too few", "wrong", at_most(0), ""),
        got.row("  daemons", "daemons", at_most(1), ""),
    ]


class _Warm(NamedTuple):
    """How a warm job goes on beside others."""

    rounds_s: float
    """Rounds a second, all the time that was looked at."""
    round_s: float
    """The median of one."""
    spent_s: float
    """Until the others were done."""


def _warm_beside(job: Job, others: Callable[[], None], least_s: float = 0) -> _Warm:
    """`others` do their work, and then the job goes on alone until so long is over in all."""
    job.wait_runs()
    began_s = time.perf_counter()
    others()
    spent_s = time.perf_counter() - began_s
    time.sleep(max(0.0, least_s - spent_s))
    looked_s = time.perf_counter() - began_s
    seconds = job.end()["seconds"]
    return _Warm(len(seconds) / looked_s, statistics.median(seconds), spent_s)


def beside(work: Work, options: Options, command: str) -> list[Row]:
    """The same foreign work in the same time: four jobs read and check all of a cold source, which is written to the
    disk once; by hfs, which is done early, or without it, by the jobs and a copy."""
    got = Results(command)
    keys = ("ratio", "copies", "hfs", "without", "copy", "hfs done", "without done")
    with _sources(work, options, 2) as (warm, cold):
        for _ in range(options.runs):
            with got.attempt(*keys):
                cache, size = work.new("cache"), str(4 * _data_bytes(options))
                run(HFS, "run", "--source", warm.path, "--cache", cache, "--cache-size", size, "--", "true")
                Job(warm.path, cache, size, rounds=1, seed=1).wait_runs().end()

                def new_job(cache: Path = cache, size: str = size) -> Job:
                    return Job(warm.path, cache, size, rounds=0, seed=2)

                def four(at: Path | None, cache: Path = cache, size: str = size) -> None:
                    jobs = [Job(cold.path, cache, size, rounds=1, seed=n, at=at).wait_runs() for n in range(4)]
                    if at is not None:
                        subprocess.run(["cp", "-r", at, work.new("copy")], check=True)
                    for job in jobs:
                        job.end()

                def copy() -> None:
                    subprocess.run(["cp", "-r", cold.path, work.new("copy")], check=True)

                without = _warm_beside(new_job(), lambda: four(cold.path))
                with_hfs = _warm_beside(new_job(), lambda: four(None), without.spent_s)
                with_copy = _warm_beside(new_job(), copy)
                got.add("ratio", without.rounds_s / with_hfs.rounds_s)
                got.add("copies", with_hfs.round_s / with_copy.round_s)
                for key, one in (("hfs", with_hfs), ("without", without), ("copy", with_copy)):
                    got.add(key, one.round_s)
                got.add("hfs done", with_hfs.spent_s)
                got.add("without done", without.spent_s)
    return [
        got.row("a warm job in the time of four cold ones and a copy, without hfs / with hfs", "ratio", at_most(1.1)),
        got.row("  the cold ones are done: with hfs", "hfs done", None, "s"),
        got.row("    without", "without done", None, "s"),
        got.row("  a round of the warm one, the median: with hfs", "hfs", None, "s"),
        got.row("    without", "without", None, "s"),
        got.row("    beside a plain copy, and no cold job", "copy", None, "s"),
        got.row("  with hfs / beside the plain copy", "copies"),
    ]


GROUPS = {
    "together": together,
    "killed": killed,
    "full": full,
    "in-place": in_place,
    "beside": beside,
    "demand": demand,
    "disk": disk,
}
