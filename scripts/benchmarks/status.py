"""`scripts/bench status`: what it costs to be told how a mount does.

scraped  metrics asked for ten times a second, beside the same mount that nobody asks
hung     metrics and the status, while 128 readers hang in the source
screen   `hfs status` of a million names and 64 learners
"""

import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hfs.client.client import Client, find_socket
from scripts.benchmarks import data
from scripts.benchmarks.common import Mount, SlowFs, Work, files_at, hfs_mount, reader, slowfs
from scripts.benchmarks.mount_daemon import HUNG, all_hang, hang_folder
from scripts.benchmarks.options import Options
from scripts.benchmarks.status_screen import screen
from scripts.benchmarks.table import Row, at_most, median_row

RUNS = 3
A_SECOND = 10
SCRAPED_S, SCRAPED_S_QUICK = 30, 8
BURST = 300
FILES, FILE_BYTES = 2_000, 43_000
"""Enough names and delegated files that a figure which walks over them would show."""
REPEATS = 20
_REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.6,"
    b"text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\nAccept-Encoding: gzip\r\nUser-Agent: Prometheus\r\n\r\n"
)


def scraped(work: Work, options: Options, command: str) -> list[Row]:
    """The daemon's CPU, by the kernel's account of all of its threads, second by second with and without."""
    folder = _folder(work)
    length_s = options.size(SCRAPED_S, SCRAPED_S_QUICK)
    asked, idle, burst_us, times = [], [], [], []
    with (
        slowfs(work, folder, "none") as source,
        hfs_mount(work, source.path, options=("--metrics", "0")) as mount,
    ):
        for path in files_at(mount.path):
            path.read_bytes()
        address = _address(mount)
        length = len(_scrape(address))
        _wait_idle(mount.pid)
        for _ in range(options.runs):
            shares: list[list[float]] = [[], []]
            for _ in range(length_s):  # whatever else the daemon and the machine do is in both
                shares[0].append(_measured(mount.pid, 1, lambda: None)[0])
                share, took = _measured(mount.pid, 1, lambda: _scrape(address))
                shares[1].append(share)
                times += took
            without, share = (statistics.median(each) for each in shares)
            idle.append(100 * without)
            asked.append(100 * (share - without))
            burst_us.append(1e6 * _cost_s(mount.pid, lambda: _scrape(address), without))
    what = f"{A_SECOND} scrapes a second, {length / 1000:.0f} kB each"
    return [
        median_row(f"{what}: CPU of the daemon that they cost, of one core", asked, "%", command, at_most(1)),
        median_row("  the daemon's CPU without them", idle, "%", command),
        median_row(f"  a scrape, of {BURST} one after the other: CPU", burst_us, "us", command, at_most(1000)),
        median_row("  half of them took at most", [1000 * sorted(times)[len(times) // 2]], "ms", command),
        median_row("  all of them", [1000 * max(times)], "ms", command),
    ]


def hung(work: Work, options: Options, command: str) -> list[Row]:
    """Each reader waits for a file of its own, whose bytes the source does not give."""
    folder = hang_folder(work)
    metrics, status, parked = [], [], []
    for _ in range(options.runs):
        with (
            slowfs(work, folder, "lustre") as source,
            hfs_mount(work, source.path, options=("--metrics", "0")) as mount,
            reader("crowd.py", mount.path / "stuck") as crowd,
        ):
            address, client = _address(mount), Client(find_socket(str(mount.path)))
            source.tell("fault read hang path /stuck/")
            crowd.do(do="start")
            parked.append(all_hang(crowd, source))
            metrics.append(max(_time(partial(_scrape, address)) for _ in range(REPEATS)))
            status.append(max(_time(client.status) for _ in range(REPEATS)))
            _let_go(source)
            crowd.send({"do": "join"})
            crowd.answer(60)
    what = f"while {HUNG} readers hang in the source"
    return [
        median_row(f"{what}: slowest of {REPEATS} scrapes", metrics, "s", command, at_most(0.2)),
        median_row(f"  slowest of {REPEATS} status at the socket", status, "s", command, at_most(0.2)),
        median_row("  requests stuck in the source itself", parked, "", command),
    ]


def _folder(work: Work) -> Path:
    def make(root: Path) -> None:
        for number in range(FILES):
            data.make_random(root / f"{number:05d}.bin", FILE_BYTES, number)

    return data.stamped(work.data / "status", {"files": [FILES, FILE_BYTES]}, make)


def _let_go(source: SlowFs) -> None:
    source.tell("release")
    source.tell("clear")


def _address(mount: Mount) -> tuple[str, int]:
    host, _, port = str(mount.status()["monitoring"]["address"]).rpartition(":")
    return host, int(port)


def _scrape(address: tuple[str, int]) -> bytes:
    """As a collector does. Raises OSError, ValueError."""
    found = b""
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(_REQUEST)
        while part := connection.recv(1 << 16):
            found += part
    if not (found.startswith(b"HTTP/1.1 200 ") and found.endswith(b"# EOF\n")):
        raise ValueError(f"no metrics: {found[:200]!r}")
    return found


def _measured(pid: int, length_s: float, each: Callable[[], object]) -> tuple[float, list[float]]:
    """Cores that the process has used in that time, while `each` was called ten times a second; how long each took."""
    begin_s, before_s, took = time.monotonic(), _cpu_s(pid), []
    for number in range(int(length_s * A_SECOND)):
        took.append(_time(each))
        time.sleep(max(0.0, begin_s + (number + 1) / A_SECOND - time.monotonic()))
    return (_cpu_s(pid) - before_s) / (time.monotonic() - begin_s), took


def _cost_s(pid: int, call: Callable[[], object], without: float) -> float:
    """CPU of the process for a call."""
    begin_s, before_s = time.monotonic(), _cpu_s(pid)
    for _ in range(BURST):
        call()
    return (_cpu_s(pid) - before_s - without * (time.monotonic() - begin_s)) / BURST


def _wait_idle(pid: int) -> None:
    """Until the daemon has written, committed and noted what was read."""
    limit_s = time.monotonic() + 60
    while _measured(pid, 1, lambda: None)[0] > 0.05 and time.monotonic() < limit_s:
        pass


def _cpu_s(pid: int) -> float:
    """Of all threads, those that have ended too, to the nanosecond: the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def _time(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


GROUPS = {"scraped": scraped, "hung": hung, "screen": screen}
