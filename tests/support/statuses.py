"""What a daemon says of itself, for tests of who shows it. Not a test module."""

from typing import Any

GB = 10**9


def traffic(read: int, source: int, *, at_least: bool = False) -> dict[str, Any]:
    totals = {"read_bytes": read, "source_bytes": source, "peer_bytes": 0, "staged_bytes": 0, "source_wait_s": 0.0}
    return {**totals, "cpu_s": 0.0, "is_at_least": at_least, "minute": {**totals, "seconds": 60.0, "cpu_s": 0.0}}


def learner(rank: int, waited_s: float) -> dict[str, Any]:
    epoch = {"epoch": 3, "exposed_s": waited_s, "compute_s": 100.0 - waited_s, "other_s": 0.0, "batches": 5}
    return {
        "name": "train",
        "rank": rank,
        "world": 64,
        "pid": 1,
        "epoch": 3,
        "position": 40,
        "total": 100,
        "staged_share": 0.5,
        "eta_s": 90.0 + rank,
        "epochs": [epoch],
    }


STATUS: dict[str, Any] = {
    "pid": 77,
    "mountpoint": "/data",
    "uptime_s": 7200.0,
    "io_mode": {"mode": "passthrough", "faster_if_reopened": 0},
    "source": {"path": "/lustre/images"},
    "staged": {"files": 812_331, "bytes": 120 * GB, "capacity_bytes": 400 * GB, "state": "ok"},
    "traffic": traffic(848 * GB, 36 * GB),
    "hints": {"learners": [learner(rank, rank / 10) for rank in range(64)], "past": [], "layouts": []},
    "readers": [{"pid": pid, "command": "python", "reads": 1, "bytes": GB} for pid in range(1, 30)],
}
