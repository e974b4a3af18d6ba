"""Which learner of which job this process is, as its launcher says in the environment.

Reads environment variables; starts, asks and imports nothing.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence

from hfs.mountd.core.hostlist import slurm_hosts

_RANKS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and most scripts
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
)
_LOCAL = (
    # rank, world, learners on this node, and the number of this one among them
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
)
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")

_token = (0, "")


def rank_and_world(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """(rank, number of learners) of the first launcher that says both, else (0, 1). 0 <= rank < world."""
    environ = os.environ if environ is None else environ
    for rank_key, world_key in _RANKS:
        try:
            rank, world = int(environ[rank_key]), int(environ[world_key])
        except (KeyError, ValueError):
            continue
        if 0 <= rank < world:
            return rank, world
    return 0, 1


def nodes_of_ranks(rank: int, world: int, environ: Mapping[str, str] | None = None) -> Sequence[str | int] | None:
    """The node of each of the `world` learners: its name where the launcher says names (Slurm), else its number among
    the job's nodes. None: the launcher does not say, or its learners are not placed node by node.

    torchrun and mpirun tell a learner only about its own node; all nodes are taken to have as many, in order of rank.
    Where that is wrong, some learner finds itself on another node than it should be.
    """
    environ = os.environ if environ is None else environ
    for keys in _LOCAL:
        try:
            found, of, here, number = (int(environ[key]) for key in keys)
        except (KeyError, ValueError):
            continue
        if (found, of) != (rank, world):
            continue
        if here < 1 or world % here or rank % here != number:
            return None
        return [each // here for each in range(world)]
    if (environ.get("SLURM_PROCID"), environ.get("SLURM_NTASKS")) != (str(rank), str(world)):
        return None
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    if not environ.get("SLURM_DISTRIBUTION", "block").startswith("block"):
        return None
    try:
        names, counts = list(slurm_hosts(hosts)), list(_slurm_counts(tasks))
    except ValueError:
        return None
    if len(names) != len(counts) or sum(counts) != world:
        return None
    return [name for name, count in zip(names, counts, strict=True) for _ in range(count)]


def _slurm_counts(text: str) -> Iterator[int]:
    """The numbers in a list like "4(x2),1"."""
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            raise ValueError(item)
        for _ in range(int(match[2] or 1)):
            yield int(match[1])


def job_name(world: int, environ: Mapping[str, str] | None = None) -> str:
    """What all learners of this job, and no others of the node, have in common.

    A learner that is alone (`world` 1) is a job of its own: several experiments on one node, or in one allocation, are
    no mistake.
    """
    if world <= 1:
        return f"process {process_token()}"
    environ = os.environ if environ is None else environ
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":  # what torchrun calls a run that was given no name
        return run
    if environ.get("MASTER_ADDR"):
        return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    return next((environ[key] for key in _JOBS if environ.get(key)), "")


def process_token() -> str:
    """A random text, the same for the life of this process; another one in a process that was forked from it."""
    global _token  # noqa: PLW0603 - one process has one
    if _token[0] != os.getpid():
        _token = (os.getpid(), secrets.token_hex(8))
    return _token[1]
