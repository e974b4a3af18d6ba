"""MPI jobs can be run, killed in whole or in part, and leave nothing behind."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.fuse.harness import ROOT, wait_gone
from tests.mpi import harness
from tests.mpi.daemons import ULFM
from tests.mpi.harness import Job


def test_ranks_share_a_window_and_each_is_heard(mpirun: Callable[..., Job]) -> None:
    said = mpirun(4, "hello").must()
    assert [line.split()[:3] for line in said] == [[str(rank), "4", "hello"] for rank in range(4)]


def test_a_job_that_hangs_is_ended_and_shows_what_it_said(mpirun: Callable[..., Job]) -> None:
    job = mpirun(2, "hello", "wait")
    job.wait_line(1, "hello")
    if os.geteuid() == 0:
        assert os.readlink(f"/proc/{job.pid(1)}/ns/net") != os.readlink("/proc/self/ns/net")
    with pytest.raises(AssertionError, match=r"did not end in 0 s(?s:.*)--- rank 1, stdout\n1 2 hello"):
        job.finish(0)
    assert job.close() == []
    assert wait_gone(job.pid(1), 0)


def test_a_lost_rank_ends_the_job_or_with_ulfm_only_itself(mpirun: Callable[..., Job]) -> None:
    plain = mpirun(2, "hello", "wait")
    surviving = mpirun(4, "hello", "lose", 2, options=("--with-ft", "ulfm"))
    plain.wait_line(1, "hello")
    plain.kill(1)
    assert plain.finish() != 0
    for rank in range(4):
        surviving.wait_line(rank, "hello")
    surviving.kill(2)
    surviving.finish()
    assert ["True" in surviving.out(rank) for rank in range(4)] == [True, True, False, True], surviving.text()


def test_a_mpirun_that_outlives_its_ranks_is_ended(mpirun: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "STAYS_S", 0.1)
    job = mpirun(2, "hello", "wait")
    job.wait_line(0, "hello")
    job.wait_line(1, "hello")
    os.kill(job._mpirun.pid, signal.SIGSTOP)
    for rank in range(2):
        os.kill(job.pid(rank), signal.SIGKILL)
    assert job.finish() == -signal.SIGKILL


def test_mpi_does_what_every_transport_must_do(mpirun: Callable[..., Job]) -> None:
    """The others: tests/mountd/peers/test_transports.py."""
    program = ["python", "-m", "tests.support.transport_exchange"]
    assert mpirun(3, program, options=ULFM, env={"PYTHONPATH": str(ROOT)}).must() == ["done\n"] * 3
