"""Whether a job has ended, as squeue says it: a stand-in for squeue that says what the real one (22.05) does."""

import os
import subprocess
from pathlib import Path

import pytest

from hfs.mounting import jobs

INVALID = "slurm_load_jobs error: Invalid job id specified"


@pytest.mark.parametrize(
    ("said", "error", "code", "ended"),
    [
        ("COMPLETED\n", "", 0, True),
        ("NODE_FAIL\n", "", 0, True),
        ("", INVALID, 1, True),
        ("RUNNING\n", "", 0, False),
        ("COMPLETING\n", "", 0, False),
        ("COMPLETED\nRUNNING\n", "", 0, False),  # tasks of an array
        ("", "", 0, None),
        ("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, None),
    ],
)
def test_what_squeue_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: str, code: int, ended: bool | None
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$3" = --jobs=12 ] || exit 9\nprintf "{said}"\necho "{error}" >&2\nexit {code}\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert jobs.has_ended("12") is ended


def test_nobody_knows_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jobs.has_ended("12") is None
    assert jobs.has_ended("12.pbs-server") is None


def test_the_job_of_a_process() -> None:
    environ = {"SLURM_JOB_ID": "12", "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        ["sh", "-c", "echo; read line"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            assert jobs.job_of_process(process.pid) == "12"
        finally:
            process.kill()
    assert jobs.job_of_process(1 << 22) is None


# -- steps, from cgroups and variables as Slurm has them --------------------------------------------------------------

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
    assert jobs.current_step(environ, cgroups) == step
