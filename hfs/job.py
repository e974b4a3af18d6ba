"""Which learner of which job this process is, as its launcher says in the environment.

Called by `hfs/hint.py` when a script does not say it. Reads environment variables; starts, asks and imports nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

__all__ = ["job_name", "process_token", "rank_and_world"]

_RANKS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and most scripts
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
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
