"""Rows of a daemon that is stopped, and of one that is killed again and again, under eight readers of staged files."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator

from scripts.benchmarks.common import HFS, BenchError, Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.native_files import READERS, Changing, Seen
from scripts.benchmarks.native_job import USERS, Job
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most
from scripts.benchmarks.trust_kills import LIVES_S, SERVES_LIMIT_S

STOPPED_S, STOPPED_QUICK_S = 60, 6
KILLS, KILLS_QUICK = 50, 5
LEAST_READS = 1000
"""Meanwhile: fewer would prove nothing."""
SEED = 20_261_126

_COUNTED = ("waits", "failed", "wrong", "opens")


def stopped(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    for_s = options.size(STOPPED_S, STOPPED_QUICK_S)
    for user in USERS:
        with got.attempt(*(f"{user} {key}" for key in (*_COUNTED, "longest"))):
            with Changing(work, options).read(work, user) as reading:
                status = reading.job.status()
                daemon, keeper = int(status["pid"]), int(status["keeper"]["pid"])
                with _silent(keeper, daemon):
                    time.sleep(for_s)
                seen = reading.seen(f"stopped, {user}", LEAST_READS)
                if reading.job.status()["pid"] != daemon:
                    raise BenchError("the daemon that was stopped has been ended since")
            _add(got, user, seen)
    rows = []
    for user in USERS:
        what = f"{user}, keeper and daemon stopped for {for_s} s under {READERS} readers of staged files"
        rows.append(got.row(f"{what}: reads that wait over 1 s", f"{user} waits", at_most(0), ""))
        rows += _read(got, user, "  reads that fail")
    return rows


def kills(work: Work, options: Options, command: str) -> list[Row]:
    got = Results(command)
    times = options.size(KILLS, KILLS_QUICK)
    for user in USERS:
        with got.attempt(*(f"{user} {key}" for key in (*_COUNTED, "longest"))):
            draw = random.Random(SEED)
            with Changing(work, options).read(work, user) as reading:
                pid = _wait_serving(reading.job, 0)
                for _ in range(times):
                    time.sleep(draw.uniform(*LIVES_S))
                    os.kill(pid, signal.SIGKILL)
                    pid = _wait_serving(reading.job, pid)
                seen = reading.seen(f"kills, {user}", LEAST_READS)
            _add(got, user, seen)
    rows = []
    for user in USERS:
        what = f"{user}, kill -9 of the daemon, {times} times, under {READERS} readers of staged files"
        rows += _read(got, user, f"{what}: reads that fail")
        rows.append(got.row("  reads that wait over 1 s", f"{user} waits", None, ""))
    return rows


def _add(got: Results, user: str, seen: Seen) -> None:
    for key in _COUNTED:
        got.add(f"{user} {key}", float(seen.counts[key]))
    got.add(f"{user} longest", seen.longest_s)


def _read(got: Results, user: str, failed: str) -> list[Row]:
    return [
        got.row(failed, f"{user} failed", at_most(0), ""),
        got.row("  reads of wrong bytes", f"{user} wrong", at_most(0), ""),
        got.row("  the longest read", f"{user} longest", None, "s"),
        got.row("  reads meanwhile", f"{user} opens", None, ""),
    ]


@contextlib.contextmanager
def _silent(keeper: int, daemon: int) -> Iterator[None]:
    """Both do nothing. The keeper is stopped first and goes on last: it would end a daemon that does nothing."""
    os.kill(keeper, signal.SIGSTOP)
    try:
        os.kill(daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(daemon, signal.SIGCONT)
    finally:
        os.kill(keeper, signal.SIGCONT)


def _wait_serving(job: Job, not_pid: int) -> int:
    """Wait until a daemon answers, another one than `not_pid`; its pid. Raises BenchError."""
    until_s = time.monotonic() + SERVES_LIMIT_S
    while time.monotonic() < until_s:
        code, out, _ = job.tried(HFS, "status", job.source, "--json")
        if code == 0 and (pid := int(json.loads(out)["pid"])) != not_pid:
            return pid
        time.sleep(0.05)
    raise BenchError(f"no daemon answers {SERVES_LIMIT_S:g} s after a kill")
