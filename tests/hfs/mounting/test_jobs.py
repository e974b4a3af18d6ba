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
