"""The reader processes of one node that read an LMDB together, by one of the steps of LMDBIO (Pumma et al.).

    lmdb_node.py DATABASE RECORDS WORLD LAYOUT STEP

STEP is lmm, dm (lmdb_mapped.py), dio, prov, coal or stag (lmdb_explicit.py). Each request {"seed": S, "count": N or
null} is the first N records of a random order of all, a batch for each process at a time. Opens the database within the
time. Of counts the result has the sum over all processes, of times the longest.

The processes are forked, so what a step makes when it is made (shared memory, semaphores, pipes) is common to all.
"""

import argparse
import multiprocessing
import sys
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
from barrier import serve
from lmdb_batches import Batch, Place, measured
from lmdb_explicit import Coal, Dio, Prov, Stag
from lmdb_mapped import Dm, Lmm


class Step(Protocol):
    def epoch(self, rank: int, order: list[int], batch: Batch) -> None:
        """Read what is this process's of the common order."""


STEPS: dict[str, Any] = {"lmm": Lmm, "dm": Dm, "dio": Dio, "prov": Prov, "coal": Coal, "stag": Stag}


def one_process(step: Step, rank: int, records: int, requests: Connection) -> None:
    while True:
        asked = requests.recv()
        order = np.random.default_rng(asked["seed"]).permutation(records)[: asked["count"]].tolist()
        requests.send(measured(lambda batch, order=order: step.epoch(rank, order, batch)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("records", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("layout")
    parser.add_argument("step", choices=STEPS)
    args = parser.parse_args()
    step = STEPS[args.step](Place(args.database, args.records, args.world, args.layout))
    forking = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    for rank in range(args.world):
        here, there = forking.Pipe()
        forking.Process(target=one_process, args=(step, rank, args.records, there), daemon=True).start()
        there.close()  # so that the end of a process is seen
        pipes.append(here)

    def epoch(seed: int, count: int | None) -> dict[str, Any]:
        for pipe in pipes:
            pipe.send({"seed": seed, "count": count})
        answers = []
        while len(answers) < len(pipes):
            # Whoever answers first: of one that has ended this is an error, whatever the others wait for.
            answers += [pipe.recv() for pipe in wait(pipes)]
        join = {name: max if name.endswith("_s") else sum for name in answers[0]}
        return {name: how(answer[name] for answer in answers) for name, how in join.items()}

    serve(epoch)


if __name__ == "__main__":
    sys.exit(main())
