"""Which learner of which job a process is, by its launcher's environment."""

import os

import pytest

from hfs.job import job_name, process_token, rank_and_world


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (2, 4)),
        ({"RANK": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (5, 8)),
        ({"RANK": "x", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "4", "WORLD_SIZE": "4", "PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4)),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, (0, 1)),
    ],
)
def test_rank_and_world(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world(environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"TORCHELASTIC_RUN_ID": "r7", "MASTER_ADDR": "n1"}, "r7"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "n1:29500"),
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"PMIX_NAMESPACE": "p"}, "p"),
    ],
)
def test_learners_of_one_job_have_its_name(environ: dict[str, str], expected: str) -> None:
    assert job_name(2, environ) == expected
    assert job_name(1, environ) == f"process {process_token()}"  # alone: no other's rank 0 is in its way


def test_a_forked_process_has_another_token() -> None:
    ours = process_token()
    assert process_token() == ours
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, process_token().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert theirs
    assert theirs != ours
