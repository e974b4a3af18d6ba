"""What it costs each learner to divide an epoch of ImageNet between 1 024 learners: time and memory of one rank.

A process of its own for each measurement, from the making of the sampler (the owners of all files) to the end of the
first epoch's batches; the list of paths is the job's, and not counted. Nothing is asked of other learners.
"""

import json
import sys

from scripts.benchmarks.common import Work, run
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_most

SAMPLES, SAMPLES_QUICK = 1_280_000, 64_000
LEARNERS = 1024
A_NODE = (1, 4)
"""Learners of a node."""
BATCHES = (1, 32)
"""Samples of a learner in a step: the more steps, the more often Algorithm 1 runs."""

_PROGRAM = """
import json, resource, sys, time
from hfs.client.cluster_map import ClusterMap
from hfs.samplers import Locality, LocalityAwareSampler
from hfs.policies.cluster.placement import Nodes

samples, world, a_node, batch = map(int, sys.argv[1:])
files = [f"train/n{number % 1000:08d}/n{number % 1000:08d}_{number}.JPEG" for number in range(samples)]
nodes = Nodes(tuple(range(1, world // a_node + 1)), (1.0,) * (world // a_node))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began_s = time.perf_counter()
sampler = LocalityAwareSampler(
    *(samples, batch * world, 0, world // 2, world),
    Locality(ClusterMap(nodes), files=files, learners=[rank // a_node for rank in range(world)]),
)
made_s = time.perf_counter()
steps = sum(1 for _ in sampler)
ended_s = time.perf_counter()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
figures = {"made": made_s - began_s, "epoch": ended_s - made_s, "all": ended_s - began_s, "steps": steps}
print(json.dumps({**figures, "mb": (after - before) * 1024 / 1e6}))
"""


def planning(_: Work, options: Options, command: str) -> list[Row]:
    """Rows for each number of learners a node and samples a step."""
    samples = options.size(SAMPLES, SAMPLES_QUICK)
    scale = options.scale(SAMPLES, SAMPLES_QUICK)
    got, rows = Results(command), []
    for a_node in A_NODE:
        for batch in BATCHES:
            keys = [f"{a_node} {batch} {name}" for name in ("all", "made", "epoch", "mb")]
            steps = 0
            for _run in range(options.runs):
                with got.attempt(*keys):
                    answer = json.loads(
                        run(sys.executable, "-c", _PROGRAM, *map(str, (samples, LEARNERS, a_node, batch)))
                    )
                    steps = answer["steps"]
                    for key in keys:
                        got.add(key, answer[key.rpartition(" ")[2]])
            what = f"{samples} samples, {LEARNERS} learners on {LEARNERS // a_node} nodes, {steps} steps{scale}"
            rows += [
                got.row(f"{what}: one rank plans an epoch", keys[0], at_most(5), "s"),
                got.row("  of it the owners of all samples, once", keys[1], unit="s"),
                got.row("  of it the epoch", keys[2], unit="s"),
                got.row("  memory above the list of paths, at most", keys[3], at_most(500), "MB"),
            ]
    return rows
