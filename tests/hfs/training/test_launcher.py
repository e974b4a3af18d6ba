"""Which learner of which job a process is, by its launcher's environment."""

import os

import pytest

from hfs.training.launcher import job_name, nodes_of_ranks, process_token, rank_and_world


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


def torchrun(rank: int, world: int, local: int, number: int) -> dict[str, str]:
    said = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local, "LOCAL_RANK": number}
    return {key: str(value) for key, value in said.items()}


def slurm(hosts: str, tasks: str, **more: str) -> dict[str, str]:
    said = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": hosts, "SLURM_STEP_TASKS_PER_NODE": tasks}
    return {**said, **more}


@pytest.mark.parametrize(
    ("rank", "world", "environ", "expected"),
    [
        (0, 4, {}, None),
        (3, 4, torchrun(3, 4, 2, 1), [0, 0, 1, 1]),
        (3, 4, torchrun(2, 4, 2, 0), None),  # not this job's
        (3, 4, torchrun(3, 4, 3, 0), None),  # unequal nodes
        (1, 4, torchrun(1, 4, 2, 0), None),  # dealt out in turn
        (1, 4, torchrun(1, 4, 0, 0), None),
        (
            2,
            4,
            {
                f"OMPI_COMM_WORLD_{key}": value
                for key, value in zip(("RANK", "SIZE", "LOCAL_SIZE", "LOCAL_RANK"), "2420", strict=True)
            },
            [0, 0, 1, 1],
        ),
        (0, 2, {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}, [0, 1]),
        (0, 4, slurm("n[08-09],m", "2,1(x2)"), ["n08", "n08", "n09", "m"]),
        (0, 4, slurm("a1,b[7,9-10]-ib", "1(x4)"), ["a1", "b7-ib", "b9-ib", "b10-ib"]),
        (0, 4, slurm("n[1-2]", "2(x2)", SLURM_DISTRIBUTION="block:cyclic"), ["n1", "n1", "n2", "n2"]),
        (0, 4, slurm("n[1-2]", "2(x2)", SLURM_DISTRIBUTION="cyclic"), None),
        (0, 4, slurm("n[1-2]", "2(x3)"), None),
        (0, 4, slurm("n[1-2]", "1(x2)"), None),
        (0, 4, slurm("n[1-2]x[3-4]", "1(x4)"), None),
        (0, 4, slurm("n[1-2", "2(x2)"), None),
        (0, 4, slurm("", ""), None),
        (0, 3, slurm("n[1-2]", "2(x2)"), None),
    ],
)
def test_the_nodes_of_all_learners(
    rank: int, world: int, environ: dict[str, str], expected: list[str | int] | None
) -> None:
    assert nodes_of_ranks(rank, world, environ) == expected
