"""One learner of many plans its epoch with LocalityAwareSampler; no daemon is asked.

    node_plan.py SAMPLES LEARNERS LOCAL_BATCH SEED

The names of the files are made before. The result has "peak_bytes", the most memory that the process has had.
"""

import resource
import sys
from typing import Any

from barrier import serve

from hfs.client.cluster_map import ClusterMap
from hfs.policies.cluster.placement import Nodes
from hfs.samplers import Locality, LocalityAwareSampler

SAMPLES, LEARNERS, LOCAL_BATCH, SEED = map(int, sys.argv[1:])
FILES = [f"train/n{number // 1300:08d}/n{number // 1300:08d}_{number}.JPEG" for number in range(SAMPLES)]
# Any different numbers will do.
NODES = Nodes(tuple(hash(("node", number)) & (1 << 64) - 1 for number in range(LEARNERS)), (1.0,) * LEARNERS)


def work() -> dict[str, Any]:
    rank = SEED % LEARNERS
    learners = list(range(LEARNERS))
    locality = Locality(ClusterMap(NODES), files=FILES, learners=learners)
    sampler = LocalityAwareSampler(SAMPLES, LOCAL_BATCH * LEARNERS, SEED, rank, LEARNERS, locality)
    drawn = sum(len(batch) for batch in sampler)
    if drawn != -(-SAMPLES // LEARNERS):
        raise SystemExit(f"{drawn} of {SAMPLES} samples were drawn by one of {LEARNERS} learners")
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    sys.exit(serve(work))
