"""Rows of many small daemons on one machine: how soon all know one more, what a peer costs in memory, and idling."""

import time
from concurrent.futures import ThreadPoolExecutor

from scripts.benchmarks.common import Work, cpu_seconds, process_memory
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import nodes
from scripts.benchmarks.nodes_data import mixed
from scripts.benchmarks.nodes_network import network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most, skipped_row

COUNT, COUNT_QUICK = 63, 7
SETTINGS = "push=no,buffer=16M"
AT_ONCE = 4
SETTLED_S = 10.0
IDLE_S = 30.0


def many(work: Work, options: Options, command: str) -> list[Row]:
    """All find the first one, whose memory is looked at when it is alone and when all are here."""
    if (reason := why_not()) is not None:
        return [skipped_row("many daemons", reason, command)]
    got, count = Results(command), options.size(COUNT, COUNT_QUICK)
    folder = mixed(work, Options(quick=True, runs=1, plots=options.plots))
    for _ in range(options.runs):
        with (
            got.attempt("known", "memory", "idle", "idle most"),
            network(count + 1) as net,
            nodes(work, net, folder, settings=SETTINGS) as running,
        ):
            running.start([0])
            pids = {0: running.pid(0)}
            alone = process_memory(pids[0])[0]

            def start(number: int) -> None:
                running.start([number], among=[0])

            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(start, range(1, count)))

            def know(wanted: int) -> bool:
                return all(running.status(number)["peers"]["nodes"] == wanted for number in running.mounts)

            running.until(lambda: know(count), f"all {count} know each other")
            begun_s = time.monotonic()
            start(count)
            running.until(lambda: know(count + 1), "all know one more")
            got.add("known", time.monotonic() - begun_s)
            time.sleep(SETTLED_S)
            got.add("memory", (process_memory(pids[0])[0] - alone) / 1e6 / count)
            pids = {number: running.pid(number) for number in running.mounts}
            before = {number: cpu_seconds(pid) for number, pid in pids.items()}
            time.sleep(IDLE_S)
            used = [100 * (cpu_seconds(pid) - before[number]) / IDLE_S for number, pid in pids.items()]
            got.add("idle", sum(used) / len(used))
            got.add("idle most", max(used))
    what = f"{count} small daemons, one more"
    return [
        got.row(f"{what}: from `hfs mount` until all know it", "known", at_most(5), "s"),
        got.row("  memory a peer, of the first daemon", "memory", at_most(1), "MB"),
        got.row("  idle: processor of each, of one core", "idle", at_most(1), "%"),
        got.row("  the busiest", "idle most", None, "%"),
    ]
