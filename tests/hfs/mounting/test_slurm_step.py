"""Whether a process runs in a step of Slurm that kills what it leaves: from cgroups and variables as Slurm has them."""

import pytest

from hfs.mounting import slurm_step

V1 = "6:freezer:/slurm_node1/uid_0/job_12/{}\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_12/{}/user/task_0\n"
SRUN = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}


@pytest.mark.parametrize(
    ("environ", "cgroups", "step"),
    [
        ({}, V1.format("step_0"), "12.0"),
        ({}, V2.format("step_4"), "12.4"),
        (SRUN, "0::/\n", "12.3"),  # another proctrack, or a cgroup namespace
        (SRUN, V2.format("step_batch"), None),  # an sbatch from within a step
        ({"SLURM_JOB_ID": "12"}, V1.format("step_batch"), None),
        ({"SLURM_JOB_ID": "12"}, "0::/\n", None),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "4294967290"}, V2.format("step_interactive"), None),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "4294967290"}, "0::/\n", None),
        ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "x"}, "0::/\n", None),
        ({}, "0::/user.slice\n", None),
    ],
)
def test_the_step(environ: dict[str, str], cgroups: str, step: str | None) -> None:
    assert slurm_step.current(environ, cgroups) == step
