"""Rows of the cost model: the epoch times that it predicts from measured rates, and those of 1 to 8 nodes.

Training and preparing sleep. The nodes share one machine, so that what all of them together read from each other a
second (R_c) is measured once, of eight; the source's rate (R) is that of slowfs, as eight learners find it.

The model is of an epoch in which loading and training overlap from its beginning to its end. Here it has so few steps
that one counts: nobody trains before the first is loaded, and nothing is loaded while the last is trained on. So the
shorter of both, of one step, is added to what the model says: for eight nodes and 10 steps a tenth of the epoch.
"""

from collections.abc import Sequence
from pathlib import Path

from hfs.policies.cluster.cost_model import Job, costs
from scripts.benchmarks.common import SlowFs, Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_data import MIDDLE, MIDDLE_QUICK, middle
from scripts.benchmarks.peers_epochs import fill
from scripts.benchmarks.peers_nodes import Data, learners, nodes
from scripts.benchmarks.peers_simulation import simulated_percent
from scripts.benchmarks.table import Row, at_most

COUNTS = (1, 2, 4, 8)
MOST = COUNTS[-1]
SHARED_BPS = 8_000_000
LOCAL_BATCH = 8
PREPARE_S, TRAIN_S = 0.002, 0.016
"""Eight nodes then ask each other for 440 files a second, which two cores can do beside other work."""
STEPS = 256

WAYS = {"direct": "direct from the source", "distributed": "regular sampler", "locality": "LocalityAwareSampler"}
OFF = at_most(15)


def seconds(paths: Sequence[Path], data: Data, how: str, seed: int, *, bare: bool) -> float:
    slept = {} if bare else {"prepare_s": PREPARE_S, "train_s": TRAIN_S}
    with learners(paths, data) as group:
        return group.epoch(how=how, seed=seed, batch=LOCAL_BATCH * len(paths), threads=LOCAL_BATCH, **slept)[0]


class _Found:
    """Seconds of epochs by (way, nodes), and of reads alone by way."""

    def __init__(self, work: Work, data: Data, slow: SlowFs, seed: int) -> None:
        self.epoch_s: dict[tuple[str, int], float] = {}
        self.samples = data.samples
        self.direct_s = seconds([slow.path] * MOST, data, "regular", seed, bare=True)
        for count in COUNTS:
            self.epoch_s["direct", count] = seconds([slow.path] * count, data, "regular", seed, bare=False)
            with nodes(work, slow, count, "partition", chunk="256K", memory="4M") as running:
                with learners(running.paths, data) as group:
                    fill(running, group, data, seed)
                if count == 1:
                    self.local_s = seconds(running.paths, data, "regular", seed + 1, bare=True)
                if count == MOST:
                    self.remote_s = seconds(running.paths, data, "regular", seed + 1, bare=True)
                self.epoch_s["distributed", count] = seconds(running.paths, data, "regular", seed + 2, bare=False)
                self.epoch_s["locality", count] = seconds(running.paths, data, "local", seed + 3, bare=False)

    def job(self, nodes: int, seed: int) -> Job:
        """The model's inputs."""
        local_rate = self.samples / self.local_s
        elsewhere = (MOST - 1) / MOST
        # (7) for the reads of eight nodes alone, solved for R_c.
        rest_s = self.remote_s - self.samples / (MOST * local_rate) * (1 - elsewhere)
        return Job(
            samples=self.samples,
            train_rate=1 / TRAIN_S,
            preprocess_rate=1 / PREPARE_S,
            storage_rate=self.samples / self.direct_s,
            remote_rate=self.samples * elsewhere / rest_s,
            local_rate=local_rate,
            moved=simulated_percent(nodes, LOCAL_BATCH, STEPS, seed) / 100,
        )


def predicted(job: Job, way: str, nodes: int) -> float:
    """Seconds of an epoch, with the step at its beginning and end in which nothing overlaps."""
    found, steps = costs(job, nodes), job.samples / (nodes * LOCAL_BATCH)
    loading_s = float(getattr(found, f"{way}_io_s")) + found.preprocess_s
    return float(getattr(found, f"{way}_s")) + min(found.train_s, loading_s) / steps


def model(work: Work, options: Options, command: str) -> list[Row]:
    got, data = Results(command), middle(work, options)
    keys = [f"{way} {count}" for way in WAYS for count in COUNTS]
    rates = ("storage_rate", "remote_rate", "local_rate")
    for seed in range(options.runs):
        with (
            got.attempt(*keys, *(f"{key} {what}" for key in keys for what in ("s", "predicted")), *rates),
            slowfs(work, data.folder, "none") as slow,
        ):
            slow.tell(f"set shared_bps {SHARED_BPS}")
            found = _Found(work, data, slow, 100 * seed)
            for (way, count), epoch_s in found.epoch_s.items():
                predicted_s = predicted(found.job(count, seed), way, count)
                got.add(f"{way} {count}", 100 * abs(epoch_s / predicted_s - 1))
                got.add(f"{way} {count} s", epoch_s)
                got.add(f"{way} {count} predicted", predicted_s)
            for rate in rates:
                got.add(rate, getattr(found.job(MOST, seed), rate))
    scale = options.scale(MIDDLE, MIDDLE_QUICK)
    what = f"epoch of {data.samples} files of 40 KB{scale}, training {1 / TRAIN_S:g}/s a node"
    rows = []
    for way, words in WAYS.items():
        for count in COUNTS:
            key = f"{way} {count}"
            name = f"{what}, {count} node{'s' if count > 1 else ''}, {words}: off the model"
            rows += [
                got.row(name, key, OFF, "%"),
                got.row("  measured", f"{key} s", unit="s"),
                got.row("  predicted", f"{key} predicted", unit="s"),
            ]
    words_of = {
        "storage_rate": "from the source (R)",
        "remote_rate": "from peers (R_c)",
        "local_rate": "of one node's own",
    }
    return [*rows, *(got.row(f"  rate measured: {words}", rate, unit="samples/s") for rate, words in words_of.items())]
